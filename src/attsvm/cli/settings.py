"""The words of `attsvm train`: which belong together, and how a saved run keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path as File
from typing import Any, get_type_hints

import numpy as np

from attsvm._support.options import BadOption
from attsvm.data.path import Path
from attsvm.numbers.files import naming
from attsvm.training.settings import ASKS, OPTIONS, Settings, asks


@dataclass(frozen=True)
class Training(Settings):
    """What a run is trained with: settings as of a study, when it has settled, the draw it starts from."""

    tolerance: float | None = None
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        from attsvm.training.batches import Batches
        from attsvm.training.init import uniform

        start = None if self.seed is None else uniform(self.seed)
        batch = Batches(self.batch, self.seed or 0) if self.batch else None
        return super().arguments() | {"tolerance": self.tolerance, "init": start, "batch": batch}


def chosen(words: Mapping[str, Any]) -> Training:
    """The settings of the options given; one without an effect is refused."""
    settings = Training(**words)
    asked = asks(settings.optimizer)
    for name in OPTIONS:
        if name in words and name not in asked:
            others = " or ".join(rule for rule, taken in ASKS.items() if name in taken)
            raise BadOption(
                f"--{name} has no effect with --optimizer {settings.optimizer}. Drop it, or pass "
                f"--optimizer {others}."
            )
    return settings


def kept(path: Path, settings: Training, v: Any) -> Path:
    """The path with the settings and the head, from which `continued` goes on."""
    words = np.array(json.dumps(asdict(settings)))
    return path.changed(state={**(path.state or {}), "settings": words, "head": np.asarray(v)})


def continued(file: File, words: Mapping[str, Any]) -> tuple[Training, Path, Any]:
    """A saved run, the settings it goes on with, and its head; of the words only `steps` may be new."""
    path = Path.load(file)
    if path.state is None or not {"settings", "head"} <= path.state.keys():
        raise ValueError(
            f"{file} is no run of attsvm train. Go on in Python: attsvm.train(…, resume=Path.load(file))."
        )
    for name in words.keys() - {"steps"}:
        raise BadOption(f"--{name} cannot change with --resume: the run keeps its own. Drop it.")
    with naming(file):
        settings = replace(read_settings(str(path.state["settings"])), **words)
    if settings.steps <= path.index[-1]:
        raise ValueError(f"{file} has taken {path.index[-1]} steps. Pass --steps with a larger number.")
    return settings, path, path.state["head"]


def read_settings(text: str) -> Training:
    """The settings that `kept` wrote, each of the type it should have."""
    try:
        settings = Training(**json.loads(text))
        kinds = get_type_hints(Training).items()
        if not all(isinstance(getattr(settings, name), kind) for name, kind in kinds):
            raise TypeError
    except (ValueError, TypeError):
        raise ValueError("the settings of the run are damaged. Train again.") from None
    return settings
