"""A study: a TOML file, or a dictionary like it, checked and spread out into cells."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path as File
from typing import Any

from attsvm.files import read_text
from attsvm.given import real, whole
from attsvm.sweeps.batch import predicted
from attsvm.sweeps.cell import Cell, as_cell
from attsvm.sweeps.finished import name_of
from attsvm.sweeps.grid import entries, products
from attsvm.sweeps.measure import check, needs_prediction
from attsvm.sweeps.seeds import Seeds, as_seeds
from attsvm.words import WrongWord

KEYS = ("title", "about", "measure", "along", "programs", "seeds", "data", "train", "show", "scale")
SHOW = ("x", "lines", "panels", "atlas")


@dataclass(frozen=True)
class Study:
    """What is to be known: cells, seeds and measures, and how the page draws them.

    text: the study as it was read, with its scale applied, for whoever finds the folder.
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
        """The columns that tell cells apart or are the same for all, in the order of the study."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.words))

    def __str__(self) -> str:
        seeds = f"{len(self.seeds.begin)} seeds" + (" and more" if self.seeds.quantity else "")
        return f"{self.title}: {len(self.cells)} cells, {seeds} each"


def read_study(study: str | os.PathLike[str] | Mapping[str, Any] | Study, scale: str = "default") -> Study:
    """The study of a TOML file, or of a dictionary that reads like one, at a scale.

    Raises ValueError that names what is unknown or impossible, and what is allowed.
    """
    if isinstance(study, Study):
        return study
    if isinstance(study, Mapping):
        return _study(dict(study), "study", os.getcwd(), scale)
    file = File(study)
    with _naming(file):
        try:
            given = tomllib.loads(read_text(file, "a study in TOML; attsvm sweep --example prints one"))
        except tomllib.TOMLDecodeError as error:
            raise WrongWord(f"not TOML: {error}") from None
        return _study(given, name_of(file), str(file.absolute().parent), scale)


def example() -> str:
    """A commented study to begin with."""
    return files("attsvm.sweeps").joinpath("example.toml").read_text(encoding="utf8")


# ---------------------------------------------------------------------- details


@contextmanager
def _naming(file: File) -> Iterator[None]:
    try:
        yield
    except WrongWord as error:
        raise ValueError(f"{file}: {error}") from None


def _study(given: dict[str, Any], name: str, folder: str, scale: str) -> Study:
    _check_keys("the study", given, KEYS)
    scales = given.pop("scale", {})
    if not isinstance(scales, Mapping):
        raise WrongWord("scale is no table. Write [scale.quick] and what changes there.")
    if scale != "default" and scale not in scales:
        raise WrongWord(f"no scale {scale!r}. This study has {', '.join(['default', *scales])}.")
    for named, changes in scales.items():
        _check_keys(f"scale.{named}", changes, [key for key in KEYS if key not in ("scale", "show")])
    given = _over(given, scales.get(scale, {}))
    measures = _along(tuple(entries("measure", given.get("measure", "kind"))), given.get("along", []))
    for measure in measures:
        check(measure)
    shown = given.get("show", {})
    _check_keys("show", shown, SHOW)
    cells = _cells(given, measures, folder)
    known = {word for cell in cells for word in cell.words}
    for place in (place for place in shown if place != "atlas"):
        for word in _listed(shown[place]):
            if word not in known:
                raise WrongWord(f"show.{place} is {word!r}. Pass {', '.join(sorted(known))}.")
    return Study(
        name,
        str(given.get("title", name.replace("_", " ").capitalize())),
        str(given.get("about", "")),
        scale,
        cells,
        measures,
        as_seeds(given.get("seeds", 64), measures),
        shown,
        given,
    )


def _along(measures: tuple[str, ...], shares: Any) -> tuple[str, ...]:
    """The measures, and those of the margin in named norms at shares of the steps too."""
    shares = [] if isinstance(shares, list) and not shares else entries("along", shares)
    wrong = [share for share in shares if not (real(share) and 0 < share <= 1)]
    if wrong:
        raise WrongWord(f"along holds {wrong[0]!r}. Pass shares of the steps, such as [0.01, 0.1].")
    early = [f"{name}@{share:g}" for name in measures if _named_margin(name) for share in shares]
    return tuple(dict.fromkeys([*measures, *early]))


def _named_margin(name: Any) -> bool:
    return str(name).startswith("margin_ratio:") and "@" not in name


def _cells(given: Mapping[str, Any], measures: tuple[str, ...], folder: str) -> tuple[Cell, ...]:
    """Every combination of data and training, those that mean the same only once."""
    if "data" not in given:
        raise WrongWord("no [data]. Name a model and its sizes; attsvm sweep --example shows how.")
    ways = list(products(given.get("train", {}), "train"))
    programs = given.get("programs", 0)
    if not (whole(programs) and programs >= 0):
        raise WrongWord(f"programs is {programs!r}. Pass of how many runs they are solved, 0 for all.")
    cells = (
        as_cell(data, way, measures, folder, programs)
        for data in products(given["data"], "data")
        for way in ways
    )
    found = tuple(dict.fromkeys(cells))
    asked = [name for name in measures if needs_prediction(name)]
    for training, cell in {cell.training: cell for cell in found}.items() if asked else ():
        if predicted(cell) is None:
            told = f"weight {training.weight} with optimizer {training.optimizer}, norm {training.norm}"
            raise WrongWord(f"{asked[0]}: no limit is known for {told}. Name a norm: {asked[0]}:frobenius.")
    return found


def _check_keys(where: str, given: Any, known: Any) -> None:
    if not isinstance(given, Mapping):
        raise WrongWord(f"{where} is {given!r}. Pass a table with {', '.join(known)}.")
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            meant = f"Did you mean {near[0]!r}? " if near else ""
            raise WrongWord(f"{where} has an unknown key {key!r}. {meant}Known are {', '.join(known)}.")


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes; tables data and train are changed key by key, everything else replaced."""
    out = dict(base)
    for key, value in changes.items():
        both = key in ("data", "train") and isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        out[key] = {**base[key], **value} if both else value
        if isinstance(base.get(key), list) and isinstance(value, Mapping):
            out[key] = [{**table, **value} for table in base[key]]  # every one of several tables
    return out


def _listed(value: Any) -> list[str]:
    return [str(word) for word in (value if isinstance(value, list) else [value])]
