"""A study: a TOML file, or a dictionary like it, checked and expanded into cells and seeds."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from itertools import product
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm._support.options import SEEDS, BadOption, seed_range
from attsvm._support.validation import is_finite, is_integer
from attsvm.numbers.files import read_text
from attsvm_lab.sweeps.batch import predicted
from attsvm_lab.sweeps.cell import Cell, as_cell
from attsvm_lab.sweeps.intervals import KINDS, bounds, estimate
from attsvm_lab.sweeps.labels import study_title
from attsvm_lab.sweeps.measure import check, needs_prediction
from attsvm_lab.sweeps.result import name_of
from attsvm_lab.sweeps.trainer import OwnTraining

KEYS = ("title", "about", "measure", "along", "programs", "seeds", "data", "train", "show", "scale")
SHOW = ("x", "lines", "panels", "atlas")
PRECISION = ("share", "mean", "width", "confidence", "first", "most")
"""The keys of `seeds` where it is a table."""

CELLS = 10**6
"""Values of a range, and combinations of a table, at most: a larger study could not even be expanded."""

LARGE = 1e300
"""Numbers of a range are smaller: differences of larger ones overflow."""

RARE = 0.01
"""The mean of unbounded numbers needs so many runs that an event of this probability is among them."""

RANGE_HELP = 'Pass {from = 2, to = 8, step = 2}, or {from = 0.01, to = 1.0, count = 5, spacing = "log"}'
SEEDS_HELP = (
    'Pass a number such as 100, a range such as "20-39", or a precision: '
    'seeds = {share = "global", width = 0.02} or {mean = "margin_ratio", width = 0.01}'
)


@dataclass(frozen=True)
class Study:
    """Cells, seeds and measures, and how the page draws them.

    text: the study as it was read, with its scale applied; it is written into the study's folder.
    """

    name: str
    title: str
    about: str
    scale: str
    cells: tuple[Cell, ...]
    measures: tuple[str, ...]
    seeds: Seeds
    show: Mapping[str, Any]
    text: Mapping[str, Any]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The columns of the cells, in the order of the study."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.words))

    def __str__(self) -> str:
        seeds = f"{len(self.seeds.begin)} seeds" + (" and more" if self.seeds.quantity else "")
        return f"{self.title}: {len(self.cells)} cells, {seeds} each"


def read_study(study: str | os.PathLike[str] | Mapping[str, Any] | Study, scale: str = "default") -> Study:
    """The study of a TOML file, or of a dictionary with the same keys, at a scale.

    Raises ValueError that names what is unknown or impossible, and what is allowed.
    """
    if isinstance(study, Study):
        return study
    if isinstance(study, Mapping):
        return _study(dict(study), "study", os.getcwd(), scale)
    file = File(study)
    with _errors_name(file):
        try:
            table = tomllib.loads(read_text(file, "a study in TOML; attsvm sweep --example prints one"))
        except tomllib.TOMLDecodeError as error:
            raise BadOption(f"not TOML: {error}") from None
        return _study(table, name_of(file), str(file.absolute().parent), scale)


def example() -> str:
    """A commented study to begin with."""
    return files("attsvm_lab.sweeps").joinpath("example.toml").read_text(encoding="utf8")


@contextmanager
def _errors_name(file: File) -> Iterator[None]:
    try:
        yield
    except BadOption as error:
        raise ValueError(f"{file}: {error}") from None


def _study(table: dict[str, Any], name: str, folder: str, scale: str) -> Study:
    _check_keys("the study", table, KEYS)
    scales = table.pop("scale", {})
    if not isinstance(scales, Mapping):
        raise BadOption("scale is no table. Write [scale.quick] and what changes there.")
    if scale != "default" and scale not in scales:
        raise BadOption(f"no scale {scale!r}. This study has {', '.join(['default', *scales])}.")
    for scale_name, changes in scales.items():
        _check_keys(f"scale.{scale_name}", changes, [key for key in KEYS if key not in ("scale", "show")])
    table = _changed(table, scales.get(scale, {}))
    measures = _along(tuple(entries("measure", table.get("measure", "kind"))), table.get("along", []))
    for measure in measures:
        check(measure)
    show = table.get("show", {})
    _check_keys("show", show, SHOW)
    cells = _cells(table, measures, folder)
    parameters = {parameter for cell in cells for parameter in cell.words}
    for place in (place for place in show if place != "atlas"):
        for parameter in _as_list(show[place]):
            if parameter not in parameters:
                raise BadOption(f"show.{place} is {parameter!r}. Pass {', '.join(sorted(parameters))}.")
    values = {p: {repr(cell.words.get(p)) for cell in cells} for p in sorted(parameters)}
    varying = [parameter for parameter, different in values.items() if len(different) > 1]
    return Study(
        name,
        str(table.get("title", study_title(name, measures, varying))),
        str(table.get("about", "")),
        scale,
        cells,
        measures,
        as_seeds(table.get("seeds", 64), measures),
        show,
        table,
    )


def _along(measures: tuple[str, ...], shares: Any) -> tuple[str, ...]:
    """The measures, and each margin ratio in a named norm at shares of the steps, too."""
    shares = [] if isinstance(shares, list) and not shares else entries("along", shares)
    invalid = [share for share in shares if not (is_finite(share) and 0 < share <= 1)]
    if invalid:
        raise BadOption(f"along holds {invalid[0]!r}. Pass shares of the steps, such as [0.01, 0.1].")
    early = [f"{name}@{share:g}" for name in measures if _margin_in_named_norm(name) for share in shares]
    return tuple(dict.fromkeys([*measures, *early]))


def _margin_in_named_norm(measure: Any) -> bool:
    return str(measure).startswith("margin_ratio:") and "@" not in measure


def _cells(table: Mapping[str, Any], measures: tuple[str, ...], folder: str) -> tuple[Cell, ...]:
    """Every combination of data and training, equal ones once."""
    if "data" not in table:
        raise BadOption("no [data]. Name a model and its sizes; attsvm sweep --example shows how.")
    trainings = list(products(table.get("train", {}), "train"))
    programs = table.get("programs", 0)
    if not (is_integer(programs) and programs >= 0):
        raise BadOption(f"programs is {programs!r}. Pass of how many runs they are solved, 0 for all.")
    combinations = (
        as_cell(data, training, measures, folder, programs)
        for data in products(table["data"], "data")
        for training in trainings
    )
    cells = tuple(dict.fromkeys(combinations))
    predictions = [name for name in measures if needs_prediction(name)]
    for settings, cell in {cell.training: cell for cell in cells}.items() if predictions else ():
        if predicted(cell) is None:
            training = f"weight {settings.weight} with optimizer {settings.optimizer}, norm {settings.norm}"
            if isinstance(settings, OwnTraining):
                training = settings.trainer
            remedy = f"Name a norm: {predictions[0]}:frobenius."
            raise BadOption(f"{predictions[0]}: no limit is known for {training}. {remedy}")
    return cells


def _check_keys(place: str, table: Any, allowed: Collection[str]) -> None:
    if not isinstance(table, Mapping):
        raise BadOption(f"{place} is {table!r}. Pass a table with {', '.join(allowed)}.")
    for key in table:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, 1)
            suggestion = f"Did you mean {near[0]!r}? " if near else ""
            raise BadOption(
                f"{place} has an unknown key {key!r}. {suggestion}Known are {', '.join(allowed)}."
            )


def _changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes: data and train key by key, every other entry replaced."""
    changed = dict(base)
    for key, value in changes.items():
        both = key in ("data", "train") and isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        changed[key] = {**base[key], **value} if both else value
        if isinstance(base.get(key), list) and isinstance(value, Mapping):
            changed[key] = [{**table, **value} for table in base[key]]  # of several tables, each
    return changed


