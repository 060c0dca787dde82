"""A fitted probe in files: as numbers and JSON that nothing executes, or as one Python file that scores.

The former is a .safetensors file, which `load` reads. The latter is torch/probe.py with the probe's numbers.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from attsvm._support.validation import is_integer
from attsvm.numbers import Values
from attsvm.numbers.archives import DIGEST, Archive, BadFile, Safetensors
from attsvm.numbers.atomic_write import replacing
from attsvm.numbers.files import archive_of, check_header, write_tensors
from attsvm.probe.fitting.features import FeatureMap, Rbf, Same, SideBySide

MAPS: dict[str, type[Same | Rbf]] = {"tokens": Same, "rbf": Rbf}
"""Feature maps by their names in a file."""

FORMAT = "attsvm probe 1"
ARRAYS = ("prompt_", "coef_", "intercept_", "mean_", "scale_")
LAST = "last_"
"""A tensor that only a probe with a head on the last token has: 1 for such a head."""

NUMBERS = ("head_ridge_", "prompt_ridge_", "objective_", "n_iter_", "n_features_in_", "_n_features_out",
           "_fitted_on_sequences")  # fmt: skip
"""Fitted attributes in a file: arrays as tensors, numbers in the header."""

NO_NUMBERS = "PROBE: dict[str, Any] = {}"
"""The line of the file that gets the numbers."""

Arrays = dict[str, Values]
Header = dict[str, Any]
"""The JSON object in the header."""

LONGEST_CLASS, LONGEST_REPR = 1 << 16, 80
"""Bytes that the name of a class may have; letters of a parameter that is not stored."""


class NotStored:
    """Stands for a parameter that a file does not hold, such as a splitter, and shows its repr."""

    def __init__(self, description: str) -> None:
        self.description = str(description)

    def __repr__(self) -> str:
        return self.description


def check_parameters_stored(probe: Any) -> None:
    """Refuse to fit a loaded probe with parameters that its file does not hold."""
    for name, value in probe.get_params().items():
        if isinstance(value, NotStored):
            problem = f"{name} was {value}, which the probe's file does not hold"
            raise ValueError(f"{problem}. Give it again before a fit: probe.set_params({name}=…).")


def save(probe: Any, file: str | os.PathLike[str]) -> Path:
    """Write a fitted probe, and return the file's name, which ends in .safetensors."""
    parameters = {name: _in_python(value) for name, value in probe.get_params().items()}
    stored = {name: value for name, value in parameters.items() if _is_json(value)}
    left_out = sorted(parameters.keys() - stored.keys())
    maps = feature_maps(probe)
    header: Header = {name: getattr(probe, name) for name in NUMBERS} | {
        "parameters": stored,
        "left out": {name: shorten(_without_address(parameters[name]), LONGEST_REPR) for name in left_out},
        "maps": [name for features in maps for name, kind in MAPS.items() if type(features) is kind],
        "kinds": list(probe.kinds_),
        "classes": probe.classes_.tolist(),
        "dtype": probe.classes_.dtype.str,
    }
    if not _is_json(header["classes"]):
        raise ValueError(f"classes of dtype {probe.classes_.dtype} cannot be stored. Use numbers or strings.")
    arrays = {name: getattr(probe, name) for name in ARRAYS} | _map_arrays(maps)
    if probe._weights.slopes.any():
        arrays[LAST] = probe.last_
    tensors = {name: np.asarray(array, "<f8") for name, array in arrays.items()}
    return write_tensors(file, tensors, {"format": FORMAT, "probe": json.dumps(header)})


def load(kind: Any, file: str | os.PathLike[str]) -> Any:
    """The fitted probe of a file that `save` wrote; BadFile if it is none."""
    with archive_of(file, "a file that probe.save(…) wrote") as (_, archive):
        arrays, maps, header = _contents(archive)
        _check(arrays, maps, header)
        names = kind().get_params()
        parameters = {name: value for name, value in header["parameters"].items() if name in names}
        left_out = header["left out"].items()
        parameters |= {name: NotStored(description) for name, description in left_out if name in names}
        if isinstance(parameters.get("class_weight"), list):
            parameters["class_weight"] = dict(parameters["class_weight"])
        probe = kind(**parameters)
        for name, value in (arrays | {name: header[name] for name in NUMBERS}).items():
            setattr(probe, name, value)
        probe.last_ = arrays[LAST] > 0
        probe.features_, probe.kinds_ = _joined(maps), header["kinds"]
        probe.classes_ = np.array(header["classes"], dtype=np.dtype(header["dtype"]))
    probe.path_ = None
    return probe


