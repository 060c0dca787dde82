"""What a claim is: a statement of a paper that can be run, and its broken twin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from attsvm.comparison.evidence import Verdict

Check = Callable[[int], Verdict]
REFUTED = "refuted as recalled"
"""The mark of a statement with a counterexample; its wording is the one that we recall."""


@dataclass(frozen=True)
class Claim:
    """A statement as a function seed → Verdict.

    check: the experiment, named by its conclusion; its docstring gives statement and hypotheses.
    twin: the same experiment with one hypothesis removed, which must not hold; None for a user's check
        without a twin. removed: the hypothesis, in words.
    reference: paper and number; mark: how sure we are that the paper says so ("text", "recalled-H", …).
    chosen_on: the seeds on which its settings were chosen; all other seeds are held out.
    """

    check: Check
    twin: Check | None
    removed: str
    reference: str
    mark: str
    chosen_on: range = range(20)

    @property
    def refuted(self) -> bool:
        """Whether the statement, as we know it, is false: it must be seen to fail, not to hold."""
        return self.mark == REFUTED

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def statement(self) -> str:
        """The first paragraph of the check's docstring, on one line."""
        text = inspect.cleandoc(self.check.__doc__ or "")
        return " ".join(text.split("\n\n")[0].split())

    def __call__(self, seed: int) -> Verdict:
        return self.check(seed)


REGISTERED: dict[tuple[str, str], Claim] = {}
"""All claims by module and name, in the order in which their files were loaded."""


def claim(
    reference: str, mark: str, *, removed: str, twin: Check | Mapping[str, Any], chosen_on: range = range(20)
) -> Callable[[Callable[..., Verdict]], Claim]:
    """Make a claim of the check below, and register it by its name.

        @claim("Somebody 2026, Theorem 1", "text", removed="a fair coin", twin={"heads": 0.9})
        def coins_land_on_heads_half_of_the_time(seed, heads=0.5): ...

    The arguments are the fields of `Claim`; a twin is the check with these arguments, or a check of its own.
    """

    def register(check: Callable[..., Verdict]) -> Claim:
        broken = twin if callable(twin) else partial(check, **twin)
        registered = Claim(check, broken, removed, reference, mark, chosen_on)
        REGISTERED[check.__module__, registered.name] = registered
        return registered

    return register


def as_claim(function: Any) -> Claim:
    """A claim as it is; any other function seed → Verdict as a claim without a twin."""
    if isinstance(function, Claim):
        return function
    name = getattr(function, "__name__", repr(function))
    try:
        inspect.signature(function).bind(0)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} does not take one seed. Write def {name}(seed): … return judge(…)."
        ) from None
    return Claim(function, None, "nothing: it has no twin", "none given", "own")
