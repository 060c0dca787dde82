"""Public names that load at first use: a package lists them once, below `if TYPE_CHECKING:`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def defining_modules(package: str) -> dict[str, str]:
    """The module that defines each public name of a package; of a submodule, the package itself."""
    source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names load at first use."""
    modules = defining_modules(package)
    return (lambda name: load(package, name, modules)), (lambda: sorted(modules)), list(modules)


def load(package: str, name: str, modules: dict[str, str]) -> Any:
    """The object that a package exports under this name; modules: the result of `defining_modules`."""
    if name not in modules:
        raise no_attribute(package, name, modules)
    if modules[name] == package:
        return import_module(f"{package}.{name}")
    return getattr(import_module(modules[name]), name)


def no_attribute(package: str, name: str, names: Collection[str]) -> AttributeError:
    """The error for a name that a package does not export."""
    return AttributeError(f"module {package!r} has no attribute {name!r}. {suggestion(name, names)}".rstrip())


def suggestion(name: str, names: Collection[str]) -> str:
    """A question that proposes the closest of the names, with a trailing space; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, names, 1)
    return f"Did you mean {close[0]}? " if close else ""
