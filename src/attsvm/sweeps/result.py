"""A finished study: its runs, what they say of every cell, and the files that show it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attsvm import strict_json
from attsvm.replacing import replacing
from attsvm.sweeps.intervals import Estimate
from attsvm.sweeps.seeds import KINDS, estimate
from attsvm.sweeps.store import Columns, read_table, write_csv, write_table

if TYPE_CHECKING:
    from attsvm.sweeps.study import Study

OUTPUTS = ("sweep.html", "cells.csv", "runs.csv", "runs.parquet", "study.json")
"""What a finished study writes into its folder."""

FACTS: Mapping[str, type] = (
    dict.fromkeys(("title", "about", "name", "scale"), str)
    | dict.fromkeys(("parameters", "measures"), list)
    | dict.fromkeys(("show", "wanted"), dict)
)
"""What study.json holds, besides the study itself."""

ROWS = 30
"""Cells that are printed at most; all of them are in cells.csv."""


@dataclass(frozen=True)
class CellResult:
    """A cell's parameters, its number of runs, and each quantity with its interval."""

    words: Mapping[str, Any]
    runs: int
    quantities: Mapping[str, Estimate]


@dataclass(frozen=True, repr=False)
class Sweep:
    """A finished study.

    runs: one row per run, by column: cell, the parameters, seed, stopped, the measures.
    facts: title, about, scale, parameters, measures, show, wanted precision; what study.json holds.
    """

    folder: File
    facts: Mapping[str, Any]
    runs: Columns

    @cached_property
    def cells(self) -> tuple[CellResult, ...]:
        """Shares and means of every cell."""
        edges = [*np.flatnonzero(np.diff(self.runs["cell"], prepend=-1)), len(self.runs["cell"])]
        found = []
        said = {
            n: np.unique(self.runs[n])
            for n in self.facts["measures"]
            if self.runs[n].dtype.kind not in "biuf"
        }
        for a, b in pairwise(edges):
            own = {name: column[a:b] for name, column in self.runs.items()}
            words = {name: own[name][0] for name in self.facts["parameters"] if _told(own[name][0])}
            found.append(CellResult(words, int(b - a), _quantities(own, self.facts["measures"], said)))
        return tuple(found)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The parameters that differ between cells."""
        columns = {name: {_plain(c.words.get(name)) for c in self.cells} for name in self.facts["parameters"]}
        return tuple(name for name, values in columns.items() if len(values) > 1)

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """What has an estimate; kinds that no run ended in are left out."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.quantities)
        return tuple(n for n in names if n not in KINDS or any(c.quantities[n].value > 0 for c in self.cells))

    def write(self) -> list[File]:
        """Write runs.parquet, runs.csv, cells.csv, study.json and sweep.html; returns their files."""
        from attsvm.sweeps.page import page

        made = [self.folder / name for name in OUTPUTS]
        write_table(made[3], self.runs, {})
        write_csv(made[2], self.runs)
        write_csv(made[1], self.table())
        texts = [(made[4], strict_json.dumps(self.facts, indent=1))]
        if self.facts["show"].get("atlas"):
            from attsvm.sweeps import atlas

            told = atlas.record(self)
            made.append(self.folder / "atlas.json")
            texts += [(made[-1], strict_json.dumps(told, indent=0)), (made[0], atlas.page(told))]
        else:
            texts.append((made[0], page(self)))
        for file, text in texts:
            with replacing(file) as part:
                part.write_text(text + "\n", encoding="utf8")
        return made

    def table(self) -> Columns:
        """One row per cell: parameters, runs, and value, low, high of every quantity."""
        columns: dict[str, list[Any]] = {
            n: [c.words.get(n) for c in self.cells] for n in self.facts["parameters"]
        }
        columns["runs"] = [cell.runs for cell in self.cells]
        for name in self.quantities:
            found = [cell.quantities[name] for cell in self.cells]
            columns |= {name: [e.value for e in found], f"{name} low": [e.low for e in found]}
            columns |= {f"{name} high": [e.high for e in found]}
            if any(e.missing for e in found):
                columns[f"{name} missing"] = [e.missing for e in found]
        return {name: as_column(values) for name, values in columns.items()}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Sweep:
        """The study that a folder holds. Raises ValueError where there is none."""
        place = File(folder)
        try:
            facts = json.loads((place / "study.json").read_text(encoding="utf8"))
            runs, _ = read_table(place / "runs.parquet")
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{place} holds no finished study. Pass the folder that attsvm sweep wrote."
            ) from None
        except ValueError as error:
            raise ValueError(f"{place}: {error} {_AGAIN}") from None
        if wrong := _wrong(facts, runs):
            raise ValueError(f"{place / 'study.json'}: {wrong}. {_AGAIN}")
        return cls(place, facts, runs)

    def __str__(self) -> str:
        return f"{self.facts['title']}\n\n{_text(self)}"

    def __repr__(self) -> str:
        return f"Sweep({self.facts['title']!r}: {len(self.cells)} cells, {len(self.runs['cell']):,} runs)"


