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

from attsvm import datasets
from attsvm.fingerprint import SHOWING, code_fingerprint
from attsvm.norms import Schatten
from attsvm.settings import Settings
from attsvm.sweeps.measure import KINDS, MEASURES, is_own
from attsvm.sweeps.plugins import is_plugin, plugin, source
from attsvm.tokens import Tokens
from attsvm.words import WrongWord, norm_of, one_of

ELSEWHERE = ("claims", "figures", "heads", "probe", "torch", "next_token")
"""Parts of the package that no study runs."""

TAKEN = (*Settings.__dataclass_fields__, "init", "cell", "seed", "stopped", "runs", *MEASURES, *KINDS)
"""Columns of the table, which no size of the data may be called: one would stand for both."""

Data = tuple[tuple[str, Any], ...]
"""The model and its sizes, by name."""

ALWAYS = ("norm", "lr", "eps", "b2")
"""Words of a training that are told where they have an effect."""

OPTIONAL = ("momentum", "decay", "rank", "separate", "depth", "heads", "across", "batch", "train_head")
"""Words of a training that are told where they are not what goes without saying."""

INIT = 1 << 40
"""Added to a run's seed for its start, which would otherwise repeat the numbers of its data."""

OF_HEADS = 1 << 41
"""Added to it for each further head: its values v are those of another draw."""


@cache
def study_code() -> str:
    """Hash of the code that computes a batch: results are kept for as long as it is the same."""
    shown = [
        f"sweeps/{name}.py"
        for name in ("page", "result", "finished", "store", "study", "sweep", "seeds", "grid", "intervals")
    ]
    apart = (*(part for part in SHOWING if part != "sweeps"), *ELSEWHERE, *shown)
    return code_fingerprint(apart)


@dataclass(frozen=True)
class Cell:
    """data: the model and its sizes. folder: where the user's functions are looked for first.

    shape: n, T, d, e of its tokens. programs: runs whose programs are solved in every norm, 0 for all.
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
        """The cell as columns of the table; what has no effect is absent."""
        told, ways = self.training, {"weight": self.training.weight, "optimizer": self.training.optimizer}
        ways |= {name: getattr(told, name) for name in ALWAYS if name in told.asked}
        more = {name: getattr(told, name) for name in OPTIONAL if name in told.asked}
        ways |= {name: value for name, value in more.items() if value != getattr(Settings(), name)}
        return dict(self.data) | ways | {"loss": told.loss, "steps": told.steps, "init": self.init}

    def key(self, few: bool) -> str:
        """Hash of everything its results depend on but the seed."""
        own = [source(name, self.folder) for name in self.measures if is_own(name)]
        sources = [*own, *filter(None, [model_source(self.data, self.folder)])]
        told = [
            self.words,
            self.measures,
            few,
            study_code(),
            sources,
            *([self.programs] * bool(self.programs)),
        ]
        text = json.dumps(told, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def start(self, seeds: range) -> Any:
        """The init of train()."""
        from attsvm.training.init import gaussian, uniform

        name, _, scale = self.init.partition(":")
        if name == "zero":
            return None
        if name == "ones":
            several, factors = self.training.heads, self.training.factors
            shape = (several, self.shape[2]) if several else self.shape[2]
            return *[np.ones(shape)] * (factors - 1), np.zeros(shape)
        drawn = [INIT + seed for seed in seeds]
        return uniform(drawn) if name == "uniform" else gaussian(drawn, float(scale or 1))

    def batches(self, seeds: range) -> Any:
        """The batch of train(): each run draws its own."""
        from attsvm.training.batches import Batches

        return Batches(self.training.batch, seeds) if self.training.batch else None

    @property
    def decomposes(self) -> bool:
        """Whether every step takes the singular values of W."""
        norm = norm_of(self.training.norm) if "norm" in self.training.asked else None
        return isinstance(norm, Schatten) and norm.p != 2

    @property
    def padded_width(self) -> bool:
        """Whether coordinates of zeros change nothing: they then stay zero in W, and in no norm count."""
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
    chosen = tuple(data.items())
    shape = _shape(chosen, folder, model_source(chosen, folder))
    words = dict(training)
    given = words.pop("init", None)
    settings = _settings(words)
    init = _start(settings) if given is None else str(given)
    _check_init(init, settings)
    if not 0 <= settings.batch <= shape[0]:
        raise WrongWord(f"train.batch is {settings.batch}. Pass 1 to n = {shape[0]}, or 0 for all examples.")
    if settings.weight.startswith("diagonal") and shape[2] != shape[3]:
        needs = f"weight {settings.weight} needs queries as wide as the keys"
        raise WrongWord(f"{needs}, got d={shape[2]}, e={shape[3]}.")
    return Cell(chosen, settings, init, measures, shape, folder, programs)


# ---------------------------------------------------------------------- data


@cache
def _shape(data: Data, folder: str, source: str) -> tuple[int, int, int, int]:
    _check_sizes(dict(data), folder)
    tokens, _ = draw(data, folder, range(1))
    if getattr(tokens, "runs", None) != 1:
        raise WrongWord(
            f"{dict(data)['model']} returned no runs axis for seed=range(0, 1). Return one run per seed."
        )
    return tokens.n, tokens.T, tokens.d, tokens.e


def model_source(data: Data, folder: str) -> str:
    """Hash of the file of a model of the user's own, else nothing: data that are kept are kept with it."""
    model = str(dict(data)["model"])
    return source(model, folder) if is_plugin(model) else ""


