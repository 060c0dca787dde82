"""One measurement in a process of its own: `python lab/benchmarks/measure.py WHO INDEX CAP` prints JSON.

A process per measurement keeps one thread per library, a clean peak of memory, and a limit on time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Result = dict[str, Any]

ENOUGH = 0.4
"""CPU seconds that a group of calls takes at least."""


# ---------------------------------------------------------------------- in the parent


def in_child(solver: str, index: int, *, threads: int = 1, cap: int = 180, **environment: str) -> Result:
    """Measure in a new process; {'error': …} when it needs more than `cap` CPU seconds or fails.

    who: a function of this file, a peer, or module.function of another file in this folder.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    thread_limits = dict.fromkeys(names, "1") | {"NUMBA_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, solver, str(index), str(cap)]
    process = subprocess.run(
        command, env=os.environ | thread_limits | environment, capture_output=True, text=True
    )
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"error": f"> {cap} s"}
    if process.returncode:
        return {"error": (process.stderr.strip().splitlines() or [f"exit {process.returncode}"])[-1][:200]}
    return json.loads(process.stdout.strip().splitlines()[-1])


def into_page(page: Path, name: str, text: str) -> None:
    """Put a text between the marks of this name in a page of the docs."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = page.read_text()
    page.write_text(f"{old.split(begin)[0]}{begin}\n{text}\n{end}{old.split(end)[1]}")


# ---------------------------------------------------------------------- in the child


def ours(index: int) -> Result:
    """Our CPU seconds, gap or Farkas residual, and peak memory, after one call that compiles."""
    from attsvm.program.max_margin import max_margin
    from attsvm.program.solution import NotSeparable
    from cases import CASES

    case = CASES[index]
    tokens, selected = case.instance()

    def solve() -> Any:
        try:
            return max_margin(tokens, selected, case.norm)
        except NotSeparable as error:
            return error if error.conflict else None  # the short proof counts, not the flag alone

    answer = solve()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = cpu_seconds(solve)
    result = {"seconds": seconds, "memory_mb": round(memory), "unit_seconds": unit_seconds(tokens)}
    if isinstance(answer, NotSeparable):
        return result | {"residual": answer.residual, "conflict": len(answer.conflict)}
    certificate = answer.certificate
    return result | {
        "gap": certificate.gap,
        "worst": float(certificate.worst),
        "certified": answer.certified,
        "norm": float(case.norm.value(answer.W)),
    }


def peer(name: str, index: int) -> Result:
    """A peer's CPU seconds and the norm of its answer once scaled to margin one."""
    from cases import CASES
    from instances import features
    from peers import PEERS

    case = CASES[index]
    tokens, selected = case.instance()
    A = features(tokens, selected)
    shape = (tokens.d, tokens.e)
    solve = PEERS[name](A, shape, case.norm)
    start = time.process_time()
    w = solve()
    first = time.process_time() - start
    result: Result = {"seconds": first if first > ENOUGH else cpu_seconds(solve)}
    if w is None:
        return result | {"status": "no solution"}
    return result | {"norm": float(case.norm.value(w.reshape(shape)) / (A @ w).min())}


def unit_seconds(tokens: Any) -> float:
    """One pass X@p for prompts; for matrices one product with K = (ΔΔᵀ)∘(ZZᵀ) without forming it."""
    import numpy as np

    keys, queries = tokens.keys, tokens.queries
    flat, p = keys.reshape(-1, keys.shape[-1]), np.ones(keys.shape[-1])
    weights = np.ones((len(keys), 1, keys.shape[1]))

    def product() -> Any:
        sums = np.matmul(weights, keys)[:, 0]
        return np.matmul(keys, ((queries @ queries.T) @ sums)[..., None])

    return cpu_seconds((lambda: flat @ p) if tokens.e == 1 else product)


