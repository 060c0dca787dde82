"""What the page and report.json say: results, claims, and how many agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path as File
from typing import Any

from attsvm import __version__, strict_json
from attsvm.claims import claims as known_claims
from attsvm.claims.run import Row, run as run_all
from attsvm.figures import KINDS, PAPERS, Check, Paper, Provenance, Scale, Status
from attsvm.figures.figure import SHORT, items, told
from attsvm.fingerprint import code_fingerprint
from attsvm.reproduce import Result
from attsvm.verdict import Evidence

PLURAL: dict[Provenance, str] = {
    "stated": "statements without a number",
    "derived": "derived numbers",
    "conjectured": "conjectures",
    "independent run": "numbers of independent runs",
}


@dataclass(frozen=True)
class Report:
    """Figures at one scale, and the claims where they were run."""

    scale: Scale
    results: tuple[Result, ...]
    claims: tuple[Row, ...] = ()

    @property
    def papers(self) -> list[tuple[Paper, list[Result]]]:
        """The papers with a result, in the order of the page."""
        named = {result.name: result for result in self.results}
        groups = [(paper, [named[f.name] for f in paper.figures if f.name in named]) for paper in PAPERS]
        return [(paper, group) for paper, group in groups if group]

    @property
    def checks(self) -> list[tuple[Result, Check]]:
        return [(result, check) for _, group in self.papers for result in group for check in result.checks]

    @property
    def counts(self) -> Counter[str]:
        """How many numbers have each status; and how many figures failed."""
        found = Counter[str](check.agreement for _, check in self.checks)
        found["failed"] = sum(bool(result.error) for result in self.results)
        return found

    @property
    def items(self) -> Counter[Status]:
        """How many published numbers have each status, each counted once however many rows it has."""
        return Counter(status for result in self.results for status in items(result.checks).values())

    @property
    def by_kind(self) -> dict[Provenance, Counter[str]]:
        """How many numbers have each status, by where their references come from."""
        of = {kind: Counter[str]() for kind in KINDS}
        for _, check in self.checks:
            of[check.provenance][check.agreement] += 1
        return {kind: counts for kind, counts in of.items() if counts}

    @property
    def mistakes(self) -> list[tuple[Result, Check]]:
        """Numbers that we derived and that come out otherwise: what others published may, these may not."""
        return [(r, c) for r, c in self.checks if c.provenance == "derived" and not c.agrees]

    @property
    def good(self) -> bool:
        """Whether no figure failed, no derived number comes out otherwise and no claim is broken."""
        return not (self.counts["failed"] or self.mistakes or any(map(broken, self.claims)))

    @property
    def sentence(self) -> str:
        """What came of the published numbers, in one sentence; the other kinds are counted apart."""
        parts = [told(self.items, "published numbers") if self.items else "No number is published"]
        if wrong := len(self.mistakes):
            parts.append(f"{wrong} of the numbers that we derived {'differs' if wrong == 1 else 'differ'}")
        if failed := self.counts["failed"]:
            parts.append(f"{failed} {'figure' if failed == 1 else 'figures'} could not be computed")
        return f"{'; '.join(parts)}."

    @property
    def shuffled(self) -> tuple[int, int]:
        """Pairs of our number and another published one of its figure: how many differ, and all of them.

        A table of checks that accepts the references of other rows would say nothing.
        """
        pairs = [pair for result in self.results for pair in _exchanged(result.checks)]
        return sum(pairs), len(pairs)

    @property
    def power(self) -> str:
        """In words: had every reference been that of another row of its figure."""
        differ, pairs = self.shuffled
        if not pairs:
            return ""
        return (
            "Had each of our numbers stood beside another published number of its figure, "
            f"{differ / pairs:.0%} would differ ({differ:,} of {pairs:,} pairs)."
        )

    @property
    def others(self) -> str:
        """The numbers that nobody published, by kind, in one sentence; empty without any."""
        parts = [
            f"{counts['agrees']} of {counts.total()} {PLURAL[kind]}"
            for kind, counts in self.by_kind.items()
            if kind in PLURAL
        ]
        return f"Of what has no published number agree: {', '.join(parts)}." if parts else ""

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
                "checks": [_told(check) for check in result.checks],
            }
            for paper, group in self.papers
            for result in group
        ]
        claims = [asdict(row) for row in self.claims]
        counts = {name: count for name, count in sorted(self.counts.items()) if count}
        heading = {"attsvm": __version__, "scale": self.scale, "good": self.good, "counts": counts}
        heading |= {"published": dict(self.items), "shuffled": self.shuffled}
        heading |= {"provenance": {kind: dict(counts) for kind, counts in self.by_kind.items()}}
        return dict(strict_json.plain(heading | {"figures": figures, "claims": claims}))


def _told(check: Check) -> dict[str, Any]:
    """A check for machines, its recipe by name."""
    facts = {name: getattr(check, name) for name in FACTS}
    return facts | {"accuracy": check.accuracy.words, "recipe": check.recipe.what if check.recipe else ""}


FACTS = (
    "what",
    "provenance",
    "source",
    "reference",
    "ours",
    "tolerance",
    "agreement",
    "reason",
    "because",
    "item",
)


def _exchanged(checks: Sequence[Check]) -> list[bool]:
    """For every number that is compared and every other published number: whether they differ."""
    rows = [check for check in checks if check.published and check.agreement != SHORT]
    references = {check.reference for check in rows}
    return [
        abs(check.ours - other) > check.tolerance
        for check in rows
        for other in references
        if abs(other - check.reference) > check.accuracy.known_to  # else its source does not tell them apart
    ]


def broken(row: Row) -> bool:
    """Whether a claim fails on some seed (unless it is marked refuted), or its twin holds too often."""
    fails = not known_claims[row.name].refuted and "fails" in row.verdicts
    return fails or row.detected < 0.9 * len(row.twins)


# ---------------------------------------------------------------------- claims, kept like figures


def run_claims(out: File, executor: Executor | None = None) -> tuple[Row, ...]:
    """Every claim and its twin on seed 0, kept in claims.json for as long as the code is the same."""
    rows = stored_claims(out)
    if not rows:
        rows = tuple(run_all(executor=executor))
        record = {"key": code_fingerprint(), "claims": [asdict(row) for row in rows]}
        (out / "claims.json").write_text(json.dumps(record), encoding="utf8")
    return rows


def stored_claims(out: File) -> tuple[Row, ...]:
    """The claims in claims.json of the same code; none without."""
    try:
        record = json.loads((out / "claims.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return ()
    if not isinstance(record, dict) or record.get("key") != code_fingerprint():
        return ()
    return tuple(_row(entry) for entry in record["claims"])


def _row(entry: dict[str, Any]) -> Row:
    evidence = tuple(Evidence(**one) for one in entry["evidence"])
    lists = {name: tuple(entry[name]) for name in ("seeds", "verdicts", "twins", "reasons")}
    return Row(**(entry | lists | {"evidence": evidence}))
