"""Training, side by side: normalised GD by four programs, one step on large data, two cores, the first call.

python lab/benchmarks/training.py [small] [large] [cores] [first]. Times are CPU seconds of the whole
process, after compilation, and the programs take turns: on a machine with other work only their ratios mean
something. The eager loop runs a few of the runs and is reported per run-step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls

from attsvm import Tokens, frobenius
from attsvm.datasets import sphere
from attsvm.training import devices, driver
from attsvm.training.optimizers import steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from measure import in_turn

RUNS, EAGER_RUNS, LR = 100, 2, 0.1
NUDGE = np.finfo(np.float64).eps  # what the authors' code adds to the norm it divides by


def eager_torch(tokens: Tokens, v: np.ndarray, steps: int) -> np.ndarray:
    """One run after the other, autograd, one Python iteration per step: the papers' notebooks."""
    import torch

    torch.set_num_threads(1)
    out = []
    for r in range(len(tokens.keys)):
        arrays = (tokens.keys[r], tokens.queries[r], tokens.labels[r], v[r])
        X, Z, Y, head = (torch.from_numpy(np.array(a)) for a in arrays)
        W = torch.zeros(tokens.d, tokens.e, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([W], lr=LR)
        for _ in range(steps):
            optimizer.zero_grad()
            s = torch.softmax((X @ (Z @ W.T)[:, :, None])[..., 0], -1)
            loss = torch.nn.functional.softplus(-Y * ((s[:, None] @ X)[:, 0] @ head)).mean()
            loss.backward()
            W.grad /= W.grad.norm() + NUDGE
            optimizer.step()
        out.append(W.detach().numpy())
    return np.array(out)


def batched_numpy(tokens: Tokens, v: np.ndarray, steps: int) -> np.ndarray:
    """All runs at once, the textbook gradient."""
    X, Z = tokens.keys, tokens.queries
    gamma = tokens.labels[..., None] * (X @ v[:, None, :, None])[..., 0]
    W = np.zeros((len(X), tokens.d, tokens.e))
    for _ in range(steps):
        a = (X @ (Z @ W.swapaxes(1, 2))[..., None])[..., 0]
        s = np.exp(a - a.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        f = (s * gamma).sum(-1, keepdims=True)
        c = -s * (gamma - f) / (1 + np.exp(f)) / tokens.n
        G = ((c[..., None, :] @ X)[..., 0, :]).swapaxes(1, 2) @ Z
        W -= LR * G / (np.linalg.norm(G, axis=(1, 2), keepdims=True) + NUDGE)
    return W


def plain_jax(tokens: Tokens, v: np.ndarray, steps: int) -> np.ndarray:
    """jax.grad of the softmax loss under scan and vmap."""

    def loss(W, X, Z, Y, head):
        s = jax.nn.softmax(jnp.einsum("ntd,nd->nt", X, Z @ W.T))
        return jax.nn.softplus(-Y * (jnp.einsum("nt,ntd->nd", s, X) @ head)).mean()

    def one(*data):
        def step(W, _):
            G = jax.grad(loss)(W, *data)
            return W - LR * G / (jnp.linalg.norm(G) + NUDGE), None

        return jax.lax.scan(step, jnp.zeros((tokens.d, tokens.e)), None, length=steps)[0]

    with jax.enable_x64(True):
        mapped = _COMPILED.setdefault((tokens.keys.shape, steps), jax.jit(jax.vmap(one)))
        return np.asarray(mapped(tokens.keys, tokens.queries, tokens.labels, v))


_COMPILED: dict = {}


def ours(tokens: Tokens, v: np.ndarray, steps: int) -> np.ndarray:
    """attsvm: the gradient relative to the winning token, in log scale."""
    rule = steepest(frobenius, LR)
    path = train(tokens, Linear(v), optimizer=rule, steps=steps, record=2)
    return path.final


def direction_error(tokens: Tokens, W: np.ndarray) -> float:
    """Median 1 − cosine to the Frobenius program of the tokens that each run attends to."""
    errors = []
    for r, weight in enumerate(W):
        X, Z = tokens.keys[r], tokens.queries[r]
        winner = np.einsum("ntd,de,ne->nt", X, weight, Z).argmax(1)
        rows = np.einsum("ntd,ne->ntde", X[np.arange(len(X)), winner][:, None] - X, Z)
        rows = rows[np.arange(X.shape[1]) != winner[:, None]].reshape(-1, weight.size)
        E, f = np.vstack([rows.T, np.ones(len(rows))]), np.append(np.zeros(weight.size), 1.0)
        limit = (E @ nnls(E, f, maxiter=10_000)[0] - f)[:-1]
        unit = weight.ravel() / np.linalg.norm(weight) - limit / np.linalg.norm(limit)
        errors.append(unit @ unit / 2)
    return float(np.median(errors))


def cpu(function: Callable[[], object]) -> float:
    """CPU time of a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def small(turns: int = 5) -> None:
    tokens, v = sphere(6, 8, 10, seed=range(RUNS))
    first_runs = Tokens(tokens.keys[:EAGER_RUNS], tokens.queries[:EAGER_RUNS], tokens.labels[:EAGER_RUNS])
    programs = {
        "eager PyTorch, run by run": (eager_torch, first_runs, v[:EAGER_RUNS], 200),
        "batched NumPy": (batched_numpy, tokens, v, 2_000),
        "jax.grad, scan + vmap": (plain_jax, tokens, v, 2_000),
        "attsvm": (ours, tokens, v, 2_000),
    }
    seconds = in_turn({name: partial(*arguments) for name, arguments in programs.items()}, turns)
    units = {name: len(head) * steps / 1e6 for name, (_, _, head, steps) in programs.items()}
    times = {name: np.array(seconds_of) / units[name] for name, seconds_of in seconds.items()}
    print(
        "| program | µs per run-step | 100 × 2,000 | of attsvm, turn by turn | error at 2,000 | at 10,000 |"
    )
    print("|---|---|---|---|---|---|")
    for name, (program, data, head, _) in programs.items():
        unit, ratio = np.median(times[name]), np.median(times[name] / times["attsvm"])
        far = [] if program is eager_torch else [10_000]
        errors = [f"{direction_error(data, program(data, head, k)):.1e}" for k in [2_000, *far]] + ["–"]
        print(
            f"| {name} | {unit:.3g} | {unit / 5:.3g} s | {ratio:.3g} | {errors[0]} | {errors[1]} |",
            flush=True,
        )


def cores(turns: int = 7) -> None:
    """Runs in parts on several cores against one, by the wall clock and in turn."""
    threads = devices.cores() if "OMP_NUM_THREADS" not in os.environ else 2
    counts = [count for count in (1, 2, 4, 8, 16) if count <= threads]
    print("\n| runs | cores | times as fast as one, turn by turn |\n|---|---|---|")
    for runs, steps in ((RUNS, 10_000), (16 * RUNS, 1_000)):
        tokens, v = sphere(6, 8, 10, seed=range(runs))

        def go(count: int, tokens: Tokens = tokens, v: np.ndarray = v, steps: int = steps) -> None:
            devices.cores = driver.cores = lambda: count
            ours(tokens, v, steps)

        works = {str(count): partial(go, count) for count in counts}
        seconds = np.array([*in_turn(works, turns, time.perf_counter).values()]).T
        ratios = np.sort(seconds[:, :1] / seconds, axis=0)
        for j, count in enumerate(counts[1:], 1):
            span = f"{np.median(ratios[:, j]):.2f} ({ratios[0, j]:.2f} to {ratios[-1, j]:.2f})"
            print(f"| {runs:,} | {count} | {span} |", flush=True)


FIRST = """
import time
begin, cpu = time.perf_counter(), time.process_time()
import jax, attsvm as att
from attsvm.training import train
tokens, v = att.datasets.sphere(6, 8, 10, seed=range(100))
jax.devices()
ready, ready_cpu = time.perf_counter(), time.process_time()
att.train(tokens, att.Linear(v), optimizer=att.steepest(att.frobenius, 0.1), steps=10)
print(ready - begin, time.perf_counter() - ready, ready_cpu - cpu, time.process_time() - ready_cpu)
"""


def first() -> None:
    """The first train of a process: when nothing is compiled yet, and when an earlier process did it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        for state in ("nothing compiled before", "compiled by an earlier process", "and again"):
            command = [sys.executable, "-c", FIRST]
            process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            start, own_time, start_cpu, own_cpu = map(float, process.stdout.split())
            print(f"{state}: first train {own_time:.2f} s ({own_cpu:.2f} s CPU),", end=" ")
            print(f"imports and the start of JAX {start:.2f} s ({start_cpu:.2f} s CPU).", flush=True)


def large(n: int = 4_000, T: int = 64, d: int = 128, steps: int = 40, turns: int = 5) -> None:
    """A full-batch step beside the two passes over the keys that it must make, in turn."""
    rng = np.random.default_rng(0)
    keys, queries, v = rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), rng.standard_normal(d)
    with jax.enable_x64(True):
        given = jnp.asarray(keys), jnp.ones((n, d)), jnp.ones((n, T))
        # The keys are an argument: as a constant of the program XLA would spend minutes folding them.
        read = jax.jit(lambda x, u, c: (jnp.einsum("ntd,nd->nt", x, u), jnp.einsum("nt,ntd->nd", c, x)))
        jax.block_until_ready(read(*given))

    def go(tokens: Tokens, count: int) -> None:
        rule = steepest(frobenius, LR)
        train(tokens, Linear(v), optimizer=rule, steps=count, record=2)

    def passes() -> None:
        with jax.enable_x64(True):
            for _ in range(steps):
                jax.block_until_ready(read(*given))

    print(f"\nn={n:,}, T={T}, d={d}, float64, ms of CPU time\n")
    print("| weight | two passes | one step | step / passes, turn by turn |\n|---|---|---|---|")
    for name, tokens in {"prompt (d, 1)": Tokens(keys), "matrix (d, d)": Tokens(keys, queries)}.items():
        go(tokens, 1 + steps)  # compile
        pairs = [
            (
                (cpu(lambda t=tokens: go(t, 1 + steps)) - cpu(lambda t=tokens: go(t, 1))) / steps,
                cpu(passes) / steps,
            )
            for _ in range(turns)
        ]
        (step, pair), ratios = np.median(pairs, axis=0) * 1e3, sorted(a / b for a, b in pairs)
        span = f"{np.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {name} | {pair:.0f} | {step:.0f} | {span} |", flush=True)


if __name__ == "__main__":
    benchmarks = {"small": small, "large": large, "cores": cores, "first": first}
    for part in sys.argv[1:] or benchmarks:
        benchmarks[part]()
