"""The command line: parsing and printing only."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from attsvm import __version__

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")
console = Console()


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"attsvm {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention as max-margin token selection: solve, train, check, apply."""


@app.command()
def reproduce(
    only: Annotated[list[str] | None, typer.Option(help="Names of figures; all by default.")] = None,
    scale: Annotated[str, typer.Option(help="quick, default or paper.")] = "default",
    out: Annotated[Path, typer.Option(help="Where figures and report.json go.")] = Path("out"),
) -> None:
    """Compute the papers' numbers and figures, compare them with the published ones, draw them.

    Example: `attsvm reproduce --only two-clouds --out figures`. Exit code 1 when a number disagrees.
    """
    from attsvm import figures

    unknown = set(only or ()) - set(figures.ALL)
    if unknown:
        console.print(f"no figure named {', '.join(sorted(unknown))}. There are: {', '.join(figures.ALL)}.")
        raise typer.Exit(1)
    out.mkdir(parents=True, exist_ok=True)
    report = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for name in only or figures.ALL:
            progress.add_task(figures.ALL[name].title)
            report.append(_make(figures.ALL[name], scale, out))
    (out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf8")
    _print(report, out)
    if not all(check["agrees"] for entry in report for check in entry["checks"]):
        raise typer.Exit(1)


@app.command()
def claims(
    names: Annotated[list[str] | None, typer.Argument(help="Names of claims; all by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 … N−1.", min=1)] = 1,
    table: Annotated[Path | None, typer.Option(help="Write the table of claims to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Run the papers' statements as experiments, each with a broken twin that must not hold.

    Example: `attsvm claims --seeds 20 --table docs/claims.md`. Exit code 1 when a claim fails on
    some seed or a twin holds on more than a tenth of them; claims marked refuted may fail.
    """
    from attsvm.training.compilation import compile_quickly

    compile_quickly()
    from attsvm.claims import claims as known
    from attsvm.claims.run import run, write_table

    try:
        with console.status("running claims", spinner="dots"):
            rows = run(names or None, range(seeds))
    except ValueError as error:
        console.print(str(error))
        raise typer.Exit(1) from None
    if table is not None:
        write_table(rows, table)
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], default=str))
    else:
        for row in rows:
            refuted = known[row.name].mark == "refuted"
            console.print(f"{row}{'   (refuted)' if refuted else ''}", markup=False, highlight=False)
    failed = [row for row in rows if known[row.name].mark != "refuted" and "fails" in row.verdicts]
    missed = [row for row in rows if row.detected < 0.9 * seeds]
    if failed or missed:
        raise typer.Exit(1)


def _make(figure: Any, scale: str, out: Path) -> dict[str, Any]:
    start = time.perf_counter()
    arrays = figure.compute(scale)
    np.savez(out / f"{figure.name}.npz", **arrays)
    if figure.draw is not None:
        canvas = figure.draw(arrays)
        for ending in ("svg", "png"):
            canvas.savefig(out / f"{figure.name}.{ending}", dpi=160)
    checks = [
        {
            "what": c.what,
            "source": c.source,
            "published": float(c.published),
            "ours": float(c.ours),
            "tolerance": c.tolerance,
            "agrees": bool(c.agrees),
        }
        for c in figure.checks(arrays)
    ]
    seconds = round(time.perf_counter() - start, 2)
    return {"figure": figure.name, "title": figure.title, "seconds": seconds, "checks": checks}


def _print(report: list[dict[str, Any]], out: Path) -> None:
    for entry in report:
        table = Table(title=f"{entry['title']}  ({entry['seconds']} s)", title_justify="left")
        for column in ("quantity", "reference", "ours", "", "source of the reference"):
            table.add_column(column)
        for c in entry["checks"]:
            mark = "[green]agrees[/]" if c["agrees"] else "[red]disagrees[/]"
            table.add_row(c["what"], f"{c['published']:.6g}", f"{c['ours']:.6g}", mark, c["source"])
        console.print(table)
    console.print(f"Figures, arrays and report.json are in {out}/")


if __name__ == "__main__":
    app()
