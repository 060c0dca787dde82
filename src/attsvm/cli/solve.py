"""attsvm solve: the smallest weight that selects given tokens, with its certificate."""

from __future__ import annotations

from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attsvm.cli.app import AsJson, say, say_json, stop, warn
from attsvm.cli.files import one_line_errors, out_file, read_problem
from attsvm.norms.names import norm_of

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


def solve(
    file: Annotated[
        File, typer.Argument(help="keys, and any of queries, labels, mask, values, selected, v.")
    ],
    norm: Annotated[
        str, typer.Option(help="frobenius, nuclear, spectral, l1, linf, lp:1.5 or schatten:3.")
    ] = "frobenius",
    select: Annotated[
        str | None, typer.Option(help="best (under v), first, file, or one index per example: 0,2,1.")
    ] = None,
    slack: Annotated[float | None, typer.Option(help="Price of a violated margin: the soft program.")] = None,
    out: Annotated[
        File | None,
        typer.Option(help="Write the solution to this .npz file, without keys that stay in FILE."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the smallest W that separates the selected tokens.

    The file is .npz or .safetensors: `keys` (n, T, d), optionally `queries` (n, e), `labels` (n,),
    `mask` (n, T), `values` (n, T, c), `selected` and the head `v`; an .npy file holds the keys alone, and a
    .json file that the explorer saved is read too.
    A run saved by `attsvm train` selects the tokens it attends to, a saved solution those of its own
    program. An array of another name is an error. Large keys and values that are not compressed stay in
    the file and may exceed the memory; the other arrays may fill half of it, those of a compressed file
    1 GiB, or 50 times its size.

    Examples

    - `attsvm solve problem.npz`: the tokens the file selects, else the best under its `v`
    - `attsvm solve problem.npz --norm nuclear --select 0,2,1 --out solution.npz`
    - `attsvm solve heads.safetensors --select first --json`
    - `attsvm solve keys.npy --select first`
    - `attsvm solve text.npz --slack 1`: errors allowed, one hinge per example

    Exit code 0 certified, 1 bad input, 2 not separable (the conflicting tokens are named),
    3 solved but not certified, 64 wrong usage.
    """
    from attsvm.program.max_margin import max_margin
    from attsvm.program.solution import NotSeparable

    with one_line_errors():
        kind = norm_of(norm)
        out = out and out_file(out, ".npz", source=file)
        problem = read_problem(file, in_place=True)
        try:
            solution = max_margin(problem.tokens, problem.choose(select), kind, slack=slack)
        except NotSeparable as error:
            stop(f"NotSeparable: {error}", 2, separable=False, reason=str(error), conflict=error.conflict)
        if out is not None:
            solution.save(out)
    if as_json:
        say_json(solution_record(solution) | ({} if out is None else {"solution": out}))
    else:
        say(solution if out is None else f"{solution}\nsolution: {out}")
    _end(solution)


def solution_record(solution: Solution) -> dict[str, Any]:
    """The solution in numbers; with runs, the worst or the median of them."""
    from attsvm.program.certificate import TOLERANCE

    certificate = solution.certificate  # computed once: it reads stored keys
    return {
        "norm": str(solution.norm),
        "separable": bool(np.all(solution.separable)),
        "certified": bool(np.all(solution.separable & (certificate.worst <= TOLERANCE))),
        "shape": list(solution.W.shape),
        "margin": float(np.median(solution.margin)),
        "rank": _as_integer(np.median(solution.rank)),
        "active": int(solution.support.sum()),
        "constraints": int(solution.constraints.separating.sum()),
        "rows": int(np.sum(certificate.rows)),  # of the certificate, ties included
        "primal": float(np.max(certificate.primal)),
        "dual": float(np.max(certificate.dual)),
        "gap": float(np.max(certificate.gap)),
    }


def _as_integer(number: Any) -> int | float:
    """An integer if the number equals one; the median of many runs may lie between two."""
    return int(number) if number == int(number) else float(number)


def _end(solution: Solution) -> None:
    if not np.all(solution.separable):
        runs = ", ".join(map(str, np.flatnonzero(~np.asarray(solution.separable))[:8]))
        warn(f"NotSeparable: no W separates the selected tokens of run {runs}. Solve that run alone.")
        raise typer.Exit(2)
    if not np.all(solution.certified):
        warn("the solution is not certified: its gap or a violation exceeds 1e-8.")
        raise typer.Exit(3)
