"""Where the real data lie: a folder the user names, or the installed data package. Never imported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def find(name: str, folder: Path | None, package: str, inside: str) -> Path:
    """The file `name` of the folder if it is there, else the file `inside` an installed package."""
    if folder is not None and (folder / name).exists():
        return folder / name
    spec = find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations))) / inside
        if path.exists():
            return path
    raise SystemExit(
        f"{name} was not found. Put it in a folder and pass --data FOLDER, or install {package}."
    )
