"""Functions of the user's own, named as module:function."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
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
    """Hash of the file that a function comes from: with the file the results change."""
    file = getsourcefile(plugin(name, folder))
    return _hash(File(file)) if file else name


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
