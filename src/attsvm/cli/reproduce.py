"""attsvm reproduce: every figure beside its published numbers, on one page."""

from __future__ import annotations

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attsvm.cli.app import AsJson, errors, say, say_json, stop
from attsvm.cli.words import one_of
from attsvm.training.compilation import compile_quickly
from attsvm.workers import begin

if TYPE_CHECKING:
    from attsvm.report import Report
    from attsvm.reproduce import Result

SCALES = {"quick": "quick", "default": "default", "paper": "paper"}
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
    TextColumn("left"),
)


def reproduce(
    only: Annotated[list[str] | None, typer.Option(help="Names of figures; all by default.")] = None,
    scale: Annotated[str, typer.Option(help="quick, default or paper.")] = "default",
    out: Annotated[File, typer.Option(help="Where report.html, figures and arrays go.")] = File("out"),
    claims: Annotated[bool, typer.Option("--claims", help="Run the papers' statements too.")] = False,
    gallery: Annotated[
        File | None, typer.Option(help="Also write gallery.md to this folder of docs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the papers' figures, compare their numbers with the published ones, write one page.

    Figures run on all cores. Each finished one is kept, so that an interrupted run resumes and a second
    run is instant; a change of the code computes it again.

    Examples

    - `attsvm reproduce`: everything, into out/report.html
    - `attsvm reproduce --scale quick`: a look, in less than a minute
    - `attsvm reproduce --only two-clouds --only past-saturation --scale paper`

    Exit code 0 when every number agrees or differs for a stated reason, else 1.
    """
    compile_quickly()
    if only is None or len(only) > 1:  # one figure is computed here
        begin("attsvm.reproduce")
    from attsvm import figures

    try:
        chosen = one_of("scale", scale, SCALES)
        names = list(dict.fromkeys(only or figures.ALL))
        for name in names:
            one_of("figure", name, figures.ALL)
        out.mkdir(parents=True, exist_ok=True)
        results = _run(names, chosen, out)
        from attsvm.report import Report, run_claims, stored_claims, write_gallery, write_report

        report = Report(chosen, tuple(results), run_claims(out) if claims else stored_claims(out))
        written = [write_report(report, out)]
        if gallery is not None:
            written.append(write_gallery(report, out, gallery))
    except (ValueError, OSError) as error:
        stop(error)
    except KeyboardInterrupt:
        stop("interrupted. Finished figures are kept: run the same command again to resume.", 130)
    except BrokenProcessPool:
        stop("a worker process was killed, perhaps for lack of memory. Run the command again to resume.")
    if as_json:
        say_json(report.record())
    else:
        _print(report, written)
    if not report.good:
        raise typer.Exit(1)


def _run(names: list[str], scale: Any, out: File) -> list[Result]:
    from attsvm.reproduce import reproduce as run

    with Progress(*COLUMNS, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("figures", total=len(names))

        def finished(result: Result) -> None:
            bar.advance(task)
            errors.print(_line(result), markup=False, soft_wrap=True)

        return run(names, scale, out, finished=finished)


def _line(result: Result) -> str:
    return f"{result.name:<20} {result.outcome}   ({result.seconds:g} s)"


def _print(report: Report, written: list[File]) -> None:
    for result, check in report.checks:
        if check.agreement == "disagrees":
            numbers = f"published {check.published:.6g}, ours {check.ours:.6g} (± {check.tolerance:.3g})"
            say(f"{result.name}: {check.what}: {numbers}")
    say(report.sentence)
    say("Open " + " and ".join(map(str, written)))
