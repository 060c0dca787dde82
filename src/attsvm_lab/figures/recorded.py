"""Records: results that a larger machine computed once, stored in the package as `records/NAME.json`.

`lab/experiments/summary.py` writes them. Each has an entry `made`: machine, versions, commit, command. If the
folder ATTSVM_RECORDS has a file of the same name, it is read instead; `attsvm reproduce --data` writes there.
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path as File
from typing import Any

FOLDER = "ATTSVM_RECORDS"
"""The environment variable with the folder; worker processes inherit it."""


def recorded(name: str) -> dict[str, Any]:
    """The whole record."""
    return _parsed(content(name))


def content(name: str) -> str:
    """The record as it is stored."""
    recomputed = File(os.environ.get(FOLDER, "")) / f"{name}.json"
    if FOLDER in os.environ and recomputed.is_file():
        return recomputed.read_text(encoding="utf8")
    return _packaged(name)


@cache
def _packaged(name: str) -> str:
    return files("attsvm_lab.figures").joinpath("records", f"{name}.json").read_text(encoding="utf8")


@cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def origin(name: str) -> str:
    """The machine, the code and the command that made the record, in one sentence."""
    facts = recorded(name)["made"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"Computed once on {facts['machine']} ({versions}; commit {facts['commit']}): {facts['command']}"


def facts(name: str) -> dict[str, Any]:
    """The fields that all figures of a record share: one size, and one second to draw it."""
    return {"sizes": {"quick": {}, "default": {}, "paper": {}}, "seconds": 1, "record": name}