def assembled(study: Study, seeds: Sequence[range], rows: Sequence[Columns], folder: File) -> Sweep:
    """The runs of all cells in one table, in the order of the study."""
    counts = [len(own) for own in seeds]
    columns: Columns = {"cell": np.repeat(np.arange(len(counts), dtype=np.int32), counts)}
    for name in study.parameters:
        values = as_column([cell.words.get(name) for cell in study.cells])
        columns[name] = np.repeat(values, counts)
    columns["seed"] = np.concatenate([np.arange(own.start, own.stop) for own in seeds])
    columns |= {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    wanted = {k: v for k, v in asdict(study.seeds).items() if k != "begin" and study.seeds.quantity}
    facts: dict[str, Any] = {
        "title": study.title,
        "about": study.about,
        "name": study.name,
        "scale": study.scale,
    }
    facts |= {
        "parameters": list(study.parameters),
        "measures": list(study.measures),
        "show": dict(study.show),
    }
    return Sweep(folder, facts | {"wanted": wanted, "study": study.text}, columns)


def as_column(values: Sequence[Any]) -> NDArray[Any]:
    """Values of one parameter as an array: numbers, words, or both as words; None where there is none."""
    present = [value for value in values if value is not None]
    words = any(isinstance(value, str) for value in present)
    if words and not all(isinstance(value, str) for value in present):
        values = [None if value is None else str(value) for value in values]
    return np.array(values, dtype=object) if len(present) < len(values) else np.array(values)


# ---------------------------------------------------------------------- details

_AGAIN = "It is not what attsvm sweep wrote: run the study again."


def _wrong(facts: Any, runs: Columns) -> str:
    """What is wrong with the facts of a study, in words; nothing where they fit its runs."""
    if not isinstance(facts, dict):
        return f"{facts!r} instead of an object"
    for name, kind in FACTS.items():
        if not isinstance(facts.get(name), kind):
            return f"{name} is {facts.get(name)!r}"
    shown = [value for place, value in facts["show"].items() if place != "atlas"]
    named = [*facts["parameters"], *(word for v in shown for word in (v if isinstance(v, list) else [v]))]
    for word in ("cell", "seed", *named, *facts["measures"]):
        if not (isinstance(word, str) and word in runs):
            return f"{word!r} is no column of runs.parquet"
    wanted = facts["wanted"]
    if wanted and not (isinstance(wanted.get("quantity"), str) and isinstance(wanted.get("width"), float)):
        return f"wanted is {wanted!r}"
    return ""


def _quantities(
    columns: Columns, measures: Sequence[str], said: Mapping[str, NDArray[Any]]
) -> dict[str, Estimate]:
    """said: the words of each measure that answers in words, in any cell."""
    found: dict[str, Estimate] = {}
    for name in measures:
        if name == "kind":
            found |= {kind: estimate(columns, kind) for kind in KINDS}
        elif columns[name].dtype.kind in "biuf":
            found[name] = estimate(columns, name)
        else:  # words of a user's own: the share of each, also where no run of this cell says it
            for word in said[name]:
                found[f"{name} = {word}"] = estimate({"said": columns[name] == word}, "said")
    return found


def _told(value: Any) -> bool:
    return value is not None and value == value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _text(done: Sweep) -> str:
    """The cells as a table for the terminal, parameters that vary first."""
    names = done.varying or done.facts["parameters"][:1]
    heads = [*names, "runs", *done.quantities]
    lines = [
        [*(str(cell.words.get(name, "–")) for name in names), f"{cell.runs:,}"]
        + [str(cell.quantities[q]) if q in cell.quantities else "–" for q in done.quantities]
        for cell in done.cells[:ROWS]
    ]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    text = [
        "  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True))
        for line in [heads, *lines]
    ]
    left = len(done.cells) - ROWS
    return "\n".join(
        [*text, *([f"… and {left:,} more cells in {done.folder / 'cells.csv'}"] if left > 0 else [])]
    )
