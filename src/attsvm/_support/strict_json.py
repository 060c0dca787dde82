"""JSON that every parser accepts: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def dumps(record: Any, **options: Any) -> str:
    """The record as JSON; options: those of `json.dumps`."""
    return json.dumps(plain(record), allow_nan=False, **options)


def plain(value: Any) -> Any:
    """The value as Python numbers, strings, lists and dictionaries; None for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
