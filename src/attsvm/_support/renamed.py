"""Public names and modules that were renamed: the old ones work for one version, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = {
    "claims": "attsvm_lab.claims",
    "figures": "attsvm_lab.figures",
    "Heads": "attsvm.MultiHead",
    "told": "attsvm.reported",
    "sweep": "attsvm_lab.sweep",
}
"""Old attributes of attsvm, and the new path of each."""

MODULES = {"attsvm.claims": "attsvm_lab.claims", "attsvm.figures": "attsvm_lab.figures"}
"""Old paths of documented modules, and their new ones."""


def attribute(name: str) -> Any:
    """The object that `attsvm.NAME` was."""
    package, _, new_name = NAMES[name].rpartition(".")
    _warn(f"attsvm.{name}", NAMES[name], stacklevel=4)
    return getattr(import_module(package), new_name)


class Forward(MetaPathFinder, Loader):
    """Imports of renamed modules, such as `from attsvm.claims import claim`, find the new module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for old, new in MODULES.items():
            # Otherwise Python finds the submodule in the folder of the new package and runs it a second time.
            if name.startswith(f"{old}."):
                raise ModuleNotFoundError(f"{name} is {new}{name.removeprefix(old)} now.", name=name)
        return ModuleSpec(name, self) if name in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MODULES[spec.name]
        _warn(spec.name, new, stacklevel=6)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which the import system has overwritten. The module itself has run already."""
        module.__spec__ = getattr(module.__spec__, "loader_state", None)


def _warn(old: str, new: str, stacklevel: int) -> None:
    message = f"{old} is {new} now. Change the import: the old name goes in the next version."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


if not any(isinstance(finder, Forward) for finder in sys.meta_path):
    sys.meta_path.insert(0, Forward())  # before the finder of folders
