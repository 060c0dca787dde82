"""The page docs/claims.md: what it says of each claim, from the rows of a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path as File

from attsvm import Evidence
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
A seed *chose nothing* if it was first run when the settings of the claim were fixed.
This page is written by `attsvm claims --seeds {seeds} --table docs/claims.md`; do not edit it.

Refuted as recalled, each with its counterexample below: {refuted}.

Of the other {sound} claims, {always} hold on every seed of this table. These did not: {missed}.
Twins that held too often, so that the experiment says little: {blind}.

How the settings were chosen, and what was changed after results were seen: [settings](claims_settings.md).
"""


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
