"""Functions of a user, named as module:function."""

from __future__ import annotations

import ast
import hashlib
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.machinery import PathFinder
from inspect import getsourcefile
from pathlib import Path as File
from types import ModuleType
from typing import Any

from attsvm._support.lazy import suggestion
from attsvm._support.options import BadOption

_LOADED: dict[str, tuple[File, str]] = {}
"""Modules imported from the folder of a study: the file of each, and the hash of the file at import."""

_LOCK = threading.RLock()


def is_plugin(name: object) -> bool:
    """Whether a name reads module:function."""
    module, colon, function = str(name).partition(":")
    return bool(colon) and function.isidentifier() and all(map(str.isidentifier, module.split(".")))


def plugin(name: str, folder: str) -> Callable[..., Any]:
    """The function of module:function; the folder of the study is searched first."""
    module, _, function = name.partition(":")
    try:
        with _LOCK:  # sys.path and sys.modules belong to the whole process
            loaded = _module(module, folder)
    except ImportError as error:
        file = f"{module.replace('.', '/')}.py"
        place = f"Put {file} into {folder or 'this folder'}, or on PYTHONPATH."
        exists = not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}.")
        raise BadOption(f"{name}: {error}. {f'{file} imports it.' if exists else place}") from None
    if not hasattr(loaded, function):
        names = [attribute for attribute, value in vars(loaded).items() if callable(value)]
        nearest = suggestion(function, names)
        raise BadOption(f"{name}: {module} has no {function!r}. {nearest}Pass a function of it.")
    attribute = getattr(loaded, function)
    if not callable(attribute):
        raise BadOption(f"{name} is {attribute!r}. Pass the name of a function.")
    return attribute


def source(name: str, folder: str) -> str:
    """Hash of the files on which a function depends: its results may change with each of them.

    They are the file of the function, the file of the named module, and all files that these import from
    their own package or folder. An import without an `import` statement is not recognised.
    """
    files = source_files(name, folder)
    return hashlib.sha256("".join(map(_hash, sorted(files))).encode()).hexdigest() if files else name


def source_files(name: str, folder: str) -> set[File]:
    """The files whose hash is `source`. The function's module is imported."""
    function, module = plugin(name, folder), name.partition(":")[0]
    first = [getsourcefile(function), getattr(sys.modules.get(module), "__file__", None)]
    return _with_imports({File(file) for file in first if file})


def unloaded_source(names: Iterable[str], files: Iterable[File], folder: str) -> str:
    """Hash of functions whose files are known, without an import: it changes where `source` does.

    It covers the bytes of the files, the files that they import now, and where each module is found now.
    """
    lines = [f"{name} {_place(name.partition(':')[0], folder)}" for name in sorted(names)]
    lines += [f"{file} {_hash(file)}" for file in sorted(_with_imports(set(files)))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _place(module: str, folder: str) -> str | None:
    """The file of a module, found without importing it or the packages it is in."""
    places, spec, name = [folder, *sys.path], None, ""
    invalidate_caches()
    for component in module.split("."):
        name = f"{name}.{component}".lstrip(".")
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return None if spec is None else spec.origin


def _with_imports(files: set[File]) -> set[File]:
    """The files, and all that they import from their own package or folder."""
    files = set(files)
    for file in (queue := list(files)):
        new = _imported_files(file) - files
        files |= new
        queue += new
    return files


def _imported_files(file: File) -> set[File]:
    """The files that a file imports from its folder or its package."""
    root, files = file.parent, set[File]()
    while (root / "__init__.py").is_file():
        root, files = root.parent, files | {root / "__init__.py"}
    for level, name in _imports(file.read_bytes()):
        place = file.parents[level - 1] if level else root
        for component in name.split("."):
            place = place / component
            files |= {f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()}
    return files


@cache
def _imports(text: bytes) -> frozenset[tuple[int, str]]:
    """The imports of a source file: the number of dots before each name, and the name."""
    names = set[tuple[int, str]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {(0, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names}
    return frozenset(names)


# ---------------------------------------------------------------------- which module of that name


def _module(name: str, folder: str) -> ModuleType:
    """The module from the current files of the folder.

    sys.modules may hold a module of the same name from another study, or from an older version of the file.
    """
    if not folder:
        return import_module(name)
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    home = File(folder)
    if any(home not in file.parents or digest != _hash(file) for file, digest in list(_LOADED.values())):
        _forget(*_LOADED)
    package = name.partition(".")[0]
    spec = PathFinder.find_spec(package, [folder])
    if spec is not None and spec.origin != getattr(sys.modules.get(package), "__file__", spec.origin):
        _forget(package)
    earlier = set(sys.modules)
    module = import_module(name)
    for new in set(sys.modules) - earlier:
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
    """Hash of a file's bytes; "" where the file does not exist."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
