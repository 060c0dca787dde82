"""The content of the page and of report.json: results, claims, and how many agree."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path as File
from typing import Any

from attsvm import __version__
from attsvm._support import strict_json
from attsvm.comparison.evidence import Evidence
from attsvm_lab.claims.run import Row, run as run_all
from attsvm_lab.figures import KINDS, PAPERS, Check, Paper, Provenance, Scale, Status
from attsvm_lab.figures.figure import AGREES, POWERLESS, PUBLISHED, RECIPE, SHORT, UNEXPLAINED
from attsvm_lab.fingerprint import code_fingerprint
from attsvm_lab.reproduce import Result

PLURAL: dict[Provenance, str] = {
    "stated": "statements without a number",
    "derived": "derived numbers",
    "conjectured": "conjectures",
    "independent run": "numbers of independent runs",
}


CHECK_FIELDS = (
    *("what", "provenance", "source", "reference", "ours", "tolerance"),
    *("agreement", "reason", "because", "item"),
)
"""Attributes of a check in report.json."""


@dataclass(frozen=True)
class Report:
    """Figures at one scale, and the claims where they were run."""

    scale: Scale
    results: tuple[Result, ...]
    claims: tuple[Row, ...] = ()

    @property
    def papers(self) -> list[tuple[Paper, list[Result]]]:
        """The papers with a result, in the order of the page."""
        results = {result.name: result for result in self.results}
        groups = [(paper, [results[f.name] for f in paper.figures if f.name in results]) for paper in PAPERS]
        return [(paper, group) for paper, group in groups if group]

    @property
    def checks(self) -> list[tuple[Result, Check]]:
        return [(result, check) for _, group in self.papers for result in group for check in result.checks]

    @property
    def counts(self) -> Counter[str]:
        """How many numbers have each status; and how many figures failed."""
        counts = Counter[str](check.agreement for _, check in self.checks)
        counts["failed"] = sum(bool(result.error) for result in self.results)
        return counts

    @property
    def items(self) -> Counter[Status]:
        """How many published numbers have each status, each counted once however many rows it has."""
        return sum((self.by_kind[kind] for kind in PUBLISHED if kind in self.by_kind), Counter[Status]())

    @property
    def by_kind(self) -> dict[Provenance, Counter[Status]]:
        """How many numbers have each status, by where their references come from, each number once."""
        by_kind = {kind: Counter[Status]() for kind in KINDS}
        for result in self.results:
            for kind, counts in result.by_kind.items():
                by_kind[kind] += counts
        return {kind: counts for kind, counts in by_kind.items() if counts}

    @property
    def mistakes(self) -> list[tuple[Result, Check]]:
        """Numbers that we derived and that differ from our results. Published numbers may differ."""
        return [(r, c) for r, c in self.checks if c.provenance == "derived" and not c.agrees]

    @property
    def passed(self) -> bool:
        """Whether no figure failed, no derived number comes out otherwise and no claim is broken."""
        return not (self.counts["failed"] or self.mistakes or any(map(broken, self.claims)))

    @property
    def repeated(self) -> str:
        """What was computed again, in one sentence."""
        figures = {paper.name: len(group) for paper, group in self.papers}
        own = figures.pop("ours", 0)
        total = sum(counts.total() for counts in self.by_kind.values())
        parts = (
            [f"{_counted(sum(figures.values()), 'figure')} of {_counted(len(figures), 'paper')}"]
            if figures
            else []
        )
        parts += [f"{_counted(own, 'figure')} of our own"] if own else []
        verb = "was" if sum(figures.values()) + own == 1 else "were"
        numbers = _counted(total, "number")
        return f"{' and '.join(parts)} {verb} computed again, with {numbers} beside a reference."

    @property
    def sentence(self) -> str:
        """What agrees, what differs and why, for the published numbers; the page's table has the others."""
        sentences = [_outcome(self.items) if self.items else "None of these numbers is published."]
        if mistakes := len(self.mistakes):
            verb = "differs" if mistakes == 1 else "differ"
            sentences.append(f"{mistakes} of the numbers that we derived {verb}.")
        if failed := self.counts["failed"]:
            sentences.append(f"{_counted(failed, 'figure')} could not be computed.")
        return " ".join(sentences)

    @property
    def shuffled(self) -> tuple[int, int]:
        """Pairs of our number and the published number of another row: how many differ, and their total.

        This is a negative control: checks that accepted the references of other rows would have no power.
        """
        pairs = [check.told_apart for _, check in self.checks if check.agreement != SHORT]
        return sum(differ for differ, _ in pairs), sum(others for _, others in pairs)

    @property
    def power(self) -> str:
        """`shuffled` in words."""
        differ, pairs = self.shuffled
        if not pairs:
            return ""
        return (
            "A negative control: beside another published number of the same figure, "
            f"{differ / pairs:.0%} of our numbers would differ ({differ:,} of {pairs:,} pairs)."
        )

    @property
    def unpublished(self) -> str:
        """The outcome for the numbers without a published reference, by kind, in one sentence."""
        clauses = [
            f"{counts['agrees']} of {counts.total()} {PLURAL[kind]}"
            for kind, counts in self.by_kind.items()
            if kind in PLURAL
        ]
        return f"References that are not published: {', '.join(clauses)} agree." if clauses else ""

    def record(self) -> dict[str, Any]:
        """The report for machines: plain numbers, None for what is not finite."""
        figures = [
            {
                "figure": result.name,
                "title": result.figure.title,
                "paper": paper.title,
                "sizes": dict(result.sizes),
                "seconds": result.seconds,
                "error": result.error,
                "notes": result.figure.notes,
                "recorded": result.figure.recorded,
                "checks": [_check_record(check) for check in result.checks],
            }
            for paper, group in self.papers
            for result in group
        ]
        claims = [asdict(row) for row in self.claims]
        counts = {name: count for name, count in sorted(self.counts.items()) if count}
        heading = {"attsvm": __version__, "scale": self.scale, "good": self.passed, "counts": counts}
        heading |= {"published": dict(self.items), "shuffled": self.shuffled}
        heading |= {"provenance": {kind: dict(counts) for kind, counts in self.by_kind.items()}}
        return dict(strict_json.plain(heading | {"figures": figures, "claims": claims}))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _outcome(counts: Counter[Status]) -> str:
    """What agrees, what differs and why, in one sentence whose counts add up."""
    coarse, agree = counts[POWERLESS], counts[AGREES] + counts[POWERLESS]
    total = counts.total()
    text = f"Of {_counted(total, 'published number')}, {agree} agree{'s' if agree == 1 else ''}"
    if coarse:
        text += f" ({coarse} in {'a comparison' if coarse == 1 else 'comparisons'} too coarse to fail)"
    reasons: dict[Status, str] = {
        RECIPE: "because the paper computed otherwise (its recipe, repeated here, gives its number)",
        SHORT: "because the comparison still lacks runs",
        UNEXPLAINED: "without an explanation",
    }
    clauses = [f"{counts[status]} {reason}" for status, reason in reasons.items() if counts[status]]
    if not clauses:
        return f"{text}."
    differ = total - agree
    return f"{text} and {differ} {'does' if differ == 1 else 'do'} not: {', '.join(clauses)}."


