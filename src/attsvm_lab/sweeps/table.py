"""The table of a finished study: one row per run, and the estimates of every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm_lab.sweeps.intervals import KINDS, Estimate, estimate
from attsvm_lab.sweeps.store import Columns

ROWS = 30
"""Cells that are printed at most; all of them are in cells.csv."""


@dataclass(frozen=True)
class CellResult:
    """A cell's parameters (`words`), its number of runs, and each quantity with its interval."""

    words: Mapping[str, Any]
    runs: int
    quantities: Mapping[str, Estimate]


@dataclass(frozen=True, repr=False)
class Table:
    """All runs of a study, and their estimates cell by cell.

    runs: one row per run, by column: cell, the parameters, seed, stopped, the measures.
    facts: title, about, scale, parameters, measures, show, wanted precision, bounds of own measures; the
        content of study.json.
    folder: where the files of the study are.
    """

    folder: File
    facts: Mapping[str, Any]
    runs: Columns

    @property
    def rows_of_cells(self) -> list[slice]:
        """The rows of each cell in `runs`."""
        edges = [*np.flatnonzero(np.diff(self.runs["cell"], prepend=-1)), len(self.runs["cell"])]
        return [slice(start, stop) for start, stop in pairwise(edges)]

    @cached_property
    def cells(self) -> tuple[CellResult, ...]:
        """Shares and means of every cell."""
        cells = []
        measures = self.facts["measures"]
        answers = {n: np.unique(self.runs[n]) for n in measures if self.runs[n].dtype.kind not in "biuf"}
        for rows in self.rows_of_cells:
            columns = {name: column[rows] for name, column in self.runs.items()}
            first = {name: columns[name][0] for name in self.facts["parameters"]}
            present = {name: value for name, value in first.items() if value is not None and value == value}
            cells.append(
                CellResult(
                    present,
                    int(rows.stop - rows.start),
                    _quantities(columns, measures, answers, self.facts.get("bounds", {})),
                )
            )
        return tuple(cells)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The parameters that differ between cells."""
        columns = {name: {_plain(c.words.get(name)) for c in self.cells} for name in self.facts["parameters"]}
        return tuple(name for name, values in columns.items() if len(values) > 1)

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """The names of all estimates, without the kinds in which no run ended."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.quantities)
        return tuple(n for n in names if n not in KINDS or any(c.quantities[n].value > 0 for c in self.cells))

    def table(self) -> Columns:
        """One row per cell: parameters, runs, and value, low, high of every quantity."""
        columns: dict[str, list[Any]] = {
            n: [c.words.get(n) for c in self.cells] for n in self.facts["parameters"]
        }
        columns["runs"] = [cell.runs for cell in self.cells]
        for name in self.quantities:
            estimates = [cell.quantities[name] for cell in self.cells]
            columns |= {name: [e.value for e in estimates], f"{name} low": [e.low for e in estimates]}
            columns |= {f"{name} high": [e.high for e in estimates]}
            if any(e.missing for e in estimates):
                columns[f"{name} missing"] = [e.missing for e in estimates]
        return {name: as_column(values) for name, values in columns.items()}

    def __str__(self) -> str:
        return f"{self.facts['title']}\n\n{_text(self)}"

    def __repr__(self) -> str:
        return f"Sweep({self.facts['title']!r}: {len(self.cells)} cells, {len(self.runs['cell']):,} runs)"


def as_column(values: Sequence[Any]) -> NDArray[Any]:
    """Values of one parameter as an array: numbers, words, or both as words; None where it is absent."""
    present = [value for value in values if value is not None]
    any_word = any(isinstance(value, str) for value in present)
    if any_word and not all(isinstance(value, str) for value in present):
        values = [None if value is None else str(value) for value in values]
    return np.array(values, dtype=object) if len(present) < len(values) else np.array(values)


# ---------------------------------------------------------------------- details


def _quantities(
    columns: Columns,
    measures: Sequence[str],
    answers: Mapping[str, NDArray[Any]],
    bounds: Mapping[str, tuple[float, float]],
) -> dict[str, Estimate]:
    """answers: of each measure that returns words, all words in any cell. bounds: those of own measures."""
    estimates: dict[str, Estimate] = {}
    for name in measures:
        if name == "kind":
            estimates |= {kind: estimate(columns, kind) for kind in KINDS}
        elif columns[name].dtype.kind in "biuf":
            low_high = bounds.get(name)
            estimates[name] = estimate(
                columns, name, limits=None if low_high is None else (low_high[0], low_high[1])
            )
        else:  # a user's measure: the share of each word, also of those that no run of this cell returned
            for answer in answers[name]:
                estimates[f"{name} = {answer}"] = estimate({"equal": columns[name] == answer}, "equal")
    return estimates


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _text(study: Table) -> str:
    """The cells as a table for the terminal, parameters that vary first."""
    names = study.varying or study.facts["parameters"][:1]
    heads = [*names, "runs", *study.quantities]
    lines = [
        [*(str(cell.words.get(name, "–")) for name in names), f"{cell.runs:,}"]
        + [str(cell.quantities[q]) if q in cell.quantities else "–" for q in study.quantities]
        for cell in study.cells[:ROWS]
    ]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    text = ["  ".join(map(str.rjust, line, widths)) for line in [heads, *lines]]
    omitted = len(study.cells) - ROWS
    if omitted > 0:
        text.append(f"… and {omitted:,} more cells in {study.folder / 'cells.csv'}")
    return "\n".join(text)
