"""Time against the number of examples, in every norm, beside peers: `python lab/benchmarks/scaling.py`.

    --quick              one width, n to 20,000, about two minutes
    --only TEXT          only the series whose name contains the text
    --threads N          beside it the largest programs again with N threads
    --out FILE           the record goes there, and the page of the docs stays as it is
    --resume             go on with an interrupted record: what it holds is not measured again
    --draw FILE [FILE]   no measurement: page and chart from records, further ones in short

Plain Gaussian tokens, the selected token is the argmax of a random W. Every measurement has a process of its
own, on one core; a series ends at the first n where a call needs more than --cap CPU seconds. Writes
lab/benchmarks/scaling.json after every measurement, then docs/images/scaling.svg and docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import attsvm
from measure import Result, in_child, into_page
from scaling_cases import CASES, OURS, SERIES, Series
from scaling_page import Record, cell_of, chart, page, tables

ROOT = Path(__file__).parents[2]
JSON = ROOT / "lab" / "benchmarks" / "scaling.json"
PAGE, CHART = ROOT / "docs" / "performance.md", ROOT / "docs" / "images" / "scaling.svg"

PACKAGES = {
    "daqp": "daqp",
    "Clarabel": "clarabel",
    "SCS": "scs",
    "Moreau": "moreau",
    "liblinear": "scikit-learn",
}
"""The package that each peer comes with; all but daqp and liblinear are called by cvxpy."""
MODELLED = ("Clarabel", "SCS", "Moreau")
QUICK_WIDTHS = (12, 16)
GIGABYTE = 2**30


def main() -> None:
    """Measure, write the record after every measurement, and draw the page."""
    options = _options()
    if options.draw:
        publish([json.loads(file.read_text(encoding="utf8")) for file in options.draw])
        return
    file = options.out or JSON
    missing = [solver for solver in PACKAGES if not _installed(solver)]
    selected_series = [
        series for series in SERIES if options.only in series.name and series.who not in missing
    ]
    if options.quick:
        selected_series = [series for series in selected_series if series.d in QUICK_WIDTHS]
    selected_series.sort(
        key=lambda series: series.d not in QUICK_WIDTHS
    )  # what the chart needs most comes first
    record: Record = {"machine": _machine(), "cap": options.cap, "missing": missing, "rows": []}
    if options.resume:
        earlier = json.loads(file.read_text("utf8"))
        record["rows"] = [row for row in earlier["rows"] if _settled(row, earlier["cap"], options.cap)]
    print(f"{len(selected_series)} series; not installed: {', '.join(missing) or 'nothing'}", flush=True)
    largest = 20_000 if options.quick else math.inf
    run = Run(record, file, options.cap, options.jobs, largest)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run.series, selected_series))
    if options.threads > 1:
        run.with_threads([series for series in selected_series if series.who == OURS], options.threads)
    print("\n".join(tables(record)))
    if not (options.only or options.quick or options.out):
        publish([record])


def publish(records: list[Record]) -> None:
    """Chart and tables of the docs: summaries, and the peers of the first record."""
    chart(records[0], CHART)
    into_page(PAGE, "scaling", "\n".join(page(records)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--cap", type=int, default=40, help="CPU seconds of one call (40)")
    parser.add_argument("--jobs", type=int, default=2, help="measurements at a time, a core each (2)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--draw", type=Path, nargs="+")
    return parser.parse_args()


class Run:
    """Measurements on the way into a record; every worker has a core of its own."""

    def __init__(self, record: Record, file: Path, cap: int, jobs: int, largest: float) -> None:
        self.record, self.file, self.cap, self.largest = record, file, cap, largest
        self.writing, self.large_memory = Lock(), Lock()
        self.cores: SimpleQueue[int] = SimpleQueue()
        for core in _cores()[:jobs]:
            self.cores.put(core)

    def series(self, series: Series) -> None:
        """One series from small n to large, until one n fails."""
        rows = [row for row in self.record["rows"] if row["name"] == series.name]
        measured = {row["n"] for row in rows}
        failed = any("error" in row for row in rows)
        for index in [] if failed else _cases(series, self.largest):
            if CASES[index][1] in measured:
                continue
            core = self.cores.get()
            result = self._alone(index, lambda k=index, core=core: self._measured(k, 1, [core]))
            self.cores.put(core)
            self._write("rows", index, result)
            if "error" in result:
                break

    def with_threads(self, selected_series: list[Series], threads: int) -> None:
        """The largest program of each series that was solved, by wall time, on one core and on several."""
        solved = {(row["name"], row["n"]) for row in self.record["rows"] if "seconds" in row}
        for series in selected_series:
            solved_cases = [k for k in _cases(series, self.largest) if (series.name, CASES[k][1]) in solved]
            if solved_cases:
                with_one, with_all = (self._measured(solved_cases[-1], k, _cores()[:k]) for k in (1, threads))
                both = {"one": with_one, "many": with_all, "threads": threads}
                self._write(
                    "threads",
                    solved_cases[-1],
                    {"error": "failed"} | both if "error" in with_one | with_all else both,
                )

    def _alone(self, index: int, measure: Callable[[], Result]) -> Result:
        """Programs of more than a gigabyte of keys take turns: several may not fit into memory."""
        series, n = CASES[index]
        if 8 * n * series.T * series.d < GIGABYTE:
            return measure()
        with self.large_memory:
            return measure()

    def _measured(self, index: int, threads: int, cores: list[int]) -> Result:
        blas = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        limits = {"CORES": ",".join(map(str, cores)), "CAP": str(threads * self.cap)}
        process_cap = threads * (3 * self.cap + 120)
        result = in_child("scaling_cases.measured", index, threads=threads, cap=process_cap, **blas, **limits)
        stopped = result.get("error", "").startswith(">")
        return {"error": f"> {threads * self.cap} s"} if stopped else result

    def _write(self, name: str, index: int, result: Result) -> None:
        series, n = CASES[index]
        row = {"name": series.name, "program": series.program, "T": series.T, "d": series.d}
        row |= {"prompt": series.prompt, "who": series.who, "n": n} | result
        with self.writing:
            self.record.setdefault(name, []).append(row)
            self.file.write_text(json.dumps(self.record, indent=0) + "\n", encoding="utf8")
            print(f"{series.name}, n = {n:,}: {cell_of(row)}", flush=True)


def _settled(row: Record, earlier_cap: int, cap: int) -> bool:
    """Whether another run with this cap could add nothing to a row."""
    return "error" not in row or (row["error"].startswith(">") and cap <= earlier_cap)


def _cases(series: Series, largest: float) -> list[int]:
    return [k for k, (case_series, n) in enumerate(CASES) if case_series == series and n <= largest]


def _cores() -> list[int]:
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def _installed(solver: str) -> bool:
    return all(_version(name) for name in (PACKAGES[solver], *(("cvxpy",) if solver in MODELLED else ())))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the attsvm that is measured, where its files are a checkout."""
    command = ["git", "-C", str(Path(attsvm.__file__).parent), "rev-parse", "--short=10", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _machine() -> dict[str, Any]:
    names = ("numpy", "scipy", "numba", "cvxpy", *PACKAGES.values())
    return {
        "processor": f"{platform.machine()}, {len(_cores())} cores",
        "load": round(os.getloadavg()[0], 1),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: number for name in names if (number := _version(name))},
    }


if __name__ == "__main__":
    main()
