"""`attsvm heads`: the audit of a transformer's heads, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()


def heads(
    model: Annotated[str, typer.Argument(help="Hub name, folder or .gguf file.")],
    texts: Annotated[Path, typer.Option(help="A file with one text per line.")],
    above: Annotated[float, typer.Option(help="Attention above which a selection is confident.")] = 0.5,
    queries: Annotated[int, typer.Option(help="Confident queries per head.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Draws the queries.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for heads.html, .json and .csv.")] = Path("heads"),
) -> None:
    """Audit every head of a transformer: what it selects, how surely, and how far from the best margin.

    Example: `attsvm heads sentence-transformers/all-MiniLM-L6-v2 --texts reviews.txt`.
    """
    from attsvm.heads.audit import Settings, audit
    from attsvm.heads.page import write

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        lines = [line for line in texts.read_text(encoding="utf8").splitlines() if line.strip()]
        settings = Settings(above=above, queries=queries, seed=seed)
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("heads", total=None)
            found = audit(
                model, lines, settings, progress=lambda k, n: progress.update(task, completed=k, total=n)
            )
    except (OSError, ValueError, ImportError) as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    sure = [h for h in found.heads if h.frobenius is not None]
    certified = sum(h.certified for h in sure)
    console.print(f"{len(found.heads)} heads, {len(sure)} with confident selections, {certified} certified.")
    for path in write(found, out):
        console.print(str(path), markup=False, highlight=False)
