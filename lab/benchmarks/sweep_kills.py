"""Studies killed at random, resumed and compared: python lab/benchmarks/sweep_kills.py [ROUNDS [SEED]].

A study runs in processes of its own, on worker processes or on Dask's local cluster. Each round waits for a
new batch and then, at a random moment, sends SIGKILL to the client alone, to one worker, or to everything at
once, as a power cut would. A study whose client died is started again on the same folder, until it ends.
Wanted after every round: each file that was finished is whole, as it was, and holds what an undisturbed run
holds; no process is left behind. Wanted of every study that ends: the undisturbed table, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path as File

from attsvm_lab.sweeps.store import Store

STUDY = """
measure = ["kind"]
seeds = 1024
[data]
model = "prompt_sphere"
n = 2
T = [2, 4, 7]
d = [2, 5]
[train]
steps = [200, 400]
lr = 0.5
"""
ENDS = ("client", "worker", "power")


def start(study: File, out: File, cluster: bool) -> subprocess.Popen:
    """The study in a session of its own, so that all of its processes can be found and killed."""
    command = [sys.executable, "-m", "attsvm", "sweep", str(study), "--out", str(out)]
    command += ["--cluster", "local:2"] if cluster else []
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, start_new_session=True, stdout=silent, stderr=silent)


def members(session: int) -> list[int]:
    """The processes of a session, from /proc."""
    contents_of = []
    for folder in File("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            contents_of.append(int(folder.name))
    return contents_of


def workers(session: int) -> list[int]:
    """Those of them that have loaded JAX's compiler: they compute."""
    busy = []
    for pid in members(session):
        try:
            if pid != session and "jaxlib" in (File("/proc") / str(pid) / "maps").read_text():
                busy.append(pid)
        except OSError:
            continue
    return busy


def kill(process: subprocess.Popen, target: str) -> str:
    """SIGKILL to the client, to one computing process, or to all; says what was hit."""
    members_of_process, able = members(process.pid), workers(process.pid)
    victims = {"client": [process.pid], "power": members_of_process}.get(target) or random.sample(
        able, min(1, len(able))
    )
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return f"{target}: {len(victims)} of {len(members_of_process)} processes"


def finished(out: File) -> dict[str, tuple[int, int]]:
    """The batch files, each with its inode and time: a file written again has others."""
    files = (out / "batches").glob("*.parquet") if out.exists() else []
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def contents(out: File) -> dict[tuple[str, int, int], list]:
    """What the files of a folder hold."""
    keys = {piece for file in (out / "batches").glob("*.parquet") for piece in keys_of(file)}
    pieces = [piece for pieces_of in Store(out, keys).pieces.values() for piece in pieces_of]
    return {(p.key, p.start, p.stop): [(n, c.tolist()) for n, c in p.columns.items()] for p in pieces}


def keys_of(file: File) -> list[str]:
    import json

    import pyarrow.parquet

    return [piece[0] for piece in json.loads(pyarrow.parquet.read_schema(file).metadata[b"pieces"])]


class Run:
    """One study in one folder, killed and started again until it ends."""

    def __init__(self, study: File, out: File, cluster: bool) -> None:
        self.study, self.out, self.cluster = study, out, cluster
        self.process = start(study, out, cluster)

    def strike(self, target: str, expected: dict) -> tuple[bool, str]:
        """One round; False with its reason where something is not as wanted."""
        finished_before = set(finished(self.out))
        while set(finished(self.out)) <= finished_before and self.process.poll() is None:
            time.sleep(0.02)
        time.sleep(random.uniform(0, 1.0))
        if self.process.poll() is not None:
            return self.process.returncode == 0, ""
        hit, finished_batches, survivors = kill(self.process, target), finished(self.out), []
        if target != "worker":
            self.process.wait()
            time.sleep(3.0)
            survivors = members(self.process.pid)
        stored = contents(self.out)
        complete = len(stored) > 0 and all(expected[piece] == columns for piece, columns in stored.items())
        unchanged = all(finished(self.out).get(name) == mark for name, mark in finished_batches.items())
        if target != "worker":
            self.process = start(self.study, self.out, self.cluster)
        text = f"{hit:34s} {len(finished_batches):4d} files held"
        return (
            complete and unchanged and not survivors,
            text
            if complete and unchanged and not survivors
            else f"{text} {complete} {unchanged} {survivors}",
        )


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]]
    rounds, first = [*numbers, *(24, 0)[len(numbers) :]]
    random.seed(first)
    successes, number, finished_runs = [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = File(name)
        study = folder / "study.toml"
        study.write_text(STUDY)
        began = time.perf_counter()
        if start(study, folder / "alone", False).wait() != 0:
            sys.exit("the undisturbed study failed")
        table, expected = (folder / "alone" / "runs.parquet").read_bytes(), contents(folder / "alone")
        count = len(finished(folder / "alone"))
        print(
            f"undisturbed: {time.perf_counter() - began:.1f} s, {count} files, {len(table)} bytes", flush=True
        )
        for cluster_index, cluster in enumerate((False, True)):
            where, run, stop = "dask" if cluster else "processes", None, (cluster_index + 1) * rounds // 2
            while number < stop or run is not None:
                if run is None:
                    run = Run(study, folder / f"{where}{number}", cluster)
                if number < stop:
                    fine, text = run.strike(ENDS[number % 3], expected)
                    if text:
                        successes.append(fine)
                        print(f"{number:3d} {where:9s} {text} {'good' if fine else 'BAD'}", flush=True)
                        number += 1
                        continue
                code = run.process.wait()
                equal = code == 0 and (run.out / "runs.parquet").read_bytes() == table
                successes.append(equal)
                finished_runs += 1
                print(
                    f"    {where} ended with code {code}: {'the equal bytes' if equal else 'BAD'}", flush=True
                )
                run = None
    print(f"{number} kills, {finished_runs} studies ended, {sum(successes)} of {len(successes)} checks good")
    sys.exit(0 if all(successes) else 1)


if __name__ == "__main__":
    main()
