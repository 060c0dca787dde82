"""The route table: which algorithms solve the programs of which norm."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from attsvm.norms import Entrywise, MaxNorm, Norm, Schatten
from attsvm.norms.capabilities import changes_a_rule
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints


class Route(Protocol):
    """The algorithms of a family of norms: they solve one run of a program to a relative gap near 1e-9.

    first: requests the Frobenius answer, from which most begin: it also knows whether the rows are separable.
    """

    def __call__(self, program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer: ...


ROUTES: dict[type, str | Route] = {
    Entrywise: "attsvm.program.entrywise.route:solve_entrywise",
    Schatten: "attsvm.program.schatten.route:solve_schatten",
    MaxNorm: "attsvm.program.schatten.route:solve_schatten",
}
"""One line per norm: its class, and its route or "module:function", which is imported at first use.

Euclidean norms need no line: `frobenius/route.py` solves them, many runs at once."""


def route_of(norm: Norm) -> Route:
    """The route of a norm's class, or of its base if the class changes no rule of the base."""
    classes = type(norm).__mro__[:1] if changes_a_rule(norm) else type(norm).__mro__
    route = next((ROUTES[kind] for kind in classes if kind in ROUTES), None)
    if route is None:
        raise ValueError(
            f"no program for the norm {norm}. Supported: Entrywise(p) and Schatten(p), "
            "1 ≤ p ≤ ∞, and MaxNorm()."
        )
    if isinstance(route, str):
        module, _, function = route.partition(":")
        route = getattr(import_module(module), function)
    return route