def _as_list(value: Any) -> list[str]:
    return [str(entry) for entry in (value if isinstance(value, list) else [value])]


# ---------------------------------------------------------------------- seeds


@dataclass(frozen=True)
class Seeds:
    """The seeds of every cell; with a precision, those it begins with.

    quantity: the kind, or the measure, whose interval must be narrower than `width` at this confidence.
    Seeds are doubled until it is, or until there are `most`. The mean of numbers without known bounds needs
    at least so many runs that an event with a probability of 1 % is among them at this confidence.
    """

    begin: range
    quantity: str = ""
    width: float = float("inf")
    confidence: float = 0.95
    most: int = 0

    def extended(self, seeds: range, columns: Mapping[str, NDArray[Any]]) -> range | None:
        """The seeds to run after these, whose measures are the columns; None when they suffice."""
        if not self.quantity or len(seeds) >= self.most or self.precise(columns):
            return None
        return range(seeds.start, seeds.start + min(2 * len(seeds), self.most))

    def precise(self, columns: Mapping[str, NDArray[Any]]) -> bool:
        """Whether the interval is as narrow as requested, from enough runs."""
        if not self.quantity:
            return True
        interval = estimate(columns, self.quantity, self.confidence)
        bounded = self.quantity in KINDS or columns[self.quantity].dtype == bool or bounds(self.quantity)
        enough = bool(bounded) or (1 - RARE) ** interval.runs <= 1 - self.confidence
        return enough and interval.width <= self.width


def as_seeds(value: Any, measures: tuple[str, ...]) -> Seeds:
    """The seeds that a study asks for; errors say what is allowed."""
    if isinstance(value, Mapping):
        return _precision(value, measures)
    if not (is_integer(value) or isinstance(value, str)):
        raise BadOption(f"seeds is {value!r}. {SEEDS_HELP}.")
    return Seeds(seed_range(str(value)))


