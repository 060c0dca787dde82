"""Lists and ranges of a study, and their products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from attsvm.words import WrongWord

CELLS = 10**6
"""Values of a range, and combinations of a table, at most: a study of more would not even be read."""

LARGE = 1e300
"""Of which numbers of a range must stay clear: beyond, differences are infinite."""

HOW = 'Pass {from = 2, to = 8, step = 2}, or {from = 0.01, to = 1.0, count = 5, spacing = "log"}'


def entries(name: str, given: Any) -> list[Any]:
    """The values of one key: a single one, a list, or a range; NumPy's numbers as Python's."""
    found = _range(name, given) if isinstance(given, Mapping) else given
    values = list(found) if isinstance(found, (list, tuple, range, np.ndarray)) else [found]
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not values:
        raise WrongWord(f"{name} is an empty list. Pass at least one value.")
    for value in values:
        if not isinstance(value, (bool, int, float, str)) or (isinstance(value, float) and math.isnan(value)):
            raise WrongWord(f"{name} holds {value!r}. Pass numbers or words, a list of them, or a range.")
    return list(dict.fromkeys(values))


def products(tables: Any, name: str) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a table; of several tables, one after the other."""
    for table in tables if isinstance(tables, list) else [tables]:
        if not isinstance(table, Mapping):
            raise WrongWord(f"{name} is {table!r}. Pass a table: [{name}], or several: [[{name}]].")
        spread = {key: entries(f"{name}.{key}", values) for key, values in table.items()}
        count = math.prod(map(len, spread.values()))
        if count > CELLS:
            raise WrongWord(f"{name} has {count:,} combinations. Pass at most {CELLS:,}.")
        for values in product(*spread.values()):
            yield dict(zip(spread, values, strict=True))


def _range(name: str, given: Mapping[str, Any]) -> list[Any]:
    allowed = {"from", "to", "step", "count", "spacing"}
    numbers = [given.get(key) for key in ("from", "to")]
    if (
        set(given) - allowed
        or not all(isinstance(x, (int, float)) and abs(x) < LARGE for x in numbers)
        or ("count" in given and "step" in given)
    ):
        raise WrongWord(f"{name} is {dict(given)}. {HOW}.")
    low, high = given["from"], given["to"]
    if "count" not in given:
        step = given.get("step", 1)
        if not isinstance(step, (int, float)) or not 0 < step < math.inf or high < low:
            raise WrongWord(f"{name}: from {low} to {high} in steps of {step!r} is empty. {HOW}.")
        if (high - low) / step >= CELLS:
            raise WrongWord(f"{name}: from {low} to {high} in steps of {step!r} is too long. {HOW}.")
        count = math.floor((high - low) / step + 1e-9) + 1
        return [_written(low + k * step) for k in range(count)]
    count, spacing = given["count"], given.get("spacing", "linear")
    if (
        not isinstance(count, int)
        or not 1 <= count <= CELLS
        or spacing not in ("linear", "log")
        or (spacing == "log" and min(low, high) <= 0)
    ):
        raise WrongWord(f"{name} is {dict(given)}. {HOW}.")
    spaced = np.linspace if spacing == "linear" else np.geomspace
    inner = [float(x) for x in spaced(low, high, count)][1:-1]
    whole = all(isinstance(x, int) for x in (low, high))
    between = [round(x) if whole else float(f"{x:.6g}") for x in inner]
    first, last = (low, high) if whole else (float(low), float(high))
    return [first, *between, last][:count]


def _written(value: Any) -> Any:
    """A number as one would write it: 0.3, not 0.1 + 2 · 0.1."""
    return float(f"{value:.12g}") if isinstance(value, float) else value
