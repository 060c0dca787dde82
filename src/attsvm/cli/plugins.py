"""Commands and viewers of other packages, which join `attsvm` by their entry points.

[project.entry-points."attsvm.commands"]
sweep = "attsvm_lab.cli.sweep:sweep"        # a command: a function that typer can read
[project.entry-points."attsvm.folders"]
study = "attsvm_lab.cli.sweep:show_study"   # attsvm show FOLDER: (folder, as_json) -> whether it knows it
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path as File
from typing import Any

COMMANDS, FOLDERS = "attsvm.commands", "attsvm.folders"


def commands() -> dict[str, Callable[..., Any]]:
    """The commands of other packages by their names."""
    return {entry.name: entry.load() for entry in entry_points(group=COMMANDS)}


def show_folder(folder: File, as_json: bool) -> bool:
    """Let other packages show a folder: whether one of them knew it."""
    return any(entry.load()(folder, as_json) for entry in entry_points(group=FOLDERS))
