"""Run claims and their twins over seeds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from attsvm.comparison.evidence import Evidence, Verdict
from attsvm_lab.claims import by_module
from attsvm_lab.claims.claim import Check, Claim
from attsvm_lab.workers import using


@dataclass(frozen=True)
class Row:
    """One claim over several seeds.

    verdicts, twins: the statuses, one per seed. fresh: the number of held-out seeds. evidence: each judged or
        reported number of the check, as the median over the seeds with its bound. reasons: for the seeds on
        which the claim does not hold.
    seconds: processor time of all checks and twins, compilation included.
    refuted: the statement is known to be false, and may fail.
    """

    name: str
    seeds: tuple[int, ...]
    verdicts: tuple[str, ...]
    twins: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    reasons: tuple[str, ...]
    seconds: float
    fresh: int = 0
    refuted: bool = False

    @property
    def held(self) -> int:
        return self.verdicts.count("holds")

    @property
    def detected(self) -> int:
        """Seeds on which the broken twin applies and does not hold: one that does not apply shows nothing."""
        return sum(status in ("fails", "inconclusive") for status in self.twins)

    def __str__(self) -> str:
        holds, twins = f"{self.held}/{len(self.verdicts)}", f"{self.detected}/{len(self.twins)}"
        fresh = f"{self.fresh}/{len(self.seeds)}"
        twin = f"twin detected {twins:>5}" if self.twins else "without a twin     "
        facts = f"holds {holds:>5}   {twin}   held-out seeds {fresh:>5}"
        return f"{self.name:<75} {facts}   {self.seconds:6.1f} s"


def run(
    names: Iterable[str | Claim] | None = None, seeds: Sequence[int] = (0,), executor: Executor | None = None
) -> list[Row]:
    """Run the named claims (all by default) and their twins on the seeds, in the order of the table.

    Each paper's claims share compiled programs and cached runs, so a paper is one task.
    names: of claims of the package; a user's Claim is run after those, in this process.
    executor: where the papers run; worker processes by default.
    """
    requested = None if names is None else list(names)
    user_claims = [claim for claim in requested or () if isinstance(claim, Claim)]
    tasks = _tasks(requested if requested is None else [name for name in requested if isinstance(name, str)])
    seed_tuple = tuple(int(seed) for seed in seeds)
    if not seed_tuple:
        raise ValueError("seeds is empty. Pass at least one seed.")
    if not tasks:
        return [_run_claim(claim, seed_tuple) for claim in user_claims]
    with using(executor, len(tasks)) as pool:
        jobs = [pool.submit(_run_module, *task, seed_tuple) for task in tasks]
        rows = [row for job in jobs for row in job.result()]
    return rows + [_run_claim(claim, seed_tuple) for claim in user_claims]


def _tasks(names: Iterable[str] | None) -> list[tuple[str, tuple[str, ...]]]:
    every = {module: tuple(claim.name for claim in group) for module, group in by_module().items()}
    if names is None:
        return list(every.items())
    requested = list(names)
    unknown = set(requested) - {name for group in every.values() for name in group}
    if unknown:
        raise ValueError(
            f"no claim is named {', '.join(sorted(unknown))}. See attsvm_lab.claims.claims for all."
        )
    requested_names = {
        module: tuple(name for name in group if name in requested) for module, group in every.items()
    }
    return [(module, group) for module, group in requested_names.items() if group]


def _run_module(module: str, names: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    return [_run_claim(claim, seeds) for claim in by_module()[module] if claim.name in names]


def _run_claim(claim: Claim, seeds: Sequence[int]) -> Row:
    began = time.process_time()
    # Check and twin of one seed in turn: they often judge the same cached run.
    both = [claim.check] if claim.twin is None else [claim.check, claim.twin]
    verdicts = [[_verdict(claim.name, run, seed) for run in both] for seed in seeds]
    checks = [check for check, *_ in verdicts]
    return Row(
        claim.name,
        tuple(seeds),
        tuple(check.status for check in checks),
        tuple(twin.status for _, *twins in verdicts for twin in twins),
        _medians(checks),
        tuple(f"seed {s}: {c.reason}" for s, c in zip(seeds, checks, strict=True) if not c.holds),
        time.process_time() - began,
        sum(seed not in claim.chosen_on for seed in seeds),
        claim.refuted,
    )


def _verdict(name: str, check: Check, seed: int) -> Verdict:
    """The verdict; "not applicable" if the experiment cannot be set up, as where NotSeparable is raised."""
    try:
        verdict = check(seed)
    except ValueError as error:
        return Verdict(name, "not applicable", (), f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{name} returned {verdict!r}. Return a verdict: judge(statement, evidence, …).")
    return verdict


def _medians(verdicts: Sequence[Verdict]) -> tuple[Evidence, ...]:
    shown = next((v.evidence for v in verdicts if v.evidence), ())
    values = {e.what: [f.value for v in verdicts for f in v.evidence if f.what == e.what] for e in shown}
    return tuple(Evidence(e.what, float(np.median(values[e.what])), e.sense, e.bound) for e in shown)
