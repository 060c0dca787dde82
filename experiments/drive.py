"""Many trainings side by side on one machine:  python experiments/drive.py PLAN OUT --seconds 560

PLAN is a text file. A line is the arguments of run.py for one training (--keep last); all lines of a phase
run at the same time, and `phase SHARE` begins a phase that may take this share of the time. A phase that ends
early leaves its time to the next. Called again, every training goes on from its checkpoint. What is small
(records, kept heads and maps, logs) is gathered under OUT/small; checkpoints stay behind.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SPARE = 12.0
"""Seconds of a phase for starting, saving and gathering."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--data", type=Path, default=Path("out/data"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + given.seconds
    phases = read(given.plan)
    while phases:
        share, lines = phases.pop(0)
        total = share + sum(later for later, _ in phases)
        left = (end - time.time()) * share / total
        together(lines, given.out, given.data, left)
        gather(given.out)
        print(f"{end - time.time():.0f} s left after {len(lines)} trainings", flush=True)


def read(plan: Path) -> list[tuple[float, list[str]]]:
    """(share, lines) of every phase."""
    phases: list[tuple[float, list[str]]] = []
    for line in (text.split("#")[0].strip() for text in plan.read_text(encoding="utf8").splitlines()):
        if line.startswith("phase"):
            phases.append((float(line.split()[1]), []))
        elif line:
            phases[-1][1].append(line)
    return phases


def together(lines: list[str], out: Path, data: Path, seconds: float, *more: str) -> None:
    """Run all lines at once; one that fails, or outlives its time, does not disturb the others.

    more: arguments for all of them, which do not enter their names.
    """
    start, running = time.time(), {}
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _paths(), "PYTHONUNBUFFERED": "1"}
    for line in lines:
        name = name_of(line)
        place = out / name
        place.mkdir(parents=True, exist_ok=True)
        limit = max(seconds - SPARE, 1.0)
        words = [
            sys.executable,
            str(HERE / "run.py"),
            *shlex.split(line),
            *more,
            "--out",
            str(place),
            "--data",
            str(data),
        ]
        log = open(place / "log.txt", "a", encoding="utf8")  # noqa: SIM115 - closed with its process
        running[name] = (
            subprocess.Popen([*words, "--deadline", f"{start + limit:.0f}"], stdout=log, stderr=log, env=env),
            log,
        )
    for name, (process, log) in running.items():
        try:
            code = process.wait(timeout=max(start + seconds - time.time(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        log.close()
        tail = (out / name / "log.txt").read_text(encoding="utf8").strip().splitlines()[-1:]
        print(f"{name}: exit {code} {' '.join(tail)}", flush=True)


def _paths() -> str:
    return os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def name_of(line: str) -> str:
    """The folder of a training: its arguments without their names."""
    words = [
        word
        for word in shlex.split(line.split("--keep")[0])
        if not word.startswith("--") or word == "--selective"
    ]
    return "-".join(words).replace(":", "").replace("/", "_").replace("--", "")


def gather(out: Path) -> None:
    """Copy what is small."""
    for file in out.glob("*/*"):
        kind = file.name.startswith(("records", "about", "last.", "heads-", "maps-", "log"))
        if kind and file.parent.name != "small":
            place = out / "small" / file.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place / file.name)


if __name__ == "__main__":
    main()
