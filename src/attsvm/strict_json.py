"""JSON that every reader accepts: plain numbers, null for what is not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def dumps(record: Any, **options: Any) -> str:
    """The record as JSON, in ASCII unless the options of `json.dumps` say otherwise."""
    return json.dumps(plain(record), allow_nan=False, **options)


def plain(value: Any) -> Any:
    """The value in Python's own numbers, lists and dictionaries; None for NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