def _contents(archive: Archive) -> tuple[Arrays, list[FeatureMap], Header]:
    """Arrays, feature maps and the header."""
    metadata = archive.metadata if isinstance(archive, Safetensors) else {}
    if not isinstance(archive, Safetensors) or metadata.get("format") != FORMAT:
        raise BadFile("not a probe. Pass a file written by probe.save(…).")
    if not metadata.keys() <= {"format", "probe", DIGEST}:  # a damaged name would hide the digest
        raise BadFile("the file is damaged (its header has names of no probe). Write it again.")
    archive.verify_digest()
    for name, array_header in archive.headers.items():
        check_header(name, array_header)
    arrays = {name: archive.read(name) for name in ARRAYS}
    heads = arrays["prompt_"].shape[1:]
    arrays[LAST] = archive.read(LAST) if LAST in archive.headers else np.zeros(heads)
    header = json.loads(metadata["probe"])
    return arrays, [_map(kind, i, archive) for i, kind in enumerate(header["maps"])], header


def _check(arrays: Arrays, maps: list[FeatureMap], header: Header) -> None:
    """The shapes fit, the numbers are numbers, and the maps lead from the tokens to the weights."""
    d, h, k = arrays["coef_"].shape
    shapes = {"prompt_": (d, h), "intercept_": (k,), "mean_": (d,), "scale_": (d,), LAST: (h,)}
    wrong = [name for name, shape in shapes.items() if arrays[name].shape != shape or 0 in shape]
    if len(header["classes"]) != max(k, 2):
        wrong.append("classes")
    if wrong:
        raise BadFile(f"{', '.join(wrong)} and coef_ do not fit. Write it again.")
    arrays = arrays | _map_arrays(maps)
    bad = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    bad += [name for name in NUMBERS if not isinstance(header[name], int | float)]
    if bad:
        raise BadFile(f"{bad[0]} has an entry that is NaN, infinite or no number. Write it again.")
    features, width = _joined(maps), int(header["n_features_in_"])
    possible = 0 < width <= sum(array.size for array in arrays.values())  # before memory is allocated
    if not possible or (width if features is None else len(features.transform(np.zeros((1, width)))[0])) != d:
        raise BadFile(f"tokens {width} wide and coef_ do not fit. Write it again.")
    if np.dtype(header["dtype"]).itemsize > LONGEST_CLASS:
        raise BadFile(f"classes of dtype {header['dtype']}. Write it again with shorter names.")


def feature_maps(probe: Any) -> list[FeatureMap]:
    """The feature maps of a fitted probe; none if it attends to the tokens themselves."""
    features = probe.features_
    return features.maps if isinstance(features, SideBySide) else [] if features is None else [features]


def _joined(maps: list[FeatureMap]) -> FeatureMap | None:
    return SideBySide(maps) if len(maps) > 1 else maps[0] if maps else None


def _map_arrays(maps: list[FeatureMap]) -> Arrays:
    """The arrays of all maps by their names in a file."""
    return {f"map {i} {name}": array for i, m in enumerate(maps) for name, array in vars(m).items()}


def _map(kind: str, i: int, archive: Archive) -> FeatureMap:
    """Map i of a file."""
    names = [field.name for field in fields(MAPS[kind])]
    features: FeatureMap = MAPS[kind](**{name: archive.read(f"map {i} {name}") for name in names})
    return features


def _in_python(value: object) -> object:
    """A NumPy number as a Python number, a tuple as a list, a weight per class as pairs."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):  # keys of a JSON object are strings
        return [[_in_python(name), _in_python(weight)] for name, weight in value.items()]
    return list(value) if isinstance(value, tuple) else value


def _without_address(value: object) -> str:
    """The repr of an object without its memory address, so that the same probe gives the same file."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))


def _is_json(value: object) -> bool:
    """Whether JSON gives the same value back."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


# ---------------------------------------------------------------------- one Python file


def export(probe: Any, file: str | os.PathLike[str], layer: int, skip: int) -> Path:
    """The file's name. layer: position on the axis of layers. skip: first tokens that do not count."""
    for name, value in (("layer", layer), ("skip", skip)):
        if not (is_integer(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}. Pass a whole number, 0 or more.")
    path = Path(file)
    if path.suffix != ".py":
        raise ValueError(f"{path} would hold Python. Pass a name that ends in .py.")
    maps = feature_maps(probe)
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
        temporary.write_text(source.replace(NO_NUMBERS, line, 1), encoding="utf8")
    return path


def _texts(arrays: Mapping[str, Values]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes, and float64 in base64."""
    return {
        name: (np.shape(x), base64.b64encode(np.ascontiguousarray(x, "<f8").tobytes()).decode())
        for name, x in arrays.items()
    }