def _check_record(check: Check) -> dict[str, Any]:
    """A check for machines, its recipe by name."""
    facts = {name: getattr(check, name) for name in CHECK_FIELDS}
    return facts | {"accuracy": check.accuracy.words, "recipe": check.recipe.what if check.recipe else ""}


def broken(row: Row) -> bool:
    """Whether a claim fails on some seed (unless it is marked refuted), or its twin holds too often."""
    fails = not row.refuted and "fails" in row.verdicts
    return fails or row.detected < 0.9 * len(row.twins)


# ---------------------------------------------------------------------- claims, stored like figures


def run_claims(out: File, executor: Executor | None = None) -> tuple[Row, ...]:
    """Every claim and its twin on seed 0. claims.json stores them and is read while the code is the same."""
    rows = stored_claims(out)
    if not rows:
        rows = tuple(run_all(executor=executor))
        record = {"key": code_fingerprint("claims"), "claims": [asdict(row) for row in rows]}
        (out / "claims.json").write_text(json.dumps(record), encoding="utf8")
    return rows


def stored_claims(out: File) -> tuple[Row, ...]:
    """The claims in claims.json, if the code is still the same; else none."""
    try:
        record = json.loads((out / "claims.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return ()
    if not isinstance(record, dict) or record.get("key") != code_fingerprint("claims"):
        return ()
    return tuple(_row(entry) for entry in record["claims"])


def _row(entry: dict[str, Any]) -> Row:
    evidence = tuple(Evidence(**fields) for fields in entry["evidence"])
    lists = {name: tuple(entry[name]) for name in ("seeds", "verdicts", "twins", "reasons")}
    return Row(**(entry | lists | {"evidence": evidence}))
