"""attsvm claims: the papers' statements as experiments."""

from __future__ import annotations

import dataclasses
from pathlib import Path as File
from typing import Annotated

import typer

from attsvm.cli.app import AsJson, Cluster, errors, say, say_json, warn
from attsvm.cli.files import one_line_errors
from attsvm.training.compilation import compile_quickly
from attsvm.words import WrongWord, check_names, seed_range
from attsvm.workers import begin, named


def claims(
    names: Annotated[list[str] | None, typer.Argument(help="Names of claims; all by default.")] = None,
    seeds: Annotated[str, typer.Option(help="How many (0 … N−1), or a range: 20-39.")] = "1",
    table: Annotated[File | None, typer.Option(help="Write the table of claims to this file.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names and statements only.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Run the papers' statements as experiments, each with a broken twin that must not hold.

    Examples

    - `attsvm claims --list`: what there is
    - `attsvm claims`: all of them on seed 0, a few minutes
    - `attsvm claims aligned_factors_stay_aligned --seeds 20`
    - `attsvm claims --seeds 20-39 --table docs/claims.md`

    Exit code 1 when a claim fails on some seed or a twin holds on more than a tenth of them; claims
    marked refuted may fail. 64 wrong usage.
    """
    if listed:
        _list(as_json)
        raise typer.Exit
    compile_quickly()
    if cluster is None and (not names or len(names) > 1):  # one claim is run here
        begin("attsvm.claims.run")
    with one_line_errors(), named(cluster) as executor:  # before the imports: a dead address is told at once
        from attsvm.claims import claims as known
        from attsvm.claims.run import run, write_table
        from attsvm.report.summary import broken

        check_names("claim", names or (), known, "attsvm claims --list")
        chosen = seed_range(seeds)
        if table is not None:  # before the work, and not after it
            table.parent.mkdir(parents=True, exist_ok=True)
            if table.is_dir():
                raise WrongWord(f"--table is the folder {table}. Pass a file in it: {table / 'claims.md'}.")
        with errors.status("running claims", spinner="dots"):
            rows = run(names or None, chosen, executor)
        if table is not None:
            write_table(rows, table)
            warn(f"table: {table}")
    if as_json:
        say_json([dataclasses.asdict(row) for row in rows])
    else:
        for row in rows:
            say(f"{row}{'   (refuted)' if known[row.name].refuted else ''}")
    if any(map(broken, rows)):
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from attsvm.claims import claims as known

    if as_json:
        facts = ("name", "statement", "removed", "reference", "mark")
        say_json([{fact: getattr(claim, fact) for fact in facts} for claim in known.values()])
        return
    for claim in known.values():
        say(f"{claim.name}\n    {claim.statement}\n    {claim.reference} [{claim.mark}]")
