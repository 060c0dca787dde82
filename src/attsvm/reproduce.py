"""Run figures, several at a time, and keep each one that is finished: an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
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

from attsvm import figures
from attsvm.figures import KINDS, Check, Figure, Scale
from attsvm.figures.figure import told
from attsvm.figures.recorded import content
from attsvm.fingerprint import code_fingerprint
from attsvm.training.compilation import few_optimisations
from attsvm.workers import using


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
        counts = Counter(check.agreement for check in self.checks)
        return told(counts, "numbers")

    @property
    def kinds(self) -> str:
        """How many numbers of each kind of reference agree, in words."""
        of = {kind: [check.agrees for check in self.checks if check.provenance == kind] for kind in KINDS}
        return ", ".join(f"{sum(each)} of {len(each)} {kind}" for kind, each in of.items() if each)


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: File,
    executor: Executor | None = None,
    finished: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Compute, draw and check the named figures, and leave NAME.npz and NAME.svg in the folder `out`.

    What `out` already holds from the same code, sizes and libraries is not computed again.
    executor: where the figures run; worker processes by default. Elsewhere `out` must be the same folder.
    finished: is told each result as it comes. Returns the results in the order of the names.
    """
    results: dict[str, Result] = {}

    def keep(result: Result) -> None:
        for file in _folder(result.name, scale, out).glob(f"{result.name}.*"):
            shutil.copyfile(file, out / file.name)
        results[result.name] = result
        finished(result)

    for name in names:
        if (kept := stored(name, scale, out)) is not None:
            keep(kept)
    for result in _run([name for name in names if name not in results], scale, out.absolute(), executor):
        keep(result)
    return [results[name] for name in names]


def stored(name: str, scale: Scale, out: File) -> Result | None:
    """The finished figure in the store of `out`, if code and sizes are still the same."""
    kept = _read(name, scale, out)
    current = kept is not None and kept["key"] == fingerprint(figures.ALL[name], scale)
    return _from_record(kept["result"]) if kept is not None and current else None


def fingerprint(figure: Figure, scale: Scale) -> str:
    """Hash of everything a figure depends on: sizes, our code, versions of the libraries, its record."""
    record = content(figure.record) if figure.record else ""
    parts = (figure.name, repr(dict(figure.sizes[scale])), code_fingerprint(), record)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_svg(canvas: Any, file: File) -> None:
    """Write a drawing; the same drawing gives the same bytes.

    Matplotlib draws its ids at random, so that two files of one figure would always differ.
    """
    canvas.savefig(file, metadata={"Date": None})
    text = file.read_text(encoding="utf8")
    names = {old: f"{file.stem}-{k}" for k, old in enumerate(re.findall(r'\bid="([^"]+)"', text))}
    used = re.compile(r'(?<=\bid=")[^"]+|(?<=#)[\w.-]+(?=["\)])')
    file.write_text(used.sub(lambda found: names.get(found[0], found[0]), text), encoding="utf8")


# ---------------------------------------------------------------------- one figure


def make(name: str, scale: Scale, out: File) -> Result:
    """Compute, draw, check and store one figure; one that fails says why and is not stored."""
    began = time.process_time()
    figure = figures.ALL[name]
    result = Result(name, scale, dict(figure.sizes[scale]), (), 0.0)
    folder = _folder(name, scale, out)
    shutil.rmtree(folder, ignore_errors=True)  # a half-written figure must not look finished
    folder.mkdir(parents=True)
    try:
        short = scale == "quick" and not figure.long_runs
        with few_optimisations() if short else nullcontext():
            arrays = figure.compute(scale)
        checks = tuple(figure.checks(arrays))
        np.savez(folder / f"{name}.npz", **arrays)
        if (picture := figure.picture(arrays)) is not None:
            write_svg(picture, folder / f"{name}.svg")
    except Exception as error:  # one broken figure must not take the page with it
        (folder / "error.txt").write_text(traceback.format_exc(), encoding="utf8")
        said = " ".join(str(error).split()) or "no message"
        return replace(result, error=f"{type(error).__name__}: {said}", seconds=_since(began))
    result = replace(result, checks=checks, seconds=_since(began))
    record = {"key": fingerprint(figure, scale), "result": asdict(result)}
    (folder / "writing").write_text(json.dumps(record), encoding="utf8")
    (folder / "writing").replace(folder / "result.json")
    return result


def _since(began: float) -> float:
    return round(time.process_time() - began, 1)


def _folder(name: str, scale: Scale, out: File) -> File:
    return out / ".cache" / f"{name}-{scale}"


def _read(name: str, scale: Scale, out: File) -> dict[str, Any] | None:
    try:
        return dict(json.loads((_folder(name, scale, out) / "result.json").read_text(encoding="utf8")))
    except (OSError, ValueError):  # none yet, or not ours: compute it
        return None


def _from_record(record: dict[str, Any]) -> Result:
    checks = tuple(map(Check.from_record, record.pop("checks")))
    return Result(checks=checks, **record)


# ---------------------------------------------------------------------- several at a time


def _run(names: list[str], scale: Scale, out: File, executor: Executor | None) -> Iterator[Result]:
    """Results as they come, the longest figures started first so that no core idles at the end."""
    names = sorted(names, key=lambda name: _cost(name, scale, out), reverse=True)
    with using(executor, len(names)) as pool:
        jobs = [pool.submit(make, name, scale, out) for name in names]
        yield from (job.result() for job in as_completed(jobs))


def _cost(name: str, scale: Scale, out: File) -> float:
    """Seconds of an earlier run at this scale, by any code; without one, those that the figure declares."""
    kept = _read(name, scale, out)
    return figures.ALL[name].seconds if kept is None else float(kept["result"]["seconds"])
