"""The page docs/claims.md: what it says of each claim, from the rows of a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as File

from attsvm._support.options import BadOption
from attsvm.comparison.evidence import Evidence
from attsvm.numbers.atomic_write import write_text
from attsvm_lab.claims import by_module
from attsvm_lab.claims.claim import Claim
from attsvm_lab.claims.run import Row

TABLE = File("docs/claims.md")

_PREAMBLE = """# Claims

Every statement as an experiment, with a broken twin: the same experiment with one hypothesis removed, which
must not hold. {count} claims over the seeds {seeds}; numbers are medians over them, with the wanted bound.
Marks in brackets: how we know that the paper says so. *text*, *paper*, *code*: read there. *recalled-H*,
*-M*: from memory, of high or medium confidence, so that the numbers test a hypothesis. *derived*, *observed*,
*conjecture*: no theorem of the papers.
*Held-out* seeds were first run after the settings of the claim had been fixed.
This page is written by `attsvm claims --seeds {seeds} --table docs/claims.md`; do not edit it.

Refuted as recalled, each with its counterexample below: {refuted}.

Of the other {sound} claims, {always} hold on every seed of this table. These did not: {missed}.
Twins that held too often, so that the experiment says little: {blind}.

How the settings were chosen, and what was changed after results were seen: [settings](claims_settings.md).
"""


@dataclass(frozen=True)
class Entry:
    """What the page says of the runs of one claim, counted; lines: as they stand on the page."""

    held: int
    seeds: int
    detected: int
    twins: int
    lines: tuple[str, ...]


def write_table(
    rows: Sequence[Row], file: File = TABLE, user_claims: Sequence[Claim] = (), join: bool = False
) -> None:
    """Write the table of the claims that have a row, by paper.

    user_claims: claims of one's own. join: keep what the file says of other claims, on the same seeds.
    """
    seeds = _seeds(rows[0].seeds)
    entries = (entries_of(file, seeds) if join else {}) | {row.name: _entry(row) for row in rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, page(entries, seeds, user_claims))


def page(entries: Mapping[str, Entry], seeds: str, user_claims: Sequence[Claim] = ()) -> str:
    """The page of the claims that have an entry, by paper."""
    groups = {**by_module(), "your_own": tuple(user_claims)} if user_claims else by_module()
    claims = {claim.name: claim for group in groups.values() for claim in group if claim.name in entries}
    refuted = [name for name, claim in claims.items() if claim.refuted]
    sound = [name for name in claims if name not in refuted]
    text = [
        _PREAMBLE.format(
            count=len(claims),
            seeds=seeds,
            refuted=_listed(refuted),
            sound=len(sound),
            always=sum(entries[name].held == entries[name].seeds for name in sound),
            missed=_listed(name for name in sound if entries[name].held < entries[name].seeds),
            blind=_listed(name for name in claims if entries[name].detected < 0.9 * entries[name].twins),
        )
    ]
    for module, group in groups.items():
        sections = [_section(claim, entries[claim.name]) for claim in group if claim.name in claims]
        text += [f"## {_title(module)}\n", *sections] if sections else []
    return "\n".join(text)


def _seeds(seeds: Sequence[int]) -> str:
    first, last = min(seeds), max(seeds)
    return f"{first}-{last}" if set(seeds) == set(range(first, last + 1)) else ",".join(map(str, seeds))


def entries_of(file: File, seeds: str) -> dict[str, Entry]:
    """What a page that exists says of its claims; an error if its seeds are others."""
    text = file.read_text(encoding="utf8")
    over = re.search(r"claims over the seeds (\S+);", text)
    if over is None or over[1] != seeds:
        shown = f"of the seeds {over[1]}" if over else "no table of claims"
        raise BadOption(
            f"{file} is {shown}, these claims ran on {seeds}. Pass the same seeds or another file."
        )
    entries = {}
    for name, section in re.findall(r"^### `(\w+)`\n(.*?)(?=^###? |\Z)", text, re.DOTALL | re.MULTILINE):
        lines = tuple(line for line in section.splitlines() if line.startswith(_OF_RUNS))
        held, of = re.search(r"\*\*Holds:\*\* (\d+) of (\d+)", section).groups()  # type: ignore[union-attr]
        twin = re.search(r"detected (\d+) of (\d+)", section)
        detected, twins = twin.groups() if twin else (0, 0)
        entries[name] = Entry(int(held), int(of), int(detected), int(twins), lines)
    return entries


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _title(module: str) -> str:
    return module.replace("_", " ").capitalize()


_OF_RUNS = ("- **Measured:**", "- **Holds:**", "- **Did not hold:**")


def _entry(row: Row) -> Entry:
    measured = "; ".join(_shown(e) for e in row.evidence) or "nothing"
    lines = (
        f"- **Measured:** {measured}",
        f"- **Holds:** {row.held} of {len(row.verdicts)} seeds, of which {row.fresh or 'none'} held out;"
        f" twin detected {row.detected} of {len(row.twins)}; "
        f"{row.seconds / (len(row.verdicts) + len(row.twins)):.2f} s each",
        *(f"- **Did not hold:** {reason}" for reason in row.reasons),
    )
    return Entry(row.held, len(row.seeds), row.detected, len(row.twins), lines)


def _section(claim: Claim, entry: Entry) -> str:
    hypotheses, surprises = _paragraphs(claim)
    failures = [line for line in entry.lines if line.startswith(_OF_RUNS[2])]
    lines = [
        f"### `{claim.name}`\n",
        f"{claim.statement}\n",
        *(f"{text}\n" for text in hypotheses),
        f"- **Reference:** {claim.reference} [{claim.mark}]",
        f"- **Twin removes:** {claim.removed}",
        *(line for line in entry.lines if line not in failures),
        *(f"- **Surprise:** {text}" for text in surprises),
        *failures,
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
