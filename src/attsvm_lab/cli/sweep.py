"""attsvm sweep: a study, from its file to its page."""

from __future__ import annotations

from pathlib import Path as File
from typing import Annotated

import typer

from attsvm.cli.app import INTERRUPTED, USAGE, AsJson, say, say_json, stop
from attsvm.cli.files import one_line_errors
from attsvm_lab.sweeps.result import Sweep, finished, name_of, note
from attsvm_lab.workers import Cluster, cluster_executor, preload


def sweep(
    study: Annotated[File | None, typer.Argument(help="A TOML file; --example prints one.")] = None,
    scale: Annotated[str, typer.Option(help="A [scale.NAME] of the study.")] = "default",
    out: Annotated[File | None, typer.Option(help="The study's folder; out/STUDY by default.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented study.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Run a study: a grid of trainings with intervals, on one page.

    Finished batches are kept at once, so that an interrupted study resumes, more seeds or sizes extend it
    and nothing is computed twice. Runs on all cores, on a GPU if JAX finds one, or on a Dask cluster.

    Needs the extra lab: `pip install ".[lab]"` in a clone.

    Examples

    - `attsvm sweep --example > study.toml`: something to begin with
    - `attsvm sweep study.toml`: run it, into out/study/sweep.html
    - `attsvm sweep lab/studies/phase_diagram.toml --scale quick`
    - `attsvm sweep study.toml --cluster tcp://scheduler:8786`

    Exit code 0, 1 on bad input, 64 on wrong usage, 130 stopped by Ctrl-C.
    """
    if example:
        from attsvm_lab.sweeps.study import example as text

        print(text(), end="")
        raise typer.Exit
    if study is None:
        stop("no study. Pass a TOML file; attsvm sweep --example prints one.", USAGE)
    folder = out or File("out") / name_of(study)
    try:
        with one_line_errors():
            result = finished(study, scale, folder) or _run(study, scale, folder, cluster)
    except KeyboardInterrupt:
        stop("interrupted. Finished batches are kept: run the same command again to resume.", INTERRUPTED)
    print_study(result, as_json)


def _run(study: File, scale: str, folder: File, cluster: str | None) -> Sweep:
    if cluster is None:
        preload("attsvm_lab.sweeps.batch", "attsvm.training.train")  # workers import while this process does
    with cluster_executor(cluster) as executor:
        from attsvm_lab.sweeps.sweep import sweep as run

        result = run(study, executor, scale=scale, out=folder)
    note(study, scale, result)
    return result


def print_study(result: Sweep, as_json: bool) -> None:
    """Print a finished study, and where its page is."""
    if as_json:
        columns = result.table()
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        say_json({"title": result.facts["title"], "folder": result.folder, "cells": rows})
        return
    say(result)
    say(f"\nOpen {result.folder / 'sweep.html'}")


def show_study(folder: File, as_json: bool) -> bool:
    """Write the page and the tables of a study's folder again, and print them: `attsvm show FOLDER`."""
    result = Sweep.load(folder)
    result.write()
    print_study(result, as_json)
    return True
