"""Functions of the user's own, named as module:function."""

from __future__ import annotations

import ast
import hashlib
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.machinery import PathFinder
from inspect import getsourcefile
from pathlib import Path as File
from types import ModuleType
from typing import Any

from attsvm.words import WrongWord

_LOADED: dict[str, tuple[File, str]] = {}
"""Modules that were imported from the folder of a study: their files, and the hashes of these at the time."""


_LOCK = threading.RLock()


def is_plugin(name: object) -> bool:
    """Whether a name reads module:function."""
    module, colon, function = str(name).partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def plugin(name: str, folder: str) -> Callable[..., Any]:
    """The function of module:function; the folder of the study is searched first."""
    module, _, function = name.partition(":")
    try:
        with _LOCK:  # the path and the modules are of the whole process
            found = getattr(_module(module, folder), function)
    except (ImportError, AttributeError) as error:
        raise WrongWord(f"{name}: {error}. Put {module}.py beside the study, or on PYTHONPATH.") from None
    if not callable(found):
        raise WrongWord(f"{name} is {found!r}. Pass the name of a function.")
    return found


def source(name: str, folder: str) -> str:
    """Hash of the files that a function comes from: with each of them the results change.

    They are its own, that of the module it was named by, and what these import from beside them; a module
    that is imported by other words than `import` is not seen.
    """
    function, module = plugin(name, folder), name.partition(":")[0]
    own = [getsourcefile(function), getattr(sys.modules.get(module), "__file__", None)]
    files = {File(file) for file in own if file}
    for file in (todo := list(files)):
        new = _beside(file) - files
        files |= new
        todo += new
    return hashlib.sha256("".join(map(_hash, sorted(files))).encode()).hexdigest() if files else name


def _beside(file: File) -> set[File]:
    """The files that a file imports from its folder, or from those above it that make its package."""
    top, found = file.parent, set[File]()
    while (top / "__init__.py").is_file():
        top, found = top.parent, found | {top / "__init__.py"}
    for level, name in _imports(file.read_bytes()):
        at = file.parents[level - 1] if level else top
        for part in name.split("."):
            at = at / part
            found |= {one for one in (at.with_suffix(".py"), at / "__init__.py") if one.is_file()}
    return found


@cache
def _imports(text: bytes) -> frozenset[tuple[int, str]]:
    """What a source imports: how many dots are before a name, and the name."""
    found = set[tuple[int, str]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {(0, one.name) for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.level, ".".join(filter(None, (node.module, one.name)))) for one in node.names}
    return frozenset(found)


# ---------------------------------------------------------------------- which module of that name


def _module(name: str, folder: str) -> ModuleType:
    """The module as it is in the folder now: one of another study, or of an hour ago, may have its name."""
    if not folder:
        return import_module(name)
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    home = File(folder)
    if any(home not in file.parents or told != _hash(file) for file, told in list(_LOADED.values())):
        _forget(*_LOADED)
    top = name.partition(".")[0]
    here = PathFinder.find_spec(top, [folder])
    if here is not None and here.origin != getattr(sys.modules.get(top), "__file__", here.origin):
        _forget(top)
    before = set(sys.modules)
    module = import_module(name)
    for new in set(sys.modules) - before:
        file = File(getattr(sys.modules[new], "__file__", None) or "/")
        if home in file.parents:
            _LOADED[new] = file, _hash(file)
    return module


def _forget(*names: str) -> None:
    for name in names:
        sys.modules.pop(name, None)
        _LOADED.pop(name, None)
    invalidate_caches()


def _hash(file: File) -> str:
    """Of its bytes; "" of a file that is gone."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
