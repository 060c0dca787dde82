"""Compute figures, several at a time, and store each finished one, so that an interrupted run resumes.

`recompute` trains the runs of recorded figures again, by `lab/experiments/again.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path as File
from typing import Any

import numpy as np

from attsvm.plotting.style import write_svg
from attsvm.training.compilation import few_optimisations
from attsvm_lab import figures
from attsvm_lab.figures import KINDS, Check, Figure, Provenance, Scale, Status
from attsvm_lab.figures.figure import AGREES, items, summary
from attsvm_lab.figures.recorded import FOLDER, content
from attsvm_lab.fingerprint import code_fingerprint
from attsvm_lab.workers import using


@dataclass(frozen=True)
class Result:
    """A figure as it was computed: its checks, and what it took.

    sizes: what the scale passed to the experiment. seconds: processor time, compilation included.
    error: why it could not be computed; empty when it could.
    """

    name: str
    scale: Scale
    sizes: Mapping[str, Any]
    checks: tuple[Check, ...]
    seconds: float
    error: str = ""

    @property
    def figure(self) -> Figure:
        return figures.ALL[self.name]

    @property
    def outcome(self) -> str:
        """How many numbers agree, or why there are none, in words."""
        if self.error or not self.checks:
            return self.error or "nothing to compare"
        return summary(sum((Counter(c) for c in self.by_kind.values()), Counter()), "numbers")

    @property
    def by_kind(self) -> dict[Provenance, Counter[Status]]:
        """How many numbers of each kind of reference have each status, each number once."""
        counts = {kind: Counter(items(self.checks, (kind,)).values()) for kind in KINDS}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def kinds(self) -> str:
        """How many numbers of each kind of reference agree, in words."""
        return ", ".join(
            f"{counts[AGREES]} of {counts.total()} {kind}" for kind, counts in self.by_kind.items()
        )


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: File,
    executor: Executor | None = None,
    finished: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Compute, draw and check the named figures, and write NAME.npz and NAME.svg into the folder `out`.

    Figures in `out` from the same code, sizes and libraries are not computed again.
    executor: where the figures run; worker processes by default. All workers must see the same folder `out`.
    finished: called with each result as it arrives. Returns the results in the order of the names.
    """
    results: dict[str, Result] = {}

    def collect(result: Result) -> None:
        for file in _folder(result.name, scale, out).glob(f"{result.name}.*"):
            shutil.copyfile(file, out / file.name)
        results[result.name] = result
        finished(result)

    for name in names:
        if (cached := stored(name, scale, out)) is not None:
            collect(cached)
    for result in _run([name for name in names if name not in results], scale, out.absolute(), executor):
        collect(result)
    return [results[name] for name in names]


def stored(name: str, scale: Scale, out: File) -> Result | None:
    """The finished figure in the cache of `out`, if code and sizes are still the same."""
    record = _read(name, scale, out)
    if record is None or record["key"] != fingerprint(figures.ALL[name], scale):
        return None
    checks = tuple(map(Check.from_record, record["result"].pop("checks")))
    return Result(checks=checks, **record["result"])


def fingerprint(figure: Figure, scale: Scale) -> str:
    """Hash of everything a figure depends on: sizes, our code, versions of the libraries, its record."""
    record = content(figure.record) if figure.record else ""
    inputs = (figure.name, repr(dict(figure.sizes[scale])), code_fingerprint("figures", "claims"), record)
    return hashlib.sha256("\n".join(inputs).encode()).hexdigest()


def recompute(names: Sequence[str], data: File, out: File, tiny: bool = False) -> None:
    """Train the runs of the named recorded figures again; figures of this process then read the new records.

    names: of figures, none for all. data: the folder of lab/experiments/data.py. out: the folder of the
    trainings; the same call resumes. tiny: a few examples for two epochs, on any machine; otherwise on a GPU.
    """
    recorded = [name for name, figure in figures.ALL.items() if "experiments/" in figure.recorded]
    selected = [name for name in names or recorded if name in recorded]
    if not selected:
        raise ValueError(f"none of these figures is recorded. --data computes again: {', '.join(recorded)}.")
    if not data.is_dir():
        raise FileNotFoundError(f"no folder {data}. Make it: python lab/experiments/data.py reviews {data}")
    arguments = [*selected, "--data", str(data), "--out", str(out), *(["--tiny"] if tiny else [])]
    if subprocess.run([sys.executable, str(script()), *arguments], check=False).returncode:
        raise ChildProcessError("the trainings did not come to their end. The same command goes on.")
    os.environ[FOLDER] = str((out / "records").absolute())


def script() -> File:
    """lab/experiments/again.py of the checkout that attsvm is installed from, or of the working folder."""
    for root in (File(__file__).parents[2], File.cwd()):
        if (file := root / "lab" / "experiments" / "again.py").is_file():
            return file
    raise FileNotFoundError(
        "the folder lab/experiments/ is not here: the wheel does not hold it. Run in a checkout."
    )


# ---------------------------------------------------------------------- one figure


def make(name: str, scale: Scale, out: File) -> Result:
    """Compute, draw, check and store one figure. A failed one is not stored; the result has its error."""
    start = time.process_time()
    figure = figures.ALL[name]
    result = Result(name, scale, dict(figure.sizes[scale]), (), 0.0)
    folder = _folder(name, scale, out)
    shutil.rmtree(folder, ignore_errors=True)  # remove the files of an interrupted run
    folder.mkdir(parents=True)
    try:
        short = scale == "quick" and not figure.long_runs
        with few_optimisations() if short else nullcontext():
            arrays = figure.compute(scale)
        checks = figure.rows(arrays)
        np.savez(folder / f"{name}.npz", **arrays)
        if (picture := figure.picture(arrays)) is not None:
            write_svg(picture, folder / f"{name}.svg")
    except Exception as error:  # the other figures and the page are still wanted
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf8")
        message = " ".join(str(error).split()) or "no message"
        return replace(result, error=f"{type(error).__name__}: {message}", seconds=_since(start))
    result = replace(result, checks=checks, seconds=_since(start))
    record = {"key": fingerprint(figure, scale), "result": asdict(result)}
    (folder / "writing").write_text(json.dumps(record), encoding="utf8")
    (folder / "writing").replace(folder / "result.json")
    return result


def _since(start: float) -> float:
    return round(time.process_time() - start, 1)


def _folder(name: str, scale: Scale, out: File) -> File:
    return out / ".cache" / f"{name}-{scale}"


def _read(name: str, scale: Scale, out: File) -> dict[str, Any] | None:
    try:
        return dict(json.loads((_folder(name, scale, out) / "result.json").read_text(encoding="utf8")))
    except (OSError, ValueError):  # no record, or a damaged one
        return None


# ---------------------------------------------------------------------- several at a time


def _run(names: list[str], scale: Scale, out: File, executor: Executor | None) -> Iterator[Result]:
    """Results as they come, the longest figures started first so that no core idles at the end."""
    names = sorted(names, key=lambda name: _cost(name, scale, out), reverse=True)
    with using(executor, len(names)) as pool:
        jobs = [pool.submit(make, name, scale, out) for name in names]
        yield from (job.result() for job in as_completed(jobs))


def _cost(name: str, scale: Scale, out: File) -> float:
    """Seconds of an earlier run at this scale, by any code; without one, those that the figure declares."""
    record = _read(name, scale, out)
    return figures.ALL[name].seconds if record is None else float(record["result"]["seconds"])
