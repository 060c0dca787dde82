"""A finished study in its folder: the files it writes, and whether they are still up to date.

Nothing here loads what trains or draws: a study that is up to date is shown at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

from attsvm._support import strict_json
from attsvm.numbers.atomic_write import write_text
from attsvm_lab.fingerprint import code_fingerprint
from attsvm_lab.sweeps.plugins import is_plugin, source_files, unloaded_source
from attsvm_lab.sweeps.store import Columns, read_table, write_csv, write_table
from attsvm_lab.sweeps.table import Table

OUTPUTS = ("sweep.html", "cells.csv", "runs.csv", "runs.parquet", "study.json")
"""The files of a finished study in its folder."""

FACTS: Mapping[str, type] = (
    dict.fromkeys(("title", "about", "name", "scale"), str)
    | dict.fromkeys(("parameters", "measures"), list)
    | dict.fromkeys(("show", "wanted"), dict)
)
"""The content of study.json, besides the study itself."""

NOTE = ".finished"
"""The file with the state in which the study was finished."""

RUN_AGAIN = "It is not what attsvm sweep wrote: run the study again."


class Sweep(Table):
    """A finished study: its table, and the files that show it."""

    def write(self) -> list[File]:
        """Write runs.parquet, runs.csv, cells.csv, study.json and sweep.html; returns their files."""
        from attsvm_lab.sweeps.page import page

        files = [self.folder / name for name in OUTPUTS]
        write_table(files[3], self.runs, {})
        write_csv(files[2], self.runs)
        write_csv(files[1], self.table())
        texts = [(files[4], strict_json.dumps(self.facts, indent=1))]
        if self.facts["show"].get("atlas"):
            from attsvm_lab.sweeps import atlas

            record = atlas.record(self)
            files.append(self.folder / "atlas.json")
            texts += [(files[-1], strict_json.dumps(record, indent=0)), (files[0], atlas.page(record))]
        else:
            texts.append((files[0], page(self)))
        for file, text in texts:
            write_text(file, text + "\n")
        return files

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Sweep:
        """The study in a folder. Raises ValueError where there is none."""
        place = File(folder)
        try:
            facts = json.loads((place / "study.json").read_text(encoding="utf8"))
            runs, _ = read_table(place / "runs.parquet")
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{place} holds no finished study. Pass the folder that attsvm sweep wrote."
            ) from None
        except ValueError as error:
            raise ValueError(f"{place}: {error} {RUN_AGAIN}") from None
        if mismatch := _mismatch(facts, runs):
            raise ValueError(f"{place / 'study.json'}: {mismatch}. {RUN_AGAIN}")
        return cls(place, facts, runs)


def name_of(study: File) -> str:
    """The name of a study: its file's, without leading dots, since `..` would be another folder."""
    return study.stem.strip(".") or "study"


def finished(study: File, scale: str, folder: File) -> Sweep | None:
    """The study of a folder, if nothing that it depends on has changed since: see `note`.

    A user's functions are compared by the source of their files, without importing them.
    """
    try:
        record = json.loads((folder / NOTE).read_text(encoding="utf8"))
        names, files = record["functions"], list(map(File, record["files"]))
        unchanged = record["state"] == _state(study, scale, folder, names, files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SyntaxError):
        return None
    return Sweep.load(folder) if unchanged else None


def note(study: File, scale: str, result: Sweep) -> None:
    """Record the state in which a study is finished: its file, the code, its outputs, a user's functions.

    No record where a user's function has no file: it may change at any time.
    """
    names = _user_functions(result)
    by_name = [source_files(name, _folder_of(study)) for name in names]
    if all(by_name):
        files = sorted(set[File]().union(*by_name))
        state = _state(study, scale, result.folder, names, files)
        record = {"state": state, "functions": names, "files": list(map(str, files))}
        write_text(result.folder / NOTE, strict_json.dumps(record) + "\n")


# ---------------------------------------------------------------------- details


def _mismatch(facts: Any, runs: Columns) -> str:
    """How the facts of a study contradict its runs, in words; "" where they fit."""
    if not isinstance(facts, dict):
        return f"{facts!r} instead of an object"
    for name, kind in FACTS.items():
        if not isinstance(facts.get(name), kind):
            return f"{name} is {facts.get(name)!r}"
    shown = [value for place, value in facts["show"].items() if place != "atlas"]
    drawn = [name for value in shown for name in (value if isinstance(value, list) else [value])]
    for name in ("cell", "seed", *facts["parameters"], *drawn, *facts["measures"]):
        if not (isinstance(name, str) and name in runs):
            return f"{name!r} is no column of runs.parquet"
    precision = facts["wanted"]
    if precision and not (
        isinstance(precision.get("quantity"), str) and isinstance(precision.get("width"), float)
    ):
        return f"wanted is {precision!r}"
    return ""


def _user_functions(study: Sweep) -> list[str]:
    """The models, trainers and measures of a study that are named as module:function."""
    from attsvm_lab.sweeps.measure import is_user_function

    columns = (study.runs[name] for name in ("model", "trainer") if name in study.runs)
    named = {str(value) for column in columns for value in column}
    measures = set(filter(is_user_function, study.facts["measures"]))
    return sorted(measures | set(filter(is_plugin, named)))


def _folder_of(study: File) -> str:
    return str(study.absolute().parent)


def _state(study: File, scale: str, folder: File, functions: list[str], files: list[File]) -> str:
    digest = hashlib.sha256(study.read_bytes() + f"{scale}\0{code_fingerprint('sweeps')}".encode())
    digest.update(unloaded_source(functions, files, _folder_of(study)).encode())
    for name in OUTPUTS:
        status = (folder / name).stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
