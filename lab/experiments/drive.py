"""Many trainings side by side on one machine:  python lab/experiments/drive.py PLAN OUT --seconds 560

PLAN is a text file, the most important first. A line is the arguments of run.py for one training; what stands
after --keep does not enter its name. Some lines run at the same time, and when one has ended the next begins.
Called again, every training goes on from its checkpoint. A training that begins with the weights of another
one of the plan (--from) waits for it. --had RECORD leaves out what a record of summary.py has to its end, so
that a plan is gone through over several machines. What is small (records, kept heads and maps, logs) is
gathered under OUT/small; checkpoints stay behind. What failed is named, and the exit code is 1: where the
disk was full, make room and call again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attsvm.numbers.atomic_write import replacing

HERE = Path(__file__).parent
SPARE = 12.0
"""Seconds at the end for saving and gathering."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--at-once", type=int, default=6, help="trainings that run at the same time")
    parser.add_argument("--data", type=Path, default=Path("out/data"))
    parser.add_argument("--had", type=Path, help="a record, transformers.json: what ended there is left out")
    options = parser.parse_args(arguments)
    lines = read(options.plan)
    lines = lines if options.had is None else missing(lines, options.had)
    failed = [
        *drive(lines, options.out, options.data, options.seconds, options.at_once),
        *gather(options.out),
    ]
    if failed:
        sys.exit(f"failed: {', '.join(dict.fromkeys(failed))}")


def read(plan: Path) -> list[str]:
    """The lines of a plan, without comments."""
    lines = (text.split("#")[0].strip() for text in plan.read_text(encoding="utf8").splitlines())
    return [line for line in lines if line]


def missing(lines: list[str], record: Path) -> list[str]:
    """The lines whose trainings have not come to their end in a record, and those which these begin with."""
    runs = json.loads(record.read_text(encoding="utf8"))["runs"]
    unfinished = [line for line in lines if not runs.get(name_of(line), {}).get("ended")]
    needed = {source_of(line) for line in unfinished}
    return [line for line in lines if line in unfinished or name_of(line) in needed]


def source_of(line: str) -> str | None:
    """The training whose weights a line begins with."""
    arguments = shlex.split(line)
    return arguments[arguments.index("--from") + 1] if "--from" in arguments else None


def drive(
    lines: list[str], out: Path, data: Path, seconds: float, at_once: int, *extra_options: str
) -> list[str]:
    """Run the lines in their order; one that fails, or outlives its time, does not disturb the others.

    more: arguments for all of them, which do not enter their names. Returns the names of those that failed.
    """
    failed: list[str] = []
    end, waiting = time.time() + seconds, [line for line in lines if not ended(out / name_of(line))]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while running or (waiting and time.time() < end - 2 * SPARE):
        while len(running) < at_once and time.time() < end - 2 * SPARE:
            unfinished_names = {*map(name_of, waiting), *running}
            line = next((line for line in waiting if source_of(line) not in unfinished_names), None)
            if line is None:
                break
            waiting.remove(line)
            name = name_of(line)
            try:
                running[name] = started(line, out / name, data, end - SPARE, extra_options)
            except OSError as error:
                failed.append(name)
                say(f"{name}: not started: {error}")
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            remaining = f"{end - time.time():.0f} s left: " if end < math.inf else ""
            say(f"{remaining}{name}: {outcome(code, out / name)}")
            failed += [name] if code else []
        if time.time() > end:
            for process in running.values():
                process.kill()
    return failed


def outcome(code: int, place: Path) -> str:
    """How a training ended, by its exit code and the last line of its log, which a full disk may have cut."""
    log = place / "log.txt"
    text = log.read_text(encoding="utf8", errors="replace") if log.is_file() else ""
    tail = " ".join(text.strip().splitlines()[-1:])
    if not code:
        return f"exit 0 {tail}"
    free = shutil.disk_usage(place).free / 2**20
    return f"FAILED, exit {code}, {free:,.0f} MiB free on its disk; the last line of its log: {tail}"


def say(text: str) -> None:
    """Print, if that can be written: trainings go on while this waits for them."""
    with suppress(OSError):
        print(text, flush=True)


def started(line: str, place: Path, data: Path, deadline: float, extra_options: tuple[str, ...]) -> Any:
    """The process of one training."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / "run.py"), *shlex.split(line), *extra_options]
    command += ["--out", str(place), "--data", str(data), "--deadline", f"{deadline:.0f}"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _paths(), "PYTHONUNBUFFERED": "1"}
    with open(place / "log.txt", "a", encoding="utf8") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env)


def ended(place: Path) -> bool:
    """Whether a training has come to its end, not only to a deadline."""
    file = place / "last.json"
    return file.is_file() and bool(json.loads(file.read_text(encoding="utf8")).get("ended"))


def _paths() -> str:
    return os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


FLAGS = ("--selective", "--unmasked", "--no-half")
"""Arguments without a value that belong to a training's name."""


def name_of(line: str) -> str:
    """The folder of a training: its arguments without their names."""
    arguments = shlex.split(line.split("--keep")[0])
    arguments = [argument for argument in arguments if not argument.startswith("--") or argument in FLAGS]
    return "-".join(arguments).replace(":", "").replace("/", "_").replace("--", "")


def gather(out: Path) -> list[str]:
    """Copy what is small, each file whole or not at all; the trainings of which one could not be copied."""
    failed = []
    for file in out.glob("*/*"):
        kind = file.name.startswith(("records", "about", "last.", "heads-", "maps-", "log"))
        if kind and file.parent.name != "small":
            place = out / "small" / file.parent.name
            try:
                place.mkdir(parents=True, exist_ok=True)
                with replacing(place / file.name) as unfinished:
                    shutil.copy2(file, unfinished)
            except OSError as error:
                failed.append(file.parent.name)
                say(f"{file.parent.name}: {file.name} not gathered: {error}")
    return failed


if __name__ == "__main__":
    main()
