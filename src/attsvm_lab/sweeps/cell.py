"""One cell of a study: a data model at one size, trained in one way, and what is measured of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from typing import Any

import numpy as np

from attsvm import Tokens, capabilities_of, datasets
from attsvm._support.options import BadOption, look_up
from attsvm._support.validation import as_integer
from attsvm.cli.settings import Settings
from attsvm.norms.names import norm_of
from attsvm_lab import datasets as neighbours
from attsvm_lab.fingerprint import code_fingerprint
from attsvm_lab.sweeps.intervals import KINDS
from attsvm_lab.sweeps.measure import MEASURES, is_user_function
from attsvm_lab.sweeps.plugins import is_plugin, plugin, source
from attsvm_lab.sweeps.trainer import OwnTraining, own_training

COLUMNS = (*Settings.__dataclass_fields__, "init", "cell", "seed", "stopped", "runs", *MEASURES, *KINDS)
"""Columns of the table. No size of the data may have such a name: both would be in one column."""

MODELS = {name: getattr(home, name) for home in (datasets, neighbours) for name in home.__all__}
"""Data models by the words of a study."""

Data = tuple[tuple[str, Any], ...]
"""The model and its sizes, by name."""

ALWAYS = ("norm", "lr", "eps", "b2")
"""Settings of a training that are columns where they have an effect."""

OPTIONAL = ("momentum", "decay", "rank", "separate", "depth", "heads", "across", "batch", "train_head")
"""Settings of a training that are columns where they differ from their default."""

INIT = 1 << 40
"""Offset from a run's seed to the seed of its start: the start must not repeat the numbers of the data."""

OF_HEADS = 1 << 41
"""Offset between the seeds of two heads, so that each head has values v of its own."""


def study_code() -> str:
    """Hash of the code that computes a batch. Stored results are reused while it is the same."""
    return code_fingerprint("sweeps")


@dataclass(frozen=True)
class Cell:
    """data: the model and its sizes. folder: the first place where a user's functions are searched.

    shape: n, T, d, e of its tokens. programs: how many runs have their programs solved in every norm, 0: all.
    """

    data: Data
    training: Settings
    init: str
    measures: tuple[str, ...]
    shape: tuple[int, int, int, int]
    folder: str = ""
    programs: int = 0

    @property
    def words(self) -> dict[str, Any]:
        """The cell as columns of the table, without the settings that have no effect."""
        settings = self.training
        if isinstance(settings, OwnTraining):
            return dict(self.data) | settings.words
        columns = {name: getattr(settings, name) for name in ("weight", "optimizer")}
        columns |= {name: getattr(settings, name) for name in ALWAYS if name in settings.options}
        optional = {name: getattr(settings, name) for name in OPTIONAL if name in settings.options}
        columns |= {name: value for name, value in optional.items() if value != getattr(Settings(), name)}
        return dict(self.data) | columns | {"loss": settings.loss, "steps": settings.steps, "init": self.init}

    def key(self, one_batch: bool) -> str:
        """Hash of everything that its results depend on, except the seed. one_batch: as for `batches`."""
        sources = [source(name, self.folder) for name in self.measures if is_user_function(name)]
        sources += filter(None, [model_source(self.data, self.folder)])
        if isinstance(self.training, OwnTraining):
            sources.append(source(self.training.trainer, self.folder))
        inputs = [self.words, self.measures, one_batch, study_code(), sources]
        inputs += [self.programs] * bool(self.programs)
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]

    def start(self, seeds: range) -> Any:
        """The init of train()."""
        from attsvm import gaussian, uniform

        name, _, scale = self.init.partition(":")
        if name == "zero":
            return None
        if name == "ones":
            heads, factors = self.training.heads, self.training.factors
            shape = (heads, self.shape[2]) if heads else self.shape[2]
            return *[np.ones(shape)] * (factors - 1), np.zeros(shape)
        shifted = [INIT + seed for seed in seeds]
        return uniform(shifted) if name == "uniform" else gaussian(shifted, float(scale or 1))

    def batches(self, seeds: range) -> Any:
        """The batch of train(): each run draws its own examples."""
        from attsvm import Batches

        return Batches(self.training.batch, seeds) if self.training.batch else None

    @property
    def decomposes(self) -> bool:
        """Whether every step takes the singular values of W."""
        norm = norm_of(self.training.norm) if "norm" in self.training.options else None
        if norm is None:
            return False
        traits = capabilities_of(norm)
        return traits.acts_on == "singular values" and not traits.euclidean

    @property
    def padded_width(self) -> bool:
        """Whether coordinates of zeros change no result: they stay zero in W, and every norm ignores them."""
        return self.training.weight == "full" and self.init == "zero" and not self.decomposes


def as_cell(
    data: Mapping[str, Any],
    training: Mapping[str, Any],
    measures: tuple[str, ...],
    folder: str,
    programs: int = 0,
) -> Cell:
    """A cell, after checking names and sizes; errors say what is allowed."""
    data = {"model": data.get("model", "sphere"), **{k: v for k, v in data.items() if k != "model"}}
    sizes = tuple(data.items())
    shape = _shape(sizes, folder, model_source(sizes, folder))
    options = dict(training)
    if "trainer" in options:
        return Cell(sizes, own_training(options, data, folder), "", measures, shape, folder, programs)
    requested = options.pop("init", None)
    settings = _settings(options)
    init = _default_init(settings) if requested is None else str(requested)
    _check_init(init, settings)
    if not 0 <= settings.batch <= shape[0]:
        raise BadOption(f"train.batch is {settings.batch}. Pass 1 to n = {shape[0]}, or 0 for all examples.")
    if settings.weight.startswith("diagonal") and shape[2] != shape[3]:
        needs = f"weight {settings.weight} needs queries as wide as the keys"
        raise BadOption(f"{needs}, got d={shape[2]}, e={shape[3]}.")
    return Cell(sizes, settings, init, measures, shape, folder, programs)


