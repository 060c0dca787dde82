"""Write a fitted probe as one Python file that needs torch alone: torch/probe.py with its numbers."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from attsvm._support.validation import is_integer
from attsvm.numbers import Values
from attsvm.numbers.atomic_write import replacing
from attsvm.probe import saved

EMPTY = "PROBE: dict[str, Any] = {}"
"""The line of the file that gets the numbers."""


def write(probe: Any, file: str | os.PathLike[str], layer: int, skip: int) -> Path:
    """The file's name. layer: position on the axis of layers. skip: first tokens that do not count."""
    for name, value in (("layer", layer), ("skip", skip)):
        if not (is_integer(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}. Pass a whole number, 0 or more.")
    path = Path(file)
    if path.suffix != ".py":
        raise ValueError(f"{path} would hold Python. Pass a name that ends in .py.")
    maps = saved.feature_maps(probe)
    weights = probe._weights
    arrays = {"prompts": weights.prompts, "head": weights.head, "intercept": weights.intercept}
    arrays |= {"centre": probe.mean_, "slopes": weights.slopes}
    content = {
        "layer": layer,
        "skip": skip,
        "width": probe.n_features_in_,
        "arrays": _texts(arrays),
        "maps": [_texts(vars(features)) for features in maps],
    }
    source = files("attsvm.torch").joinpath("probe.py").read_text(encoding="utf8")
    line = f"PROBE: dict[str, Any] = json.loads({json.dumps(content)!r})"
    with replacing(path) as temporary:
        temporary.write_text(source.replace(EMPTY, line, 1), encoding="utf8")
    return path


def _texts(arrays: Mapping[str, Values]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes, and float64 in base64."""
    return {
        name: (np.shape(x), base64.b64encode(np.ascontiguousarray(x, "<f8").tobytes()).decode())
        for name, x in arrays.items()
    }
