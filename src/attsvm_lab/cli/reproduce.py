"""attsvm reproduce: every figure beside its references, on one page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm._support.options import check_names, look_up
from attsvm._support.xla_flags import compile_quickly
from attsvm.cli.app import INTERRUPTED, AsJson, bar, errors, say, say_json, stop
from attsvm.cli.files import one_line_errors
from attsvm_lab.workers import Cluster, LostWorkers, cluster_executor, preload

if TYPE_CHECKING:
    from attsvm_lab.report import Report
    from attsvm_lab.reproduce import Result

SCALES = {"quick": "quick", "default": "default", "paper": "paper"}


def reproduce(
    only: Annotated[list[str] | None, typer.Option(help="Names of figures; all by default.")] = None,
    scale: Annotated[str, typer.Option(help="quick, default or paper.")] = "default",
    out: Annotated[File, typer.Option(help="Where report.html, figures and arrays go.")] = File("out"),
    claims: Annotated[bool, typer.Option("--claims", help="Run the papers' statements too.")] = False,
    gallery: Annotated[
        File | None, typer.Option(help="Also write gallery.md to this folder of docs.")
    ] = None,
    data: Annotated[
        File | None,
        typer.Option(help="Folder of lab/experiments/data.py: train again what is recorded, on a GPU."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names and titles only.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Compute the papers' figures beside their published numbers.

    Figures run on all cores, or on a cluster that sees the same folder. Each finished one is kept, so that
    an interrupted run resumes and a second run is instant; a change of the code computes it again.

    Examples

    - `attsvm reproduce --list`: what there is
    - `attsvm reproduce`: everything, into out/report.html
    - `attsvm reproduce --scale quick`: a look, in less than a minute
    - `attsvm reproduce --only two-clouds --only past-saturation --scale paper`
    - `attsvm reproduce --only sentiment --scale paper --data FOLDER`: trains again what is recorded, on a
      GPU and in a checkout; with `--scale quick` a few examples for two epochs, on any machine

    Exit code 1 when a figure could not be computed, a claim is broken or a number that we derived comes out
    otherwise; else 0: what others published may differ, and the page says so. 64 wrong usage.
    """
    if listed:
        _list(as_json)
        raise typer.Exit
    with one_line_errors(), _resumable():
        if data is not None:
            _recompute(only or [], data, out / "trained", scale)
        compile_quickly()
        if cluster is None and (only is None or len(only) > 1):  # one figure is computed here
            preload("attsvm_lab.reproduce")
        with cluster_executor(cluster) as executor:
            report, written = _report(only, scale, out, executor, claims, gallery)
    if as_json:
        say_json(report.record() | {"written": written})
    else:
        _print(report, written)
    if not report.passed:
        raise typer.Exit(1)


def _recompute(names: list[str], data: File, out: File, scale: str) -> None:
    from attsvm_lab.reproduce import recompute

    recompute(names, data, out, tiny=scale == "quick")


def _report(
    only: list[str] | None,
    scale: str,
    out: File,
    executor: Executor | None,
    claims: bool,
    gallery: File | None,
) -> tuple[Report, list[File]]:
    """Compute the figures, write their page, and the gallery if its folder is given."""
    from attsvm_lab import figures

    scale_name = look_up("scale", scale, SCALES)
    names = list(dict.fromkeys(only or figures.ALL))
    check_names("figure", names, figures.ALL, "attsvm reproduce --list")
    out.mkdir(parents=True, exist_ok=True)
    results = _run(names, scale_name, out, executor)
    from attsvm_lab.report import Report, run_claims, stored_claims, write_gallery, write_report

    rows = run_claims(out, executor) if claims else stored_claims(out)
    report = Report(scale_name, tuple(results), rows)
    written = [write_report(report, out)]
    if gallery is not None:
        written.append(write_gallery(report, out, gallery))
    return report, written


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        stop("interrupted. Finished figures are kept: run the same command again to resume.", INTERRUPTED)
    except LostWorkers as error:
        raise LostWorkers(f"{error} Finished figures are kept.") from error


def _list(as_json: bool) -> None:
    from attsvm_lab.figures import PAPERS

    if as_json:
        facts = ("name", "title", "shows")
        say_json([{x: getattr(f, x) for x in facts} | {"paper": p.title} for p in PAPERS for f in p.figures])
        return
    for paper in PAPERS:
        say(paper.title)
        for figure in paper.figures:
            say(f"    {figure.name:<20} {figure.title}")


def _run(names: list[str], scale: Any, out: File, executor: Executor | None) -> list[Result]:
    from attsvm_lab.reproduce import reproduce as run

    with bar() as shown:
        task = shown.add_task("figures", total=len(names))

        def finished(result: Result) -> None:
            shown.advance(task)
            line = f"{result.name:<20} {result.outcome}   ({result.seconds:g} s)"
            errors.print(line, markup=False, soft_wrap=True)

        return run(names, scale, out, executor, finished)


def _print(report: Report, written: list[File]) -> None:
    for result, check in report.checks:
        if check.agreement == "differs, not explained" and check.provenance != "conjectured":
            numbers = f"{check.provenance} {check.reference:.6g}, ours {check.ours:.6g}"
            say(f"{result.name}: {check.what}: {numbers} (± {check.tolerance:.3g})")
    say(report.sentence)
    say("Open " + " and ".join(map(str, written)))