# ---------------------------------------------------------------------- data


@cache
def _shape(data: Data, folder: str, source: str) -> tuple[int, int, int, int]:
    _check_sizes(dict(data), folder)
    tokens, _ = draw(data, folder, range(1))
    if getattr(tokens, "runs", None) != 1:
        raise BadOption(
            f"{dict(data)['model']} returned no runs axis for seed=range(0, 1). Return one run per seed."
        )
    return tokens.n, tokens.T, tokens.d, tokens.e


def model_source(data: Data, folder: str) -> str:
    """Hash of the file of a user's model, "" of a data set of attsvm: part of the key of stored results."""
    model = str(dict(data)["model"])
    return source(model, folder) if is_plugin(model) else ""


def _check_sizes(data: Mapping[str, Any], folder: str) -> None:
    model = str(data["model"])
    if not is_plugin(model):
        drawn = [name for name, draw in MODELS.items() if "seed" in signature(draw).parameters]
        look_up("data model", model, dict.fromkeys(drawn))
    parameters = signature(_model(model, folder)).parameters
    names = [name for name in parameters if name != "seed"]
    free = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    for name in data:
        if name in COLUMNS:
            raise BadOption(f"data.{name} is the name of another column of the table. Rename it in {model}.")
        if name != "model" and name not in names and not free:
            raise BadOption(
                f"data.{name} means nothing to {model}. It takes {', '.join(names) or 'no sizes'}."
            )
    for name in names:
        if (
            name not in data
            and parameters[name].default is Parameter.empty
            and parameters[name].kind not in (2, 4)
        ):
            raise BadOption(f"data.{name} is missing: {model} takes {', '.join(names)}.")


def _model(model: str, folder: str) -> Any:
    return plugin(model, folder) if is_plugin(model) else MODELS[model]


def draw(data: Data, folder: str, seeds: range, heads: int = 0) -> tuple[Tokens, Any]:
    """Tokens with one run per seed, and the head; for several heads, their values v (runs, heads, c)."""
    if heads:
        shifted = [range(seeds.start + h * OF_HEADS, seeds.stop + h * OF_HEADS) for h in range(heads)]
        draws = [draw(data, folder, head_seeds) for head_seeds in shifted]
        if not all(isinstance(v, np.ndarray) for _, v in draws):
            raise BadOption("train.heads needs a linear head: return Tokens and an array v.")
        return draws[0][0], np.stack([np.broadcast_to(v, (len(seeds), v.shape[-1])) for _, v in draws], 1)
    sizes = dict(data)
    model = str(sizes.pop("model"))
    try:
        tokens, head = _model(model, folder)(**sizes, seed=seeds)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        listed = ", ".join(f"{name} = {value!r}" for name, value in sizes.items())
        raise BadOption(f"{model} cannot be drawn with {listed}: {error}") from None
    return tokens, head


# ---------------------------------------------------------------------- training


def _settings(options: Mapping[str, Any]) -> Settings:
    names = list(Settings.__dataclass_fields__)
    for name, value in options.items():
        if name not in names:
            raise BadOption(f"train.{name} is unknown. Known are {', '.join(names)} and init.")
        kind = type(getattr(Settings(), name))
        value = as_integer(value) if kind is int else value
        fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (
            kind is bool
        )
        if not fits:
            expected = {str: "a word", float: "a number", int: "a whole number", bool: "true or false"}[kind]
            raise BadOption(f"train.{name} is {value!r}. Pass {expected}.")
    converted: dict[str, Any] = {
        name: float(value) if isinstance(getattr(Settings(), name), float) else as_integer(value)
        for name, value in options.items()
    }
    settings = Settings(**converted)
    for name, least in (("steps", 1), ("rank", 0), ("depth", 1), ("heads", 0)):
        if getattr(settings, name) < least:
            raise BadOption(f"train.{name} is {getattr(settings, name)}. Pass at least {least}.")
    unused = {*ALWAYS, *OPTIONAL} - set(settings.options)
    settings = Settings(**{name: value for name, value in converted.items() if name not in unused})
    settings.arguments()
    return settings


def _default_init(settings: Settings) -> str:
    if settings.factors == 1:
        return "zero"
    return "ones" if settings.weight.startswith("diagonal") else "uniform"


def _check_init(init: str, settings: Settings) -> None:
    name, colon, scale = init.partition(":")
    number = scale.replace(".", "", 1).isdecimal() and float(scale) > 0
    unit = name == "ones" and settings.weight.startswith("diagonal") and settings.factors > 1
    valid = name in ("zero", "gaussian", "uniform") or unit
    if not valid or (colon and not (name == "gaussian" and number)):
        raise BadOption(
            f"no init {init!r}. Pass zero, uniform, gaussian, or gaussian:0.1 for its scale; for products of "
            "diagonals ones, all factors but the last, which is zero."
        )
    if name == "zero" and settings.factors > 1:
        raise BadOption(
            f"weight {settings.weight} cannot start at zero, a saddle that training never leaves. Pass init "
            "uniform."
        )
