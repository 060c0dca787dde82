"""The measurements of `scaling.py`: programs on plain Gaussian tokens, by who solves them and their size."""

from __future__ import annotations

import math
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, Schatten, frobenius, l1, linf, nuclear, spectral
from attsvm_lab.programs import MaxNorm
from measure import Result, cpu_seconds

OURS = "attsvm"
SIZES = (100, 1_000, 5_000, 20_000, 100_000)
PROMPT_SIZES = (*SIZES, 1_000_000)
WIDTHS, PROMPT_WIDTHS = (6, 12, 32), (8, 16, 64)
PRICE = 1.0
"""C of the soft margins."""
PROVEN = 1e-8
"""Largest Farkas residual that counts as a proof: the tolerance of a certificate."""


@dataclass(frozen=True)
class Series:
    """One program by one solver at growing n: T tokens of width d, queries of width d, or a prompt.

    random: the selected tokens are drawn and not scored, which no W separates once n is large.
    """

    program: str
    T: int
    d: int
    norm: Norm = frobenius
    slack: float | None = None
    random: bool = False
    prompt: bool = False
    who: str = OURS

    @property
    def name(self) -> str:
        widths = f"d = {self.d}" if self.prompt else f"d = e = {self.d}"
        return f"{self.program}, T = {self.T}, {widths}, {self.who}"

    @property
    def sizes(self) -> tuple[int, ...]:
        return PROMPT_SIZES if self.prompt else SIZES

    def instance(self, n: int, seed: int = 0) -> tuple[Tokens, np.ndarray]:
        """Gaussian tokens, and the argmax of a random W among the tokens of each example."""
        rng = np.random.default_rng(seed)
        e = 1 if self.prompt else self.d
        W = rng.standard_normal((self.d, e))
        queries = None if self.prompt else rng.standard_normal((n, e))
        keys = rng.standard_normal((n, self.T, self.d))
        directions = np.tile(W.T, (n, 1)) if queries is None else queries @ W.T
        scores = np.matmul(keys, directions[:, :, None])[..., 0]
        selected = rng.integers(self.T, size=n) if self.random else scores.argmax(1)
        return Tokens(keys, queries), selected  # type: ignore[arg-type]


_NORMS: dict[str, Norm] = {
    "Frobenius": frobenius,
    "nuclear": nuclear,
    "spectral": spectral,
    "l1": l1,
    "l∞": linf,
    "l1.5": Entrywise(1.5),
    "l3": Entrywise(3),
    "Schatten 1.5": Schatten(1.5),
    "Schatten 4": Schatten(4),
    "max-norm": MaxNorm(),
}
_VECTOR_NORMS = {"l2": frobenius} | {name: _NORMS[name] for name in ("l1", "l∞", "l1.5", "l3")}
_CONIC = ("Clarabel", "SCS", "Moreau")
SVM = Series("soft prompt", 2, 16, slack=PRICE, prompt=True)
"""Two tokens and a prompt: the linear SVM without intercept on the differences."""

_MATRICES = [
    one
    for d in WIDTHS
    for one in (
        *(Series(name, 10, d, norm) for name, norm in _NORMS.items()),
        Series("soft margin", 10, d, slack=PRICE),
        Series("contradiction", 10, d, random=True),
    )
]
_PROMPTS = [
    one
    for d in PROMPT_WIDTHS
    for one in (
        *(Series(f"prompt {name}", 8, d, norm, prompt=True) for name, norm in _VECTOR_NORMS.items()),
        Series("soft prompt", 8, d, slack=PRICE, prompt=True),
        Series("contradictory prompt", 8, d, random=True, prompt=True),
    )
]
_PEERS = [
    *(Series("Frobenius", 10, 12, who=who) for who in ("daqp", *_CONIC)),
    *(Series("nuclear", 10, 6, nuclear, who=who) for who in _CONIC),
    *(Series("prompt l2", 8, 16, prompt=True, who=who) for who in ("daqp", *_CONIC)),
    *(Series("soft prompt", 2, 16, slack=PRICE, prompt=True, who=who) for who in ("liblinear", *_CONIC)),
]
SERIES = [*_MATRICES, *_PROMPTS, SVM, *_PEERS]
CASES = [(series, n) for series in SERIES for n in series.sizes]
"""What `in_child` measures, by its index."""


