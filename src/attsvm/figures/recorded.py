"""What a larger machine computed once, kept in the package as small JSON files: `records/NAME.json`.

`experiments/summary.py` writes them. Each has an entry `made`: machine, versions, commit and command.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def recorded(name: str) -> dict[str, Any]:
    """The whole record."""
    file = files("attsvm.figures").joinpath("records", f"{name}.json")
    return dict(json.loads(file.read_text(encoding="utf8")))


def made(name: str) -> str:
    """In one sentence: on what, by which code, with which command."""
    facts = recorded(name)["made"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"Computed once on {facts['machine']} ({versions}; commit {facts['commit'][:10]}): {facts['command']}"
    )


def facts(name: str) -> dict[str, Any]:
    """What the figures of a record share: it has one size, and drawing it takes a moment."""
    return {"sizes": {"quick": {}, "default": {}, "paper": {}}, "seconds": 1, "recorded": made(name)}
