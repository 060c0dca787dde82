"""The public names of the package, their arguments and members, one line each.

    python -m tests.public_names > tests/names/0.3.0.txt      # when a version is released

A member is written .name, an argument of the thing itself (name), one of a member .name(argument); arguments
that are given by name only have a star.
"""

import importlib
import inspect
import warnings

from attsvm._support import renamed

PACKAGES = ("", ".claims", ".datasets", ".figures", ".heads", ".jax", ".next_token", ".probe", ".torch")


def public() -> dict[str, list[str]]:
    """The parts of every public name: arguments in their order, then members."""
    found = {}
    warnings.simplefilter("ignore", DeprecationWarning)  # of names that moved
    for package in PACKAGES:
        module = importlib.import_module(f"attsvm{package}")
        names = getattr(module, "__all__", dir(module)) if package else [*dir(module), *renamed.NAMES]
        for name in sorted(name for name in names if not name.startswith("_")):
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                found[f"attsvm{package}.{name}"] = parts(thing)
    return found


def parts(thing: object) -> list[str]:
    told = arguments(thing)
    for name in sorted(members(thing)) if inspect.isclass(thing) else ():
        told.append(f".{name}")
        method = inspect.getattr_static(thing, name, None)
        method = getattr(method, "__func__", method)
        if inspect.isfunction(method):
            told += [f".{name}{each}" for each in arguments(method) if each not in ("(self)", "(cls)")]
    return told


def members(kind: type) -> set[str]:
    """Those that the package itself gives to a class; what others' classes bring along is theirs."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("attsvm")]
    named = {name for base in ours for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in named if not name.startswith("_")}


def arguments(thing: object) -> list[str]:
    try:
        taken = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [f"({'*' if each.kind is each.KEYWORD_ONLY else ''}{each.name})" for each in taken]


def read(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}


if __name__ == "__main__":
    print("\n".join(" ".join([name, *told]) for name, told in public().items()))