def _precision(table: Mapping[str, Any], measures: tuple[str, ...]) -> Seeds:
    unknown = set(table) - set(PRECISION)
    if unknown or "width" not in table or ("share" in table) == ("mean" in table):
        odd = f"unknown {', '.join(sorted(unknown))}; known are {', '.join(PRECISION)}"
        raise BadOption(f"seeds: {odd if unknown else dict(table)}. {SEEDS_HELP}.")
    quantity = str(table.get("share", table.get("mean")))
    quantities = [*(KINDS if "kind" in measures else ()), *(name for name in measures if name != "kind")]
    if quantity not in quantities:
        raise BadOption(
            f"seeds asks for the precision of {quantity!r}, which is not measured. "
            f"Pass {', '.join(quantities)}."
        )
    width, confidence = table["width"], table.get("confidence", 0.95)
    if not (is_finite(width) and 0 < width < np.inf):
        raise BadOption(f"width of seeds is {width!r}. Pass a positive number.")
    if not (is_finite(confidence) and 0 < confidence < 1):
        raise BadOption(f"confidence of seeds is {confidence!r}. Pass a positive number below 1.")
    first, most = table.get("first", 64), table.get("most", 100_000)
    if not (is_integer(first) and is_integer(most) and 0 < first <= most <= SEEDS):
        allowed = f"whole numbers, 0 < first ≤ most ≤ {SEEDS:,}"
        raise BadOption(f"seeds: first is {first!r} and most {most!r}. Pass {allowed}.")
    return Seeds(range(first), quantity, float(width), float(confidence), most)


# ---------------------------------------------------------------------- lists, ranges and their products


def entries(name: str, value: Any) -> list[Any]:
    """The values of one key: a single one, a list, or a range; NumPy's numbers as Python's."""
    spread = _range(name, value) if isinstance(value, Mapping) else value
    values = list(spread) if isinstance(spread, (list, tuple, range, np.ndarray)) else [spread]
    values = [entry.item() if isinstance(entry, np.generic) else entry for entry in values]
    if not values:
        raise BadOption(f"{name} is an empty list. Pass at least one value.")
    for entry in values:
        if not isinstance(entry, (bool, int, float, str)) or (isinstance(entry, float) and math.isnan(entry)):
            raise BadOption(f"{name} holds {entry!r}. Pass numbers or words, a list of them, or a range.")
    return list(dict.fromkeys(values))


def products(tables: Any, name: str) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a table; of several tables, one after the other."""
    for table in tables if isinstance(tables, list) else [tables]:
        if not isinstance(table, Mapping):
            raise BadOption(f"{name} is {table!r}. Pass a table: [{name}], or several: [[{name}]].")
        spread = {key: entries(f"{name}.{key}", values) for key, values in table.items()}
        count = math.prod(map(len, spread.values()))
        if count > CELLS:
            raise BadOption(f"{name} has {count:,} combinations. Pass at most {CELLS:,}.")
        for values in product(*spread.values()):
            yield dict(zip(spread, values, strict=True))


def _range(name: str, table: Mapping[str, Any]) -> list[Any]:
    ends = [table.get(key) for key in ("from", "to")]
    if (
        set(table) - {"from", "to", "step", "count", "spacing"}
        or not all(isinstance(x, (int, float)) and abs(x) < LARGE for x in ends)
        or ("count" in table and "step" in table)
    ):
        raise BadOption(f"{name} is {dict(table)}. {RANGE_HELP}.")
    low, high = table["from"], table["to"]
    if "count" not in table:
        step = table.get("step", 1)
        if not isinstance(step, (int, float)) or not 0 < step < math.inf or high < low:
            raise BadOption(f"{name}: from {low} to {high} in steps of {step!r} is empty. {RANGE_HELP}.")
        if (high - low) / step >= CELLS:
            raise BadOption(f"{name}: from {low} to {high} in steps of {step!r} is too long. {RANGE_HELP}.")
        count = math.floor((high - low) / step + 1e-9) + 1
        return [_shortest(low + k * step) for k in range(count)]
    count, spacing = table["count"], table.get("spacing", "linear")
    if (
        not isinstance(count, int)
        or not 1 <= count <= CELLS
        or spacing not in ("linear", "log")
        or (spacing == "log" and min(low, high) <= 0)
    ):
        raise BadOption(f"{name} is {dict(table)}. {RANGE_HELP}.")
    spaced = np.linspace if spacing == "linear" else np.geomspace
    inner = [float(x) for x in spaced(low, high, count)][1:-1]
    integers = all(isinstance(x, int) for x in (low, high))
    rounded = [round(x) if integers else float(f"{x:.6g}") for x in inner]
    first, last = (low, high) if integers else (float(low), float(high))
    return [first, *rounded, last][:count]


def _shortest(value: Any) -> Any:
    """A number with the digits that a person would write: 0.3 instead of 0.1 + 2 · 0.1."""
    return float(f"{value:.12g}") if isinstance(value, float) else value
