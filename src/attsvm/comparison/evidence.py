"""A claim judged by its evidence: measured numbers, their bounds, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

Status = Literal["holds", "fails", "inconclusive", "not applicable"]


@dataclass(frozen=True)
class Evidence:
    """One measured number and its bound; a number without a bound is reported, not judged."""

    what: str
    value: float
    sense: Literal["≥", "≤", ""] = ""
    bound: float = float("nan")

    @property
    def met(self) -> bool:
        if self.sense == "≥":
            return bool(self.value >= self.bound)
        return bool(self.value <= self.bound) if self.sense == "≤" else True

    def __str__(self) -> str:
        bound = f"   (wanted {self.sense} {self.bound:.6g})" if self.sense else ""
        return f"{self.what}: {self.value:.6g}{bound}"


def at_least(what: str, value: Any, bound: float) -> Evidence:
    """Evidence that must reach a bound from above."""
    return Evidence(what, float(value), "≥", float(bound))


def at_most(what: str, value: Any, bound: float) -> Evidence:
    """Evidence that must stay below a bound."""
    return Evidence(what, float(value), "≤", float(bound))


def reported(what: str, value: Any) -> Evidence:
    """Evidence without a bound: a number that is reported, not judged."""
    return Evidence(what, float(value))


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the evidence.

    status: "holds", "fails", "inconclusive" (not met, but the run was still on its way), or
        "not applicable" (a hypothesis is false: `reason` names it).
    evidence: the judged and the reported numbers.
    numbers: arrays per run or record, for plots, which draw all others against the first. What compares a
        direction is NaN where W is zero.
    """

    claim: str
    status: Status
    evidence: tuple[Evidence, ...]
    reason: str = ""
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def holds(self) -> bool:
        return self.status == "holds"

    def __getitem__(self, what: str) -> float:
        return next(e.value for e in self.evidence if e.what == what)

    def plot(self) -> Any:
        """A matplotlib figure of the curves among the numbers."""
        from attsvm.plotting.results import draw_verdict

        return draw_verdict(self)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return "\n".join([f"{self.claim}: {self.status}{reason}", *(f"  {e}" for e in self.evidence)])


def judge(
    claim: str,
    *evidence: Evidence,
    given: Mapping[str, bool] | None = None,
    on_its_way: bool = False,
    numbers: Mapping[str, NDArray[Any]] | None = None,
) -> Verdict:
    """A verdict from evidence.

    given: the hypotheses by name; if one is false the claim is not applicable.
    on_its_way: the numbers that miss their bounds still improve, so the verdict is "inconclusive".
    Raises ValueError if no evidence has a bound: such a claim could not fail.
    """
    numbers = numbers or {}
    false = [hypothesis for hypothesis, true in (given or {}).items() if not true]
    if false:
        return Verdict(claim, "not applicable", evidence, f"hypothesis false: {false[0]}", numbers)
    if not any(e.sense for e in evidence):
        raise ValueError(f"{claim}: no number has a bound, so it could not fail. Pass at_least or at_most.")
    missed = [e.what for e in evidence if not e.met]
    if not missed:
        return Verdict(claim, "holds", evidence, "", numbers)
    status: Status = "inconclusive" if on_its_way else "fails"
    return Verdict(claim, status, evidence, f"not met: {', '.join(missed)}", numbers)
