"""Keys wherever they live: `python lab/benchmarks/anywhere.py [disk] [memory] [gpu] [cluster]`.

Every row is solved in a process of its own, on planted activations: noise around 64 shared directions, and a
winner that carries a signal. Seconds are wall time; memory is what the process holds beyond its own numbers
before the data came, imports and compiled code of a small program among them (mapped pages of a file belong
to the system and are not counted). Prints Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = {"float16": (20_000, 64, 3_200), "float32": (20_000, 64, 1_600)}
"""Of files of 8.2 GB."""

RAM = (20_000, 64, 256)
GPU = (20_000, 64, 768)
MATRIX = (500, 64, 768)
CLUSTER = (2_000, 32, 64)


class Peak:
    """The most memory that the process holds while this runs, in bytes beyond what it held before."""

    def __enter__(self) -> Peak:
        self.before, self.most, self.done = held(), 0, threading.Event()
        self.watch = threading.Thread(target=self._look, daemon=True)
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.watch.join()

    def _look(self) -> None:
        while not self.done.wait(0.005):
            self.most = max(self.most, held() - self.before)


def held() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def activations(n: int, T: int, d: int, seed: int = 0) -> Any:
    """Examples (k, T, d) in float32, part by part; token 0 wins."""
    rng = np.random.default_rng(seed)
    p = (rng.standard_normal(d) / np.sqrt(d)).astype("f4")
    shared = rng.standard_normal((64, d)).astype("f4") / 8
    for start in range(0, n, 50):
        k = min(50, n - start)
        X = 0.5 * rng.standard_normal((k, T, d), dtype="f4")
        X += rng.standard_normal((k, T, 64), dtype="f4") @ shared
        X[:, 0] += (12 + rng.exponential(1.0, (k, 1)).astype("f4")) * p
        yield start, X


def in_memory(shape: tuple[int, int, int], dtype: str) -> np.ndarray:
    keys = np.empty(shape, dtype)
    for start, block in activations(*shape):
        keys[start : start + len(block)] = block
    return keys


def solved(keys: Any, queries: Any = None, norm: Any = None) -> tuple[Any, Any, float, float]:
    """Tokens, solution, seconds to solve and to certify."""
    from attsvm import Tokens, frobenius, max_margin

    start = time.perf_counter()
    tokens = Tokens(keys, queries)
    solution = max_margin(tokens, np.zeros(tokens.n, int), norm or frobenius)
    middle = time.perf_counter()
    assert solution.certified, solution.certificate
    return tokens, solution, middle - start, time.perf_counter() - middle


# ---------------------------------------------------------------------- rows, each in its own process


def disk(dtype: str, folder: str) -> None:
    shape, file = SHAPES[dtype], Path(folder) / f"{dtype}.npy"
    if not file.exists():
        keys = np.lib.format.open_memmap(file, "w+", dtype, shape)
        for start, block in activations(*shape):
            keys[start : start + len(block)] = block
        keys.flush()
        del keys
    buffer, start = bytearray(1 << 26), time.perf_counter()
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
    read = time.perf_counter() - start
    solved(np.array(np.load(file, mmap_mode="r")[:50]))
    with Peak() as peak:
        tokens, solution, seconds, last = solved(np.load(file, mmap_mode="r"))
    passes, total = tokens.keys.passes, seconds + last
    print(
        f"| {dtype} file, {file.stat().st_size / 1e9:.1f} GB | {shape} | {passes:.1f} | {total:.0f} s | "
        f"{passes * read:.0f} s | {peak.most / 1e9:.2f} GB | {solution.certificate.worst:.0e} |"
    )


def memory(dtype: str, folder: str) -> None:
    keys = in_memory(RAM, dtype)
    solved(keys[:200].copy())
    with Peak() as peak:
        tokens, solution, seconds, last = solved(keys)
    passes = f"{tokens.keys.passes:.1f}" if hasattr(tokens.keys, "passes") else ""
    print(
        f"| {dtype} in memory, {keys.nbytes / 1e9:.2f} GB | {RAM} | {passes} | "
        f"{seconds + last:.1f} s | | "
        f"{1 + peak.most / keys.nbytes:.2f} × the data | {solution.certificate.worst:.0e} |"
    )


def gpu(library: str, folder: str) -> None:
    import torch

    from attsvm import frobenius, nuclear

    if library == "prompt":
        keys, queries, norm = in_memory(GPU, "float32"), None, frobenius
    else:
        rng = np.random.default_rng(1)
        n, _, d = MATRIX
        keys, queries = rng.standard_normal(MATRIX).astype("f4"), rng.standard_normal((n, d))
        W = rng.standard_normal((d, 8)) @ rng.standard_normal((8, d))
        best = np.einsum("ntd,nd->nt", keys, queries @ W.T).argmax(1)
        keys[np.arange(n), 0], keys[np.arange(n), best] = (
            keys[np.arange(n), best],
            keys[np.arange(n), 0].copy(),
        )
        norm = {"frobenius": frobenius, "nuclear": nuclear}[library]
    on_gpu = torch.from_numpy(keys).cuda()
    solved(on_gpu[:200], None if queries is None else queries[:200])  # compiled, started
    tokens, on_device, seconds, last = solved(on_gpu, queries, norm)
    passes, pricing = tokens.keys.passes, time.perf_counter()
    on_device.constraints.margins(on_device.W)
    pricing = time.perf_counter() - pricing
    total, reference, distance = seconds + last, "", ""
    if library == "prompt":
        solved(keys[:2000])
        _, on_host, slower, certified = solved(keys)
        reference = f"{slower + certified:.2f} s on the CPU: {(slower + certified) / total:.1f} ×"
        distance = f"{np.linalg.norm(on_device.W - on_host.W) / np.linalg.norm(on_host.W):.0e} apart"
    print(
        f"| {library} on the GPU | {keys.shape} | {passes:.1f} | "
        f"{total:.2f} s, {pricing:.3f} s a pass | {reference} | {distance} | "
        f"{on_device.certificate.worst:.0e} |"
    )


def cluster(_: str, folder: str) -> None:
    import dask.array
    from distributed import Client, LocalCluster

    keys = in_memory(CLUSTER, "float32")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        _, on_cluster, seconds, last = solved(dask.array.from_array(keys, chunks=(250, -1, -1)))
    _, two, *_ = solved(keys)
    apart = np.linalg.norm(on_cluster.W - two.W) / np.linalg.norm(two.W)
    total, worst = seconds + last, on_cluster.certificate.worst
    print(f"| dask, two workers | {CLUSTER} | | {total:.1f} s | | {apart:.0e} apart | {worst:.0e} |")


ROWS = {
    "disk": (disk, ("float16", "float32")),
    "memory": (memory, ("float64", "float32", "float16")),
    "gpu": (gpu, ("prompt", "frobenius", "nuclear")),
    "cluster": (cluster, ("",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", default=["disk", "memory"], help=f"any of {', '.join(ROWS)}")
    parser.add_argument("--folder", help="where the files are kept; by default a temporary folder")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        ROWS[options.what[0]][0](options.row, options.folder)
        return
    print("| keys | shape | passes | solved and certified | reading as often | memory | worst |")
    print("|---" * 7 + "|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for place in options.what:
            for row in ROWS[place][1]:
                folder = options.folder or temporary
                subprocess.run(
                    [sys.executable, __file__, place, "--row", row, "--folder", folder], check=False
                )


if __name__ == "__main__":
    main()
