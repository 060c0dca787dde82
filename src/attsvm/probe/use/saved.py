"""A fitted probe in a .safetensors file: numbers and JSON, nothing that is executed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from attsvm.numbers import Values
from attsvm.numbers.archives import DIGEST, Archive, BadFile, Safetensors
from attsvm.numbers.files import archive_of, check_header, write_tensors
from attsvm.probe.fitting.features import FeatureMap, Rbf, Same, Together
from attsvm.probe.fitting.relu import Relu
from attsvm.probe.reading.separation import Separation

MAPS: dict[str, type[Same | Rbf | Relu]] = {"tokens": Same, "rbf": Rbf, "relu": Relu}
"""Maps of features by their names in a file."""

FORMAT = "attsvm probe 1"
ARRAYS = ("prompt_", "coef_", "intercept_", "mean_", "scale_")
NUMBERS = ("head_ridge_", "prompt_ridge_", "objective_", "n_iter_", "n_features_in_", "_n_features_out")
"""Fitted attributes that are kept: arrays as tensors, numbers in the header."""

Arrays = dict[str, Values]
Header = dict[str, Any]
"""What JSON holds."""

LONGEST = 1 << 16
"""Bytes that the name of a class may have."""


LONGEST_TOLD = 80
"""Letters of a parameter that is not kept."""


class NotKept:
    """In the place of a parameter that a file does not hold, such as a splitter: what it was, in words."""

    def __init__(self, told: str) -> None:
        self.told = str(told)

    def __repr__(self) -> str:
        return self.told


def check_kept(probe: Any) -> None:
    """Refuse to fit with parameters that a file has left out: others would take their place."""
    for name, value in probe.get_params().items():
        if isinstance(value, NotKept):
            what = f"{name} was {value}, which the probe's file does not hold"
            raise ValueError(f"{what}. Give it again before a fit: probe.set_params({name}=…).")


def save(probe: Any, file: str | os.PathLike[str]) -> Path:
    """Write a fitted probe, and return the file's name, which ends in .safetensors."""
    about = {name: getattr(probe, name) for name in NUMBERS}
    given = {name: _in_python(value) for name, value in probe.get_params().items()}
    about |= {"parameters": {name: value for name, value in given.items() if _plain(value)}}
    left_out = sorted(given.keys() - about["parameters"].keys())
    about |= {"left out": {name: shorten(_without_address(given[name]), LONGEST_TOLD) for name in left_out}}
    maps = maps_of(probe)
    about |= {"maps": [name for one in maps for name, kind in MAPS.items() if type(one) is kind]}
    about |= {"kinds": list(probe.kinds_)}
    about |= {"classes": probe.classes_.tolist(), "dtype": probe.classes_.dtype.str}
    if not _plain(about["classes"]):
        raise ValueError(f"classes of dtype {probe.classes_.dtype} cannot be stored. Use numbers or strings.")
    arrays = {name: getattr(probe, name) for name in ARRAYS}
    for i, one in enumerate(maps):
        arrays |= {f"map {i} {name}": array for name, array in vars(one).items()}
    held = {name: np.asarray(array, "<f8") for name, array in arrays.items()}
    return write_tensors(file, held, {"format": FORMAT, "probe": json.dumps(about)})


def load(kind: Any, file: str | os.PathLike[str]) -> Any:
    """The fitted probe of a file that `save` wrote; BadFile where it is none."""
    with archive_of(file) as (_, archive):
        arrays, maps, about = _contents(archive)
        _check(arrays, maps, about)
        known = kind().get_params()
        given = {name: value for name, value in about["parameters"].items() if name in known}
        given |= {name: NotKept(told) for name, told in about.get("left out", {}).items() if name in known}
        if isinstance(given.get("class_weight"), list):
            given["class_weight"] = dict(given["class_weight"])
        probe = kind(**given)
        for name, value in (arrays | {name: about[name] for name in NUMBERS if name in about}).items():
            setattr(probe, name, value)
        probe.features_, probe.kinds_ = _side_by_side(maps), about["kinds"]
        probe.classes_ = np.array(about["classes"], dtype=np.dtype(about["dtype"]))
    probe.path_, probe.separation_ = None, Separation(reason="not kept in the file: fit with certify=True")
    return probe


