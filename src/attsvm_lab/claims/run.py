"""Run claims and their twins over seeds, and write the table docs/claims.md."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path as File

import numpy as np

from attsvm import Evidence, Verdict
from attsvm._support.workers import using
from attsvm.numbers.atomic_write import write_text
from attsvm_lab.claims import by_module
from attsvm_lab.claims.claim import Check, Claim

TABLE = File("docs/claims.md")


@dataclass(frozen=True)
class Row:
    """One claim over several seeds.

    verdicts, twins: the statuses, one per seed. fresh: how many of the seeds had no part in choosing the
    settings. evidence: each judged or told number of the check, as the
    median over the seeds with its bound. reasons: why seeds that do not hold do not.
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
        facts = f"holds {holds:>5}   {twin}   seeds that chose nothing {fresh:>5}"
        return f"{self.name:<75} {facts}   {self.seconds:6.1f} s"


def run(
    names: Iterable[str | Claim] | None = None, seeds: Sequence[int] = (0,), executor: Executor | None = None
) -> list[Row]:
    """Run the named claims (all by default) and their twins on the seeds, in the order of the table.

    Each paper's claims share compiled programs and cached runs, so a paper is one task.
    names: of claims of the package; a Claim of one's own is run after those, in this process.
    executor: where the papers run; worker processes by default.
    """
    wanted = None if names is None else list(names)
    user_claims = [one for one in wanted or () if isinstance(one, Claim)]
    tasks = _tasks(wanted if wanted is None else [one for one in wanted if isinstance(one, str)])
    chosen = tuple(int(seed) for seed in seeds)
    if not chosen:
        raise ValueError("seeds is empty. Pass at least one seed.")
    if not tasks:
        return [_run_claim(claim, chosen) for claim in user_claims]
    with using(executor, len(tasks)) as pool:
        jobs = [pool.submit(_run_module, *task, chosen) for task in tasks]
        rows = [row for job in jobs for row in job.result()]
    return rows + [_run_claim(claim, chosen) for claim in user_claims]


def write_table(rows: Sequence[Row], file: File = TABLE, user_claims: Sequence[Claim] = ()) -> None:
    """Write the table of the claims that have a row, by paper; user_claims: claims of one's own."""
    named = {row.name: row for row in rows}
    groups = {**by_module(), "your_own": tuple(user_claims)} if user_claims else by_module()
    marked = [f"`{row.name}`" for row in rows if row.refuted]
    first, last = min(rows[0].seeds), max(rows[0].seeds)
    every = set(rows[0].seeds) == set(range(first, last + 1))
    seeds = f"{first}-{last}" if every else ",".join(map(str, rows[0].seeds))
    sound = [row for row in rows if f"`{row.name}`" not in marked]
    text = [
        _PREAMBLE.format(
            count=len(rows),
            seeds=seeds,
            refuted=", ".join(marked) or "none",
            sound=len(sound),
            always=sum(row.held == len(row.seeds) for row in sound),
            missed=_listed(row for row in sound if row.held < len(row.seeds)),
            blind=_listed(row for row in rows if row.detected < 0.9 * len(row.twins)),
        )
    ]
    for module, group in groups.items():
        entries = [_entry(claim, named[claim.name]) for claim in group if claim.name in named]
        text += [f"## {_title(module)}\n", *entries] if entries else []
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "\n".join(text))


# ---------------------------------------------------------------------- running


def _tasks(names: Iterable[str] | None) -> list[tuple[str, tuple[str, ...]]]:
    every = {module: tuple(claim.name for claim in group) for module, group in by_module().items()}
    if names is None:
        return list(every.items())
    wanted = list(names)
    unknown = set(wanted) - {name for group in every.values() for name in group}
    if unknown:
        raise ValueError(
            f"no claim is named {', '.join(sorted(unknown))}. See attsvm_lab.claims.claims for all."
        )
    kept = {module: tuple(name for name in group if name in wanted) for module, group in every.items()}
    return [(module, group) for module, group in kept.items() if group]


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
    """The verdict; an experiment that cannot even be set up (NotSeparable, say) is not applicable."""
    try:
        verdict = check(seed)
    except ValueError as error:
        return Verdict(name, "not applicable", (), f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{name} returned {verdict!r}. Return a verdict: att.judge(statement, evidence, …).")
    return verdict


def _medians(verdicts: Sequence[Verdict]) -> tuple[Evidence, ...]:
    shown = next((v.evidence for v in verdicts if v.evidence), ())
    values = {e.what: [f.value for v in verdicts for f in v.evidence if f.what == e.what] for e in shown}
    return tuple(Evidence(e.what, float(np.median(values[e.what])), e.sense, e.bound) for e in shown)


# ---------------------------------------------------------------------- writing

_PREAMBLE = """# Claims

Every statement as an experiment, with a broken twin: the same experiment with one hypothesis removed, which
must not hold. {count} claims over the seeds {seeds}; numbers are medians over them, with the wanted bound.
Marks in brackets: how we know that the paper says so. *text*, *paper*, *code*: read there. *recalled-H*,
*-M*: from memory, of high or medium confidence, so that the numbers test a hypothesis. *derived*, *observed*,
*conjecture*: no theorem of the papers.
A seed *chose nothing* if it was first run when the settings of the claim were fixed.
This page is written by `attsvm claims --seeds {seeds} --table docs/claims.md`; do not edit it.

Refuted as recalled, each with its counterexample below: {refuted}.

Of the other {sound} claims, {always} hold on every seed of this table. These did not: {missed}.
Twins that held too often, so that the experiment says little: {blind}.

How the settings were chosen, and what was changed after results were seen: [settings](claims_settings.md).
"""


def _listed(rows: Iterable[Row]) -> str:
    return ", ".join(f"`{row.name}`" for row in rows) or "none"


def _title(module: str) -> str:
    return module.replace("_", " ").capitalize()


def _entry(claim: Claim, row: Row) -> str:
    hypotheses, surprises = _paragraphs(claim)
    measured = "; ".join(_shown(e) for e in row.evidence) or "nothing"
    lines = [
        f"### `{claim.name}`\n",
        f"{claim.statement}\n",
        *(f"{text}\n" for text in hypotheses),
        f"- **Reference:** {claim.reference} [{claim.mark}]",
        f"- **Twin removes:** {claim.removed}",
        f"- **Measured:** {measured}",
        f"- **Holds:** {row.held} of {len(row.verdicts)} seeds, of which {row.fresh or 'none'} chose nothing;"
        f" twin detected {row.detected} of {len(row.twins)}; "
        f"{row.seconds / (len(row.verdicts) + len(row.twins)):.2f} s each",
        *(f"- **Surprise:** {text}" for text in surprises),
        *(f"- **Did not hold:** {reason}" for reason in row.reasons),
    ]
    return "\n".join(lines) + "\n"


def _shown(evidence: Evidence) -> str:
    wanted = f" ({evidence.sense} {evidence.bound:.3g})" if evidence.sense else ""
    return f"{evidence.what} {evidence.value:.3g}{wanted}"


def _paragraphs(claim: Claim) -> tuple[list[str], list[str]]:
    """What the docstring says after the statement, and what surprised us."""
    paragraphs = inspect.cleandoc(claim.check.__doc__ or "").split("\n\n")[1:]
    texts = [" ".join(paragraph.split()) for paragraph in paragraphs]
    parts = [text.partition("Surprise:") for text in texts]
    return [before for before, _, _ in parts if before], [after.strip() for _, _, after in parts if after]
