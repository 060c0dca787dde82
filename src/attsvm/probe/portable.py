"""A fitted probe in a .safetensors file: numbers and JSON, nothing that is executed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.archives import BadFile
from attsvm.probe.features import Rbf, Together
from attsvm.probe.relu import Relu
from attsvm.probe.separation import Separation

MAP, RELU = ("landmarks", "mean", "scale", "root"), ("mean", "into", "bias")
"""Arrays of a kernel map, and of a trained one."""

FORMAT = "attsvm probe 1"
ARRAYS = ("prompt_", "coef_", "intercept_", "mean_", "scale_")
NUMBERS = ("head_ridge_", "prompt_ridge_", "objective_", "n_iter_", "n_features_in_", "_n_features_out")
"""Fitted attributes that are kept: arrays as tensors, numbers in the header."""


def save(probe: Any, file: str | os.PathLike[str]) -> Path:
    """Write a fitted probe, and return the file's name, which ends in .safetensors."""
    from safetensors.numpy import save_file

    path = Path(file)
    path = path if path.suffix == ".safetensors" else path.with_name(f"{path.name}.safetensors")
    about = {name: getattr(probe, name) for name in NUMBERS if hasattr(probe, name)}
    about |= {"parameters": {name: value for name, value in probe.get_params().items() if _plain(value)}}
    maps = maps_of(probe)
    about |= {"gammas": [one.gamma for one in maps], "together": isinstance(probe.features_, Together)}
    relu = probe.features_ if isinstance(probe.features_, Relu) else None
    about |= {"relu": relu is not None}
    about |= {"classes": probe.classes_.tolist(), "dtype": probe.classes_.dtype.str}
    if not _plain(about["classes"]):
        raise ValueError(f"classes of dtype {probe.classes_.dtype} cannot be stored. Use numbers or strings.")
    part = path.with_name(f".{path.name}.part")
    try:
        arrays = {name: getattr(probe, name) for name in ARRAYS}
        arrays |= {f"map {i} {name}": getattr(one, name) for i, one in enumerate(maps) for name in MAP}
        arrays |= {f"relu {name}": getattr(relu, name) for name in RELU if relu is not None}
        held = {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}
        save_file(held, part, {"format": FORMAT, "probe": json.dumps(about)})
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def load(kind: Any, file: str | os.PathLike[str]) -> Any:
    """The fitted probe of a file that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as stored:
            names = stored.metadata() or {}
            if names.get("format") != FORMAT:
                raise BadFile(f"{os.fspath(file)}: not a probe. Pass a file written by probe.save(…).")
            arrays: dict[str, NDArray[Any]] = {name: stored.get_tensor(name) for name in ARRAYS}
            about = json.loads(names["probe"])
            maps = [
                _map({name: stored.get_tensor(f"map {i} {name}") for name in MAP}, gamma)
                for i, gamma in enumerate(about["gammas"])
            ]
            relu = [stored.get_tensor(f"relu {name}") for name in RELU] if about.get("relu") else None
    except SafetensorError as error:
        raise BadFile(f"{os.fspath(file)}: the file is damaged ({error}). Write it again.") from None
    known = kind().get_params()
    probe = kind(**{name: value for name, value in about["parameters"].items() if name in known})
    d, h, k = arrays["coef_"].shape
    shapes = {"prompt_": (d, h), "intercept_": (k,), "mean_": (d,), "scale_": (d,)}
    wrong = [name for name, shape in shapes.items() if arrays[name].shape != shape]
    if wrong or len(about["classes"]) != max(k, 2):
        what = ", ".join(wrong) or "classes"
        raise BadFile(f"{os.fspath(file)}: {what} and coef_ do not fit. Write it again.")
    for name, value in (arrays | {name: about[name] for name in NUMBERS if name in about}).items():
        setattr(probe, name, value)
    probe.features_ = Together(maps) if about["together"] else maps[0] if maps else None
    if relu is not None:
        probe.features_ = Relu(*relu)
    probe.path_, probe.separation_ = None, Separation(reason="not kept in the file: fit with certify=True")
    probe.classes_ = np.array(about["classes"], dtype=np.dtype(about["dtype"]))
    return probe


def maps_of(probe: Any) -> list[Rbf]:
    """The kernel maps of a fitted probe, none of a linear or trained one."""
    features = getattr(probe, "features_", None)
    return (
        features.maps if isinstance(features, Together) else [features] if isinstance(features, Rbf) else []
    )


def _map(arrays: dict[str, NDArray[Any]], gamma: float) -> Rbf:
    found = Rbf.__new__(Rbf)  # what it would compute is in the file
    vars(found).update(arrays, gamma=float(gamma))
    return found


def _plain(value: Any) -> bool:
    """Whether JSON gives the value back as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
