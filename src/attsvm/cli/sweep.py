"""attsvm sweep: a study, from its file to its page."""

from __future__ import annotations

from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated

import typer

from attsvm.cli.app import INTERRUPTED, USAGE, AsJson, Cluster, say, say_json, stop
from attsvm.cli.files import one_line_errors
from attsvm.sweeps.finished import finished, name_of, note
from attsvm.workers import begin, named

if TYPE_CHECKING:
    from attsvm.sweeps.result import Sweep


def sweep(
    study: Annotated[File | None, typer.Argument(help="A TOML file; --example prints one.")] = None,
    scale: Annotated[str, typer.Option(help="A [scale.NAME] of the study.")] = "default",
    out: Annotated[File | None, typer.Option(help="The study's folder; out/STUDY by default.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented study.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Run a study: a grid of trainings, measured, with intervals, on one page.

    Finished batches are kept at once, so that an interrupted study resumes, more seeds or sizes extend it
    and nothing is computed twice. Runs on all cores, on a GPU if JAX finds one, or on a Dask cluster.

    Needs the extra sweep: `pip install ".[sweep]"` in a clone.

    Examples

    - `attsvm sweep --example > study.toml`: something to begin with
    - `attsvm sweep study.toml`: run it, into out/study/sweep.html
    - `attsvm sweep studies/phase_diagram.toml --scale quick`
    - `attsvm sweep study.toml --cluster tcp://scheduler:8786`

    Exit code 0, 1 on bad input, 64 on wrong usage, 130 stopped by Ctrl-C.
    """
    if example:
        from attsvm.sweeps.study import example as text

        print(text(), end="")
        raise typer.Exit
    if study is None:
        stop("no study. Pass a TOML file; attsvm sweep --example prints one.", USAGE)
    folder = out or File("out") / name_of(study)
    try:
        with one_line_errors():
            done = finished(study, scale, folder) or _run(study, scale, folder, cluster)
    except KeyboardInterrupt:
        stop("interrupted. Finished batches are kept: run the same command again to resume.", INTERRUPTED)
    tell(done, as_json)


def _run(study: File, scale: str, folder: File, cluster: str | None) -> Sweep:
    if cluster is None:
        begin("attsvm.sweeps.batch", "attsvm.training.train")  # while this process imports the same
    with named(cluster) as executor:
        from attsvm.sweeps.sweep import sweep as run

        done = run(study, executor, scale=scale, out=folder)
    note(study, scale, done)
    return done


def tell(done: Sweep, as_json: bool) -> None:
    """Print a finished study, and where its page is."""
    if as_json:
        columns = done.table()
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        say_json({"title": done.facts["title"], "folder": done.folder, "cells": rows})
        return
    say(done)
    say(f"\nOpen {done.folder / 'sweep.html'}")
