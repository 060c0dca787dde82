"""The words of `attsvm train`: which belong together, and how a saved run keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path as File
from typing import Any

import numpy as np

from attsvm.files import naming
from attsvm.path import Path
from attsvm.settings import ASKS, Settings
from attsvm.words import WrongWord, one_of


def chosen(words: Mapping[str, Any]) -> Settings:
    """The settings of the options given; one without an effect is refused."""
    settings = Settings(**words)
    asked = one_of("optimizer", settings.optimizer, ASKS)
    for name in ("norm", "lr"):
        if name in words and name not in asked:
            others = " or ".join(rule for rule, asks in ASKS.items() if name in asks)
            raise WrongWord(
                f"--{name} has no effect with --optimizer {settings.optimizer}. Drop it, or pass "
                f"--optimizer {others}."
            )
    return settings


def kept(path: Path, settings: Settings, v: Any) -> Path:
    """The path with the settings and the head, from which `continued` goes on."""
    words = np.array(json.dumps(asdict(settings)))
    return replace(path, state={**(path.state or {}), "settings": words, "head": np.asarray(v)})


def continued(file: File, words: Mapping[str, Any]) -> tuple[Settings, Path, Any]:
    """A saved run, the settings it goes on with, and its head; of the words only `steps` may be new."""
    path = Path.load(file)
    if path.state is None or not {"settings", "head"} <= path.state.keys():
        raise ValueError(
            f"{file} is no run of attsvm train. Go on in Python: attsvm.train(…, resume=Path.load(file))."
        )
    for name in words.keys() - {"steps"}:
        raise WrongWord(f"--{name} cannot change with --resume: the run keeps its own. Drop it.")
    with naming(file):
        settings = replace(_read(str(path.state["settings"])), **words)
    if settings.steps <= path.index[-1]:
        raise ValueError(f"{file} has taken {path.index[-1]} steps. Pass --steps with a larger number.")
    return settings, path, path.state["head"]


def _read(text: str) -> Settings:
    """The settings that `kept` wrote, each of the type it should have."""
    try:
        settings = Settings(**json.loads(text))
        if list(map(type, astuple(settings))) != list(map(type, astuple(Settings()))):
            raise TypeError
    except (ValueError, TypeError):
        raise ValueError("the settings of the run are damaged. Train again.") from None
    return settings
