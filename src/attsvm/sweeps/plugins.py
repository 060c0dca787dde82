"""Functions of the user's own, named as module:function."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsourcefile
from pathlib import Path as File
from typing import Any

from attsvm.words import WrongWord


def is_plugin(name: object) -> bool:
    """Whether a name reads module:function."""
    module, colon, function = str(name).partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def plugin(name: str, folder: str) -> Callable[..., Any]:
    """The function of module:function; the folder of the study is searched first."""
    module, _, function = name.partition(":")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise WrongWord(f"{name}: {error}. Put {module}.py beside the study, or on PYTHONPATH.") from None
    if not callable(found):
        raise WrongWord(f"{name} is {found!r}. Pass the name of a function.")
    return found


def source(name: str, folder: str) -> str:
    """Hash of the file that a function comes from: with the file the results change."""
    file = getsourcefile(plugin(name, folder))
    return hashlib.sha256(File(file).read_bytes()).hexdigest() if file else name
