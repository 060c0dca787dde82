"""attsvm claims: the papers' statements as experiments."""

from __future__ import annotations

import dataclasses
from pathlib import Path as File
from typing import Annotated

import typer

from attsvm._support.options import BadOption, check_names, seed_range
from attsvm._support.xla_flags import compile_quickly
from attsvm.cli.app import AsJson, errors, say, say_json, warn
from attsvm.cli.files import one_line_errors
from attsvm_lab.sweeps.plugins import is_plugin, plugin
from attsvm_lab.workers import Cluster, cluster_executor, preload


def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of claims, or module:function of yours; all by default.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many (0 … N−1), or a range: 20-39.")] = "1",
    table: Annotated[
        File | None,
        typer.Option(help="Write the table to this file; named claims join one that exists."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the names and statements only.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Run the papers' statements, each beside a broken twin.

    Examples

    - `attsvm claims --list`: what there is
    - `attsvm claims`: all of them on seed 0, a few minutes
    - `attsvm claims aligned_factors_stay_aligned --seeds 20`
    - `attsvm claims --seeds 20-39 --table docs/claims.md`; with names: only their entries are replaced
    - `attsvm claims mine:my_claim --seeds 20`: yours, or any function seed → Verdict, in ./mine.py

    Exit code 1 when a claim fails on some seed or a twin holds on more than a tenth of them; claims
    marked refuted may fail. 64 wrong usage.
    """
    if listed:
        _list(as_json)
        raise typer.Exit
    compile_quickly()
    package_names = [name for name in names or () if not is_plugin(name)]
    if cluster is None and (not names or len(package_names) > 1):  # one claim is run here
        preload("attsvm_lab.claims.run")
    # The cluster before the imports: an address that does not answer is reported at once.
    with one_line_errors(), cluster_executor(cluster) as executor:
        from attsvm_lab.claims import claims as all_claims
        from attsvm_lab.claims.claim import as_claim
        from attsvm_lab.claims.run import run
        from attsvm_lab.claims.table import write_table
        from attsvm_lab.report.summary import broken

        check_names("claim", package_names, all_claims, "attsvm claims --list")
        user_claims = [as_claim(plugin(name, str(File.cwd()))) for name in names or () if is_plugin(name)]
        selected_seeds = seed_range(seeds)
        if table is not None:  # fail before the claims run, not after
            table.parent.mkdir(parents=True, exist_ok=True)
            if table.is_dir():
                raise BadOption(f"--table is the folder {table}. Pass a file in it: {table / 'claims.md'}.")
        with errors.status("running claims", spinner="dots"):
            rows = run([*package_names, *user_claims] or None, selected_seeds, executor)
        if table is not None:
            write_table(rows, table, user_claims, join=bool(names) and table.exists())
            warn(f"table: {table}")
    if as_json:
        say_json([dataclasses.asdict(row) for row in rows])
    else:
        for row in rows:
            say(f"{row}{'   (refuted)' if row.refuted else ''}")
    if any(map(broken, rows)):
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from attsvm_lab.claims import claims as all_claims

    if as_json:
        facts = ("name", "statement", "removed", "reference", "mark")
        say_json([{fact: getattr(claim, fact) for fact in facts} for claim in all_claims.values()])
        return
    for claim in all_claims.values():
        say(f"{claim.name}\n    {claim.statement}\n    {claim.reference} [{claim.mark}]")
