"""Studies killed at random moments, resumed and compared: python benchmarks/sweep_kills.py [ROUNDS [SEED]].

Each round runs one study in processes of its own, on worker processes or on Dask's local cluster, and sends
SIGKILL at a random moment to the client alone, to one worker, or to everything at once, as a power cut would.
Then the study is resumed until it ends. Wanted: the bytes of the table of an undisturbed run, no batch file
that was finished before the kill ever written again, and no process left behind.
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

STUDY = """
measure = ["kind", "margin_ratio"]
seeds = 192
[data]
model = ["prompt_sphere", "sphere"]
n = [1, 2]
T = [2, 4, 7]
d = [2, 5]
[train]
steps = [100, 400]
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
    found = []
    for folder in File("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


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


def kill(process: subprocess.Popen, what: str) -> str:
    """SIGKILL to the client, to one computing process, or to all; says what was hit."""
    if process.poll() is not None:
        return "nothing, it had ended"
    own = members(process.pid)
    chosen = {"client": [process.pid], "power": own}.get(what) or random.sample(workers(process.pid), 1)
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return f"{what}: {len(chosen)} of {len(own)} processes"


def finished(out: File) -> dict[str, tuple[int, int]]:
    """The batch files, each with its inode and time: a file written again has others."""
    files = (out / "batches").glob("*.parquet") if out.exists() else []
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def one_round(number: int, study: File, folder: File, reference: bytes, seconds: float) -> bool:
    cluster, what, out = number % 2 == 1, ENDS[number // 2 % 3], folder / str(number)
    process = start(study, out, cluster)
    # The moments of interest are those between writes: begin when the first batch is there, or near it.
    began = time.perf_counter()
    while not finished(out) and process.poll() is None and time.perf_counter() - began < 120:
        time.sleep(0.05)
    time.sleep(random.uniform(0, seconds))
    hit, held = kill(process, what), finished(out)
    try:
        process.wait(600 if what == "worker" else 10)
    except subprocess.TimeoutExpired:
        return print(f"{number}: {hit}: did not end") or False
    time.sleep(2.0 if what != "worker" else 0.5)
    left = members(process.pid)
    again = start(study, out, cluster)
    code = again.wait(600)
    table = out / "runs.parquet"
    same = table.exists() and table.read_bytes() == reference
    kept = all(finished(out).get(name) == mark for name, mark in held.items())
    good = code == 0 and same and kept and not left
    where = "dask" if cluster else "processes"
    told = f"{len(held)} files held, {len(finished(out))} at the end"
    print(f"{number:3d} {where:9s} {hit:32s} {told:36s} {'good' if good else 'BAD'}", flush=True)
    if not good:
        print(f"    code {code}, same {same}, kept {kept}, left {left}", flush=True)
    return good


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    rounds, first = [*given, *(24, 0)[len(given) :]]
    random.seed(first)
    with tempfile.TemporaryDirectory() as name:
        folder = File(name)
        study = folder / "study.toml"
        study.write_text(STUDY)
        for reference in ("warm", "reference"):
            began = time.perf_counter()
            if start(study, folder / reference, False).wait() != 0:
                sys.exit("the undisturbed study failed")
        seconds = time.perf_counter() - began
        table = (folder / "reference" / "runs.parquet").read_bytes()
        count = len(finished(folder / "reference"))
        print(f"undisturbed: {seconds:.1f} s, {count} batch files, {len(table)} bytes", flush=True)
        print("the same bytes twice:", table == (folder / "warm" / "runs.parquet").read_bytes(), flush=True)
        good = [one_round(k, study, folder, table, 0.5 * seconds) for k in range(first, first + rounds)]
    print(f"{sum(good)} of {rounds} rounds good")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
