"""What a larger machine computed once, kept in the package as small JSON files: `records/NAME.json`.

`experiments/summary.py` writes them. Each has an entry `made`: machine, versions, commit and command. A file
of the same name in the folder ATTSVM_RECORDS is read instead: `attsvm reproduce --data` computes it again.
"""

from __future__ import annotations

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path as File
from typing import Any

FOLDER = "ATTSVM_RECORDS"
"""The environment variable, which worker processes inherit."""


def recorded(name: str) -> dict[str, Any]:
    """The whole record."""
    return _parsed(content(name))


def content(name: str) -> str:
    """The record as it is stored."""
    own = File(os.environ.get(FOLDER, "")) / f"{name}.json"
    if FOLDER in os.environ and own.is_file():
        return own.read_text(encoding="utf8")
    return _packaged(name)


@cache
def _packaged(name: str) -> str:
    return files("attsvm.figures").joinpath("records", f"{name}.json").read_text(encoding="utf8")


@cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def made(name: str) -> str:
    """In one sentence: on what, by which code, with which command."""
    facts = recorded(name)["made"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"Computed once on {facts['machine']} ({versions}; commit {facts['commit']}): {facts['command']}"


def facts(name: str) -> dict[str, Any]:
    """What the figures of a record share: it has one size, and drawing it takes a moment."""
    return {"sizes": {"quick": {}, "default": {}, "paper": {}}, "seconds": 1, "record": name}