# ---------------------------------------------------------------------- in the child


def measured(index: int) -> Result:
    """Seconds and quality of one answer; the environment has CORES to use, and CAP, CPU seconds of a call."""
    cores = {int(core) for core in os.environ.get("CORES", "").split(",") if core}
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    series, n = CASES[index]
    return _ours(series, n) if series.who == OURS else _peer(series, n)


def _ours(series: Series, n: int) -> Result:
    """Our CPU and wall seconds, certificate or proof, passes, and peak memory per byte of keys."""
    from attsvm.program.max_margin import max_margin
    from attsvm.program.solution import NotSeparable

    def solve(tokens: Tokens, selected: np.ndarray) -> Any:
        try:
            return max_margin(tokens, selected, series.norm, slack=series.slack)
        except NotSeparable as error:
            return error if error.conflict else None  # the short proof counts, not the flag alone

    solve(*series.instance(max(50, n // 100), seed=1))  # loads compiled code, whose memory does not count
    peak_before = _peak_bytes()
    tokens, selected = series.instance(n)
    call = partial(solve, tokens, selected)
    result, answer = _seconds(call)
    result["memory"] = (_peak_bytes() - peak_before) / tokens.keys.nbytes
    if isinstance(answer, NotSeparable):
        proof = {"residual": answer.residual, "conflict": len(answer.conflict)}
        return result | proof | {"certified": answer.residual <= PROVEN}
    constraints = answer.constraints
    one_pass = cpu_seconds(lambda: constraints.margins(answer.W), enough=0.05, groups=3)
    certificate = answer.certificate
    return result | {
        "passes": result["seconds"] / one_pass,
        "gap": float(certificate.gap),
        "certified": bool(answer.certified),
        "value": _value(series, answer.W, lambda W: constraints.margins(W), constraints.active),
    }


def _peer(series: Series, n: int) -> Result:
    """A peer's CPU seconds and the value of its answer; building the features is not timed."""
    from instances import features
    from peers import PEERS, SOFT_PEERS

    tokens, selected = series.instance(n)
    A, shape = features(tokens, selected), (tokens.d, tokens.e)
    if series.slack is None:
        solve = PEERS[series.who](A, shape, series.norm)
    else:
        solve = SOFT_PEERS[series.who](A, series.slack)
    result, w = _seconds(solve)
    if w is None:
        return {"error": "no solution"}
    W = np.asarray(w).reshape(shape)
    return result | {"value": _value(series, W, lambda W: (A @ W.ravel())[:, None], True)}


def _seconds(call: Callable[[], Any]) -> tuple[Result, Any]:
    """CPU and wall seconds of a call, and what it returns; quick calls are repeated, in groups of 0.1 s."""

    def timed(count: int) -> tuple[float, float, Any]:
        begin, start = time.perf_counter(), time.process_time()
        for _ in range(count):
            answer = call()
        return (time.process_time() - start) / count, (time.perf_counter() - begin) / count, answer

    # Only the call counts against the cap: tokens and features take as long as they take.
    of_process, hard = resource.getrlimit(resource.RLIMIT_CPU)
    cap = int(os.environ.get("CAP", of_process))
    resource.setrlimit(resource.RLIMIT_CPU, (min(of_process, math.ceil(time.process_time()) + cap), hard))
    cpu, wall, answer = timed(1)
    resource.setrlimit(resource.RLIMIT_CPU, (of_process, hard))
    if cpu < cap / 4:
        cpu, wall, _ = timed(1)  # the first call loads compiled code, or compiles it
    if cpu < 1:
        groups = [timed(math.ceil(0.1 / max(cpu, 1e-4)))[:2] for _ in range(3)]
        cpu, wall = (statistics.median(times) for times in zip(*groups, strict=True))
    return {"seconds": cpu, "wall": wall}, answer


def _value(series: Series, W: np.ndarray, margins: Callable[[np.ndarray], np.ndarray], active: Any) -> float:
    """N(W) / least margin, or the objective of the soft margin: what answers are compared by."""
    of_rows = np.where(active, margins(W), np.inf)
    if series.slack is None:
        return float(series.norm.value(W) / of_rows.min())
    short = np.maximum(0.0, 1.0 - of_rows.min(1))
    return float(0.5 * (W**2).sum() + series.slack * short.sum())


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