def _check_sizes(data: Mapping[str, Any], folder: str) -> None:
    model = str(data["model"])
    if not is_plugin(model):
        known = [name for name in datasets.__all__ if "seed" in signature(getattr(datasets, name)).parameters]
        one_of("data model", model, dict.fromkeys(known))
    parameters = signature(_model(model, folder)).parameters
    names = [name for name in parameters if name != "seed"]
    free = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    for name in data:
        if name in TAKEN:
            raise WrongWord(f"data.{name} is the name of another column of the table. Rename it in {model}.")
        if name != "model" and name not in names and not free:
            raise WrongWord(
                f"data.{name} means nothing to {model}. It takes {', '.join(names) or 'no sizes'}."
            )
    for name in names:
        if (
            name not in data
            and parameters[name].default is Parameter.empty
            and parameters[name].kind not in (2, 4)
        ):
            raise WrongWord(f"data.{name} is missing: {model} takes {', '.join(names)}.")


def _model(model: str, folder: str) -> Any:
    return plugin(model, folder) if is_plugin(model) else getattr(datasets, model)


def draw(data: Data, folder: str, seeds: range, heads: int = 0) -> tuple[Tokens, Any]:
    """Tokens with one run per seed, and the head; of several their values v (runs, heads, c)."""
    if heads:
        shifted = [range(seeds.start + h * OF_HEADS, seeds.stop + h * OF_HEADS) for h in range(heads)]
        drawn = [draw(data, folder, own) for own in shifted]
        if not all(isinstance(v, np.ndarray) for _, v in drawn):
            raise WrongWord("train.heads needs a linear head: return Tokens and an array v.")
        return drawn[0][0], np.stack([np.broadcast_to(v, (len(seeds), v.shape[-1])) for _, v in drawn], 1)
    sizes = dict(data)
    model = str(sizes.pop("model"))
    try:
        tokens, head = _model(model, folder)(**sizes, seed=seeds)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        told = ", ".join(f"{name} = {value!r}" for name, value in sizes.items())
        raise WrongWord(f"{model} cannot be drawn with {told}: {error}") from None
    return tokens, head


# ---------------------------------------------------------------------- training


def _settings(words: Mapping[str, Any]) -> Settings:
    known = list(Settings.__dataclass_fields__)
    for name, value in words.items():
        if name not in known:
            raise WrongWord(f"train.{name} is unknown. Known are {', '.join(known)} and init.")
        kind = type(getattr(Settings(), name))
        fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (
            kind is bool
        )
        if not fits:
            expected = {str: "a word", float: "a number", int: "a whole number", bool: "true or false"}[kind]
            raise WrongWord(f"train.{name} is {value!r}. Pass {expected}.")
    fitting: dict[str, Any] = {
        name: float(value) if isinstance(getattr(Settings(), name), float) else value
        for name, value in words.items()
    }
    settings = Settings(**fitting)
    for name, least in (("steps", 1), ("rank", 0), ("depth", 1), ("heads", 0)):
        if getattr(settings, name) < least:
            raise WrongWord(f"train.{name} is {getattr(settings, name)}. Pass at least {least}.")
    unused = {*ALWAYS, *OPTIONAL} - set(settings.asked)
    settings = Settings(**{name: value for name, value in fitting.items() if name not in unused})
    settings.arguments()
    return settings


def _start(told: Settings) -> str:
    """Where a training starts if nothing is said."""
    if told.factors == 1:
        return "zero"
    return "ones" if told.weight.startswith("diagonal") else "uniform"


def _check_init(init: str, told: Settings) -> None:
    name, colon, scale = init.partition(":")
    number = scale.replace(".", "", 1).isdecimal() and float(scale) > 0
    ones = name == "ones" and told.weight.startswith("diagonal") and told.factors > 1
    known = name in ("zero", "gaussian", "uniform") or ones
    if not known or (colon and not (name == "gaussian" and number)):
        raise WrongWord(
            f"no init {init!r}. Pass zero, uniform, gaussian, or gaussian:0.1 for its scale; for products of "
            "diagonals ones, all factors but the last, which is zero."
        )
    if name == "zero" and told.factors > 1:
        raise WrongWord(
            f"weight {told.weight} cannot start at zero, a saddle that training never leaves. Pass init "
            "uniform."
        )
