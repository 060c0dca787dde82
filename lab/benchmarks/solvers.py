"""Our programs side by side with general solvers: `python lab/benchmarks/solvers.py [--quick]`.

CPU time, one thread, the same instance, features prebuilt for the peers. Writes
lab/benchmarks/solvers.json and the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cases import CASES
from measure import Result, in_child, into_page

ROOT = Path(__file__).parents[2]
JSON = ROOT / "lab" / "benchmarks" / "solvers.json"
PAGE = ROOT / "docs" / "performance.md"


def main() -> None:
    """Measure what was asked for, and write it down after every row."""
    options = _options()
    jobs = [k for k, case in enumerate(CASES) if options.only in case.name]
    results: dict[str, Any] = {"machine": _machine(), "quick": options.quick, "rows": []}
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("solvers", total=len(jobs) + (not options.only))
        for k in jobs:
            progress.update(task, description=CASES[k].name)
            results["rows"].append(_row(k, options.quick, options.cap))
            JSON.write_text(json.dumps(results, indent=1))
            progress.advance(task)
        if not options.only:
            progress.update(task, description="batch and calls")
            results |= {"batch": _batch(), "calls": _calls()}
            progress.advance(task)
    JSON.write_text(json.dumps(results, indent=1))
    text = "\n".join(tables(results))
    console.print(text, markup=False, soft_wrap=True)
    if not options.only:
        into_page(PAGE, "programs", text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="leave out peers that take more than 30 s")
    parser.add_argument("--only", default="", help="only the rows whose name contains this text")
    parser.add_argument("--cap", type=int, default=180, help="CPU seconds after which a peer is stopped")
    return parser.parse_args()


def _row(index: int, quick: bool, cap: int) -> dict[str, Any]:
    case = CASES[index]
    peers: dict[str, Result] = {}
    for name in case.peers:
        skipped = quick and name in case.slow
        peers[name] = {"error": "skipped: > 30 s"} if skipped else in_child(name, index, cap=cap)
    ours = in_child("ours", index, cap=600)
    return {"program": case.program, "size": case.size, "target": case.target, "ours": ours, "peers": peers}


def _batch() -> dict[str, Result]:
    ours = in_child("batch", 0, threads=2, cap=600)  # one entry per number of threads, or an error
    return {**({"ours": ours} if "error" in ours else ours), "daqp": in_child("batch_daqp", 0, cap=600)}


def _calls() -> dict[str, dict[str, Result]]:
    """Per norm: the first call without and with the cache of compiled code, and a warm call."""
    first: dict[str, int] = {}
    for k, case in enumerate(CASES):
        first.setdefault(str(case.norm), k)
    calls = {}
    for norm, k in first.items():
        with tempfile.TemporaryDirectory() as empty:
            compile_it, cached = (in_child("first_call", k, NUMBA_CACHE_DIR=empty) for _ in range(2))
        calls[norm] = {"compile": compile_it, "cached": cached, "warm": in_child("tiny_call", k)}
    return calls


def _machine() -> dict[str, Any]:
    names = ("numpy", "scipy", "numba", "daqp", "quadprog", "cvxopt", "cvxpy", "clarabel", "scs")
    return {
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
    }


# ---------------------------------------------------------------------- tables


def tables(results: dict[str, Any]) -> Iterator[str]:
    """The results as Markdown."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    where = f"{machine['processor']}, load {machine['load']} at the start"
    yield f"{where}; Python {machine['python']}, {versions}.\n"
    yield "| program | (n, T, d) | ours, CPU s | gap or residual | work | peers, CPU s (ratio) | target |"
    yield "|---|---|---|---|---|---|---|"
    for row in results["rows"]:
        yield _line(row)
    if "batch" in results:
        yield from _batch_lines(results["batch"])
        yield from _call_lines(results["calls"])


def _line(row: dict[str, Any]) -> str:
    ours, size = row["ours"], ",".join(map(str, row["size"]))
    peers = ", ".join(f"{name} {_against(result, ours)}" for name, result in row["peers"].items())
    if "error" in ours:
        return f"| {row['program']} | ({size}) | {ours['error']} | – | – | {peers} | {row['target']} |"
    proof = f"{ours['gap']:.0e}" if "gap" in ours else f"{ours['residual']:.0e}, {ours['conflict']} rows"
    if not ours.get("certified", True):
        proof += " NOT certified"
    unit = "passes" if "prompt" in row["program"] else "matvecs"
    work = f"{ours['seconds'] / ours['unit_seconds']:.1f} {unit}, {ours['memory_mb']} MB"
    cells = row["program"], f"({size})", f"{ours['seconds']:.3g}", proof, work, peers or "–", row["target"]
    return f"| {' | '.join(cells)} |"


def _against(peer: Result, ours: Result) -> str:
    if "error" in peer:
        return f"({peer['error']})"
    ratio = f" ({peer['seconds'] / ours['seconds']:.3g}×)" if "seconds" in ours else ""
    return f"{peer['seconds']:.3g}{ratio}"


def _batch_lines(batch: dict[str, Result]) -> Iterator[str]:
    yield "\n4,000 Frobenius problems (6,8,10) at once, µs per problem:\n"
    yield "| who | CPU µs | wall µs | note |"
    yield "|---|---|---|---|"
    for solver, result in batch.items():
        if "error" in result:
            yield f"| {solver} | – | – | {result['error']} |"
            continue
        wall = f"{1e6 * result['wall']:.1f}" if "wall" in result else "–"
        note = (
            f"{1e6 * result['built']:.1f} µs with features built in the time"
            if "built" in result
            else f"{result['certified']} certified, largest gap {result['gap']:.0e}"
        )
        yield f"| {solver} | {1e6 * result['seconds']:.1f} | {wall} | {note} |"


def _call_lines(calls: dict[str, dict[str, Result]]) -> Iterator[str]:
    yield "\nOne call, CPU time:\n"
    yield "| norm | first call ever, s | first call of a process, s | warm (6,8,10), ms | warm prompt, ms |"
    yield "|---|---|---|---|---|"
    for norm, call in calls.items():
        cells = [_cell(call[key], "seconds", 1.0) for key in ("compile", "cached")]
        cells += [_cell(call["warm"], key, 1e3) for key in ("seconds", "prompt")]
        yield f"| {norm} | {' | '.join(cells)} |"


def _cell(result: Result, key: str, scale: float) -> str:
    return f"{scale * result[key]:.3g}" if key in result else str(result.get("error", "–"))


if __name__ == "__main__":
    main()
