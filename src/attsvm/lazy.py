"""Names that load at first use: listed once, below `if TYPE_CHECKING:`, where type checkers read them too."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from typing import Any


def homes(package: str) -> dict[str, str]:
    """The module of every name that a package imports for type checkers; a module's own is the package."""
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def loaded(package: str, name: str, homes: dict[str, str]) -> Any:
    """What a package gives out under a name."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if homes[name] == package:
        return import_module(f"{package}.{name}")
    return getattr(import_module(homes[name]), name)