def _contents(archive: Archive) -> tuple[Arrays, list[FeatureMap], Header]:
    """Arrays, maps of features, and what the header says."""
    metadata = archive.metadata if isinstance(archive, Safetensors) else {}
    if not isinstance(archive, Safetensors) or metadata.get("format") != FORMAT:
        raise BadFile("not a probe. Pass a file written by probe.save(…).")
    if not metadata.keys() <= {"format", "probe", DIGEST}:  # a damaged name hides the digest
        raise BadFile("the file is damaged (its header has names of no probe). Write it again.")
    archive.verify_digest()
    for name, header in archive.headers.items():
        check_header(name, header)
    arrays = {name: archive.read(name) for name in ARRAYS}
    about = json.loads(metadata["probe"])
    return arrays, [_map(kind, i, archive) for i, kind in enumerate(about["maps"])], about


def _check(arrays: Arrays, maps: list[FeatureMap], about: Header) -> None:
    """The shapes fit, the numbers are numbers, and the maps lead from the tokens to the weights."""
    d, h, k = arrays["coef_"].shape
    shapes = {"prompt_": (d, h), "intercept_": (k,), "mean_": (d,), "scale_": (d,)}
    wrong = [name for name, shape in shapes.items() if arrays[name].shape != shape or 0 in shape]
    if len(about["classes"]) != max(k, 2):
        wrong.append("classes")
    if wrong:
        raise BadFile(f"{', '.join(wrong)} and coef_ do not fit. Write it again.")
    finite = arrays | {f"map {i} {name}": a for i, m in enumerate(maps) for name, a in vars(m).items()}
    bad = [name for name, array in finite.items() if not np.isfinite(array).all()]
    bad += [name for name in NUMBERS if not isinstance(about.get(name, 0), int | float)]
    if bad:
        raise BadFile(f"{bad[0]} has an entry that is NaN, infinite or no number. Write it again.")
    features, width = _side_by_side(maps), int(about["n_features_in_"])
    known = 0 < width <= sum(array.size for array in finite.values())
    if not known or (width if features is None else len(features.transform(np.zeros((1, width)))[0])) != d:
        raise BadFile(f"tokens {width} wide and coef_ do not fit. Write it again.")
    if np.dtype(about["dtype"]).itemsize > LONGEST:
        raise BadFile(f"classes of dtype {about['dtype']}. Write it again with shorter names.")


def _side_by_side(maps: list[FeatureMap]) -> FeatureMap | None:
    return Together(maps) if len(maps) > 1 else maps[0] if maps else None


def maps_of(probe: Any) -> list[FeatureMap]:
    """The maps of a fitted probe that stand side by side, none where it attends to the tokens themselves."""
    one = probe.features_
    return one.maps if isinstance(one, Together) else [] if one is None else [one]


def _map(kind: str, i: int, archive: Archive) -> FeatureMap:
    """Map i of a file."""
    names = [field.name for field in fields(MAPS[kind])]
    found: FeatureMap = MAPS[kind](**{name: archive.read(f"map {i} {name}") for name in names})
    return found


def _in_python(value: object) -> object:
    """A number of NumPy's as Python's, a tuple as the list that JSON knows, a weight per class as pairs."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):  # the keys of JSON's own are text
        return [[_in_python(name), _in_python(weight)] for name, weight in value.items()]
    return list(value) if isinstance(value, tuple) else value


def _without_address(value: object) -> str:
    """The repr of an object without its place in memory: the same probe gives the same file."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))


def _plain(value: object) -> bool:
    """Whether JSON gives the value back as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
