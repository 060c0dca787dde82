"""Whether a study is finished and unchanged, found out without loading what computes and draws it."""

from __future__ import annotations

import hashlib
from pathlib import Path as File

from attsvm.fingerprint import code_fingerprint
from attsvm.sweeps.plugins import is_plugin
from attsvm.sweeps.result import OUTPUTS, Sweep

NOTE = ".finished"


def name_of(study: File) -> str:
    """The name of a study: its file's, without dots in front, which alone would be another folder."""
    return study.stem.strip(".") or "study"


def finished(study: File, scale: str, folder: File) -> Sweep | None:
    """The study of a folder, if neither its file nor the code nor what it wrote has changed since."""
    try:
        same = (folder / NOTE).read_text(encoding="utf8") == _state(study, scale, folder)
    except (OSError, ValueError):
        return None
    return Sweep.load(folder) if same else None


def note(study: File, scale: str, done: Sweep) -> None:
    """Remember that a study is finished; one with functions of the user's own may change at any time."""
    from attsvm.sweeps.measure import is_own

    models = set(map(str, done.runs["model"]))
    if not any(map(is_plugin, models)) and not any(map(is_own, done.facts["measures"])):
        (done.folder / NOTE).write_text(_state(study, scale, done.folder), encoding="utf8")


def _state(study: File, scale: str, folder: File) -> str:
    digest = hashlib.sha256(study.read_bytes() + f"{scale}\0{code_fingerprint(())}".encode())
    for name in OUTPUTS:
        about = (folder / name).stat()
        digest.update(f"{name} {about.st_size} {about.st_mtime_ns}\0".encode())
    return digest.hexdigest()
