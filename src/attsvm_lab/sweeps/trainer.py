"""A training of the user's own in a study: `trainer = "module:function"` and the function's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np

from attsvm import Path, Tokens
from attsvm._support.options import BadOption
from attsvm._support.validation import is_integer
from attsvm.cli.settings import Settings
from attsvm_lab.sweeps.intervals import KINDS
from attsvm_lab.sweeps.measure import MEASURES
from attsvm_lab.sweeps.plugins import is_plugin, plugin

RESERVED = ("cell", "seed", "stopped", "runs", "trainer", *MEASURES, *KINDS)
"""Columns of the table that no argument of a trainer may be called."""

FIRST = ("tokens", "head", "seed")
"""What every trainer is given."""


@dataclass(frozen=True)
class OwnTraining(Settings):
    """Settings of a function of tokens, head, seed (a range) and keywords that returns a Path of these runs.

    Of the settings of train() only steps is read, to estimate how long a run takes.
    """

    trainer: str = ""
    keywords: tuple[tuple[str, Any], ...] = ()

    @property
    def words(self) -> dict[str, Any]:
        """The training as columns of the table."""
        return {"trainer": self.trainer, **dict(self.keywords)}

    @property
    def options(self) -> tuple[str, ...]:
        return ()

    def trained(self, tokens: Tokens, head: Any, seeds: range, folder: str) -> Path:
        """The path of the runs with these seeds."""
        path = plugin(self.trainer, folder)(tokens, head, seed=seeds, **dict(self.keywords))
        if not isinstance(path, Path) or path.runs != len(seeds):
            raise BadOption(
                f"{self.trainer} returned {type(path).__name__}. Return a Path, one run per seed."
            )
        return path


def own_training(table: Mapping[str, Any], data: Mapping[str, Any], folder: str) -> OwnTraining:
    """The settings of a table with a trainer, after checking the names of its arguments."""
    name = table["trainer"]
    keywords = {key: value for key, value in table.items() if key != "trainer"}
    if not is_plugin(name):
        raise BadOption(f"train.trainer is {name!r}. Pass a function of yours as module:function.")
    parameters = signature(plugin(name, folder)).parameters
    free = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    arguments = [key for key in parameters if key not in FIRST]
    for key in keywords:
        if key in RESERVED or key in data:
            raise BadOption(f"train.{key} is the name of another column of the table. Rename it in {name}.")
        if key not in arguments and not free:
            raise BadOption(f"train.{key} means nothing to {name}. It takes {', '.join(arguments)}.")
    for key in arguments:
        if (
            key not in keywords
            and parameters[key].default is Parameter.empty
            and parameters[key].kind in (1, 3)
        ):
            raise BadOption(f"train.{key} is missing: {name} takes {', '.join(arguments)}.")
    steps = keywords.get("steps", Settings().steps)
    return OwnTraining(
        steps=int(steps) if is_integer(steps) else Settings().steps,
        trainer=str(name),
        keywords=tuple(
            (key, value.item() if isinstance(value, np.generic) else value) for key, value in keywords.items()
        ),
    )
