"""attsvm heads: the audit of a transformer's heads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm.cli.app import AsJson, bar, say, say_json, warn
from attsvm.cli.files import check_folder, one_line_errors
from attsvm.heads.texts import LENGTH, CutTexts, cut_message
from attsvm.numbers.files import read_text

if TYPE_CHECKING:
    from attsvm.heads.audit import Audit, AuditSettings


def heads(
    model: Annotated[str, typer.Argument(help="Hub name, folder or .gguf file.")],
    texts: Annotated[File, typer.Option(help="One text per line.")],
    above: Annotated[
        float, typer.Option(help="Least attention of a selection (0.5).", show_default=False)
    ] = 0.5,
    queries: Annotated[
        int, typer.Option(help="Queries per head (32).", min=1, metavar="<int>", show_default=False)
    ] = 32,
    no_margins: Annotated[bool, typer.Option("--no-margins", help="Solve no programs: seconds.")] = False,
    ablate: Annotated[
        int,
        typer.Option(help="Silence heads, on N texts.", min=0, metavar="<int>", show_default=False),
    ] = 0,
    length: Annotated[
        int,
        typer.Option(help=f"Tokens of a text ({LENGTH}).", min=2, metavar="<int>", show_default=False),
    ] = LENGTH,
    seed: Annotated[int, typer.Option(help="Draws the queries.", show_default=False)] = 0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the model's Python code.")
    ] = False,
    out: Annotated[File, typer.Option(help="Folder of the page, JSON, CSV.", show_default=False)] = File(
        "heads"
    ),
    as_json: AsJson = False,
) -> None:
    """Audit every head of a transformer.

    What it selects, how surely, and how far it is from the best margin.

    Needs the extra hf: `pip install ".[hf]"` in a clone.

    Examples

    - `attsvm heads sentence-transformers/all-MiniLM-L6-v2 --texts reviews.txt`
    - `attsvm heads model.gguf --texts reviews.txt --no-margins --ablate 10 --out audit`

    Exit code 0 when every margin is certified, 1 bad input, 3 some margin is not certified, 64 wrong
    usage.
    """
    with one_line_errors():
        from attsvm.heads.audit import LIMIT, AuditSettings
        from attsvm.heads.model import load
        from attsvm.heads.page import as_json as audit_as_json, write

        check_folder(out)
        numbered = enumerate(read_text(texts, "a file with one text per line").splitlines(), 1)
        lines = {number: line for number, line in numbered if line.strip()}
        settings = AuditSettings(
            above=above, queries=queries, margins=not no_margins, ablation=ablate, length=length, seed=seed
        )
        source = load(model, trust_remote_code=True) if trust_remote_code else model
        result = _audit(source, list(lines.values()), settings)
        files = write(result, out)
    if result.cut:
        message = cut_message(result.cut, result.texts, length, option="--length ", lines=list(lines))
        warn(f"note: {message}")
    if as_json:
        say_json(json.loads(audit_as_json(result)))
    else:
        confident = sum(head.confident > 0 for head in result.heads)
        solved = f", {result.certified} with certified margins" if not no_margins else ""
        say(f"{len(result.heads)} heads, {confident} with confident selections{solved}.")
        if any(head.frobenius is not None for head in result.heads):
            say(LIMIT)
        say("Open " + ", ".join(map(str, files)))
    if not all(head.certified for head in result.heads):
        warn("some margins are not certified: their gap exceeds 1e-8.")
        raise typer.Exit(3)


def _audit(model: Any, texts: list[str], settings: AuditSettings) -> Audit:
    """The audit with a progress bar. The command warns of cut texts itself, and names its own option."""
    from attsvm.heads.audit import audit

    with warnings.catch_warnings(action="ignore", category=CutTexts), bar() as display:
        task = display.add_task("heads", total=None)

        def show(heads: int, total: int) -> None:
            display.update(task, completed=heads, total=total)

        return audit(model, texts, settings, progress=show)