def batch(index: int) -> Result:
    """CPU and wall seconds per problem for 4,000 small Frobenius problems, on one core and on two in turn.

    In turn, because the machine's speed changes within minutes by more than a thread's share.
    """
    from attsvm import datasets
    from attsvm.data.selection import best_tokens
    from attsvm.program.max_margin import max_margin

    runs, both = 4000, sorted(os.sched_getaffinity(0))[:2]
    tokens, v = datasets.sphere(n=6, T=8, d=10, seed=range(runs))
    best = best_tokens(tokens, v)
    solution = max_margin(tokens, best)
    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(15):
        for count in (1, 2):
            os.sched_setaffinity(0, set(both[:count]))
            begin, start = time.perf_counter(), time.process_time()
            max_margin(tokens, best)
            wall[count].append(time.perf_counter() - begin)
            cpu[count].append(time.process_time() - start)
    can = solution.separable
    solvers = {
        "gap": float(solution.certificate.gap[can].max()),
        "certified": f"{int(solution.certified.sum())} of {int(can.sum())} separable",
    }
    return {
        name: {"seconds": statistics.median(cpu[k]) / runs, "wall": min(wall[k]) / runs} | solvers
        for k, name in ((1, "one thread"), (2, "two threads"))
    }


def batch_daqp(index: int) -> Result:
    """The same problems by daqp in a loop: features built beforehand, and built within the time."""
    import numpy as np

    from attsvm import datasets
    from attsvm.data.selection import best_tokens
    from attsvm.norms import frobenius
    from instances import features
    from peers import daqp

    tokens, v = datasets.sphere(n=6, T=8, d=10, seed=range(500))
    best = np.argmax(best_tokens(tokens, v), axis=-1)
    each = [(tokens.run(k), best[k]) for k in range(500)]
    ready = [daqp(features(*problem), (10, 10), frobenius) for problem in each]
    prebuilt = cpu_seconds(lambda: [solve() for solve in ready]) / 500
    built = cpu_seconds(lambda: [features(*problem) for problem in each]) / 500
    return {"seconds": prebuilt, "built": prebuilt + built}


def first_call(index: int) -> Result:
    """CPU seconds of the import and of the first tiny call in this process."""
    start = time.process_time()
    import attsvm

    imported = time.process_time() - start
    from attsvm.program.max_margin import max_margin
    from cases import CASES

    tokens, selected = attsvm.Tokens([[[1.0, 0.0], [0.0, 1.0]]], [[1.0, 2.0]]), [0]
    start = time.process_time()
    max_margin(tokens, selected, CASES[index].norm)
    return {"import": imported, "seconds": time.process_time() - start}


def tiny_call(index: int) -> Result:
    """CPU seconds of one warm call on a (6,8,10) problem, matrix and prompt."""
    from attsvm.program.max_margin import max_margin
    from cases import CASES
    from instances import planted

    norm = CASES[index].norm
    matrix, prompt = planted(6, 8, 10), planted(6, 8, 10, e=1)
    for x in (matrix, prompt):
        max_margin(*x, norm)
    each = [cpu_seconds(lambda x=x: max_margin(*x, norm)) for x in (matrix, prompt)]
    return {"seconds": each[0], "prompt": each[1]}


def cpu_seconds(call: Callable[[], Any], *, enough: float = ENOUGH, groups: int = 5) -> float:
    """Median CPU seconds of one call, over groups of calls that each take at least `enough`.

    Single calls would be rounded: some kernels count a process's CPU time in ticks of 4 ms.
    """
    count = 1
    while True:
        start = time.process_time()
        for _ in range(count):
            call()
        spent = time.process_time() - start
        if spent >= enough:
            break
        count = 2 * count if spent < enough / 8 else int(count * 1.3 * enough / spent) + 1
    times = [spent]
    for _ in range(groups - 1 if spent < 5 else 0):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append(time.process_time() - start)
    return statistics.median(times) / count


def in_turn(
    works: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each, all taken in turn so that a busy machine slows them alike; a round before compiles."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            begin = clock()
            work()
            times[name] += [clock() - begin] if turn else []
    return times


def least_milliseconds(*works: Callable[[], Any], rounds: int) -> list[float]:
    """CPU milliseconds of each, the least of some rounds in turn."""
    times = in_turn({str(k): work for k, work in enumerate(works)}, rounds)
    return [1e3 * min(own) for own in times.values()]


def device_clock() -> float:
    """Seconds by the wall clock, with the GPU idle."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


SPECIAL = {f.__name__: f for f in (ours, batch, batch_daqp, first_call, tiny_call)}

if __name__ == "__main__":
    who, number, cap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (cap, cap + 5))
    if "." in who:
        module, function = who.split(".")
        result = getattr(import_module(module), function)(number)
    else:
        result = SPECIAL[who](number) if who in SPECIAL else peer(who, number)
    print(json.dumps(result))
