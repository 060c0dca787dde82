"""Waiting: the trainer of lab/studies/waiting.toml, what it measures, and what is made of it.

K and Q have two columns. With the second one zero, training comes to a stop of rank one, where it stays.
There the second column gets a random part of relative length `start`, and training goes on until the second
singular value of W has LEFT of the first. When it should have is computed from the run's own multipliers at
the stop,

    K_s' = φ(M_⊥ Q_s / s) − K_s,   Q_s' = φ(M_⊥ᵀ K_s / s) − Q_s   in log ‖(K, Q)‖

with φ(g) = ‖g‖^(1/(p − 1) − 1) g, K_s and Q_s the spare columns over the length of the used ones, p of K and
of Q: Theorem 5 for p = 2, Lemma 7 for p > 2. Nothing is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from resampling import bootstrap

import attsvm as att
from attsvm.comparison.kkt import ALIGNED, _gaps

FIRST = 8_000
"""Seed of the first draw. Settings and predictions were made on the draws 0 to 15."""

LEFT = 0.01
"""A run has left when σ₂(K) σ₂(Q) is above this share of σ₁(K) σ₁(Q)."""

LENGTH = 0.3
"""Of the one column of K and Q at the very start."""

APPROACH = 0.01
"""Learning rate on the way to the stop, where the run's own would take long."""

RECORDS = 240
LATEST = 130.0
"""Equations are solved up to so much growth of log ‖(K, Q)‖, with decay of what it would be without."""

LARGEST_LOG = 100.0
"""No mode grows by more than e^100: the squares of its size must stay finite."""

FINE = 0.01
"""Their time step."""

CLEAR = 2.0
"""Draws whose stop has a pull of at least this much have medians of their own: the others wait for longer."""


# ---------------------------------------------------------------------- data and training


def draws(n: int, T: int, d: int, seed: range) -> tuple[att.Tokens, Any]:
    """sphere(n, T, d), from the first held-out draw on."""
    return att.datasets.sphere(n, T, d, seed=[FIRST + k for k in seed])


def trained(
    tokens: att.Tokens,
    head: Any,
    seed: range,
    start: float,
    steps: int,
    lr: float,
    p: str = "2, 2",
    momentum: float = 0.0,
    decay: float = 0.0,
    batch: int = 0,
    noise: float = 0.0,
    weights: str = "float64",
    turned: bool = False,
    before: int = 3_000,
) -> att.Path:
    """Runs that come to a stop in `before` steps, and from there on have a spare column of length `start`.

    p: the exponents of the steps on K and on Q. noise: length of Gaussian noise on every step, over that of
    the step. weights: the numbers that hold K and Q, float64, float32, bfloat16, or "bfloat16 at random",
    rounded up or down with the chances of its place between them. turned: the columns of K and Q are mixed by
    a rotation, so that no entry of a weight of rank one is zero.
    """
    options: dict[str, Any] = {"weight": att.KeyQuery(rank=2)}
    if batch and batch < tokens.n:
        options["batch"] = att.Batches(batch, seed)
    approach = att.steepest(_norms(p), lr if decay else APPROACH, decay=decay)
    records = np.unique(np.linspace(before // 2, before, 33).astype(int))
    stop = att.train(
        tokens,
        head,
        optimizer=approach,
        steps=before,
        init=_columns(seed, tokens.d),
        record=records,
        **options,
    )
    rule: Any = att.steepest(_norms(p), lr, momentum, decay)
    if noise:
        rule = optax.chain(rule, _noise(noise * lr))
    if weights != "float64":
        rule = optax.chain(rule, _rounded(weights))
    if noise or weights != "float64":
        rule = att.scale_free(rule)
    init = _beside(stop, seed, start, turned)
    if weights != "float64":
        init = {name: np.array(ROUND[weights.split()[0]](jnp.asarray(X)), float) for name, X in init.items()}
    records = np.unique(np.append(0, np.geomspace(1, steps, RECORDS).astype(int)))
    path = att.train(tokens, head, optimizer=rule, steps=steps, init=init, record=records, **options)
    joined = {name: np.concatenate([getattr(stop, name), getattr(path, name)], 1) for name in "WKQ"}
    index = np.concatenate([stop.index, before + 1 + path.index])
    return path.changed(**joined, index=index, state=None)


def _norms(p: str) -> Any:
    """One norm of K and Q together, or one for each."""
    norms = tuple(att.Schatten(exponent) for exponent in exponents(p))
    return norms[0] if norms[0] == norms[1] else norms


def exponents(p: str) -> tuple[float, ...]:
    """p of the steps on K and on Q: "4, 4/3" is 4 and 4/3."""
    parts = [part.strip().partition("/") for part in p.split(",")]
    return tuple(float(above) / float(below or 1) for above, _, below in parts)


def _columns(seed: range, width: int) -> dict[str, Any]:
    """K and Q (runs, d, 2) with one random column; a run's numbers depend on its own seed only."""
    start = {name: np.zeros((len(seed), width, 2)) for name in "KQ"}
    for run, k in enumerate(seed):
        rng = np.random.default_rng([FIRST + k, 60])
        for array in start.values():
            column = rng.standard_normal(width)
            array[run, :, 0] = LENGTH * column / np.linalg.norm(column)
    return start


def _beside(stop: att.Path, seed: range, length: float, turned: bool) -> dict[str, Any]:
    """K and Q of the stop with a random second column of that relative length."""
    start = {}
    for name, factor in (("K", stop.K), ("Q", stop.Q)):
        assert factor is not None
        array = np.array(factor[:, -1])
        for run, k in enumerate(seed):
            column = np.random.default_rng([FIRST + k, 61, ord(name)]).standard_normal(array.shape[1])
            size = length * np.linalg.norm(array[run, :, 0]) / np.linalg.norm(column)
            array[run, :, 1] = size * column
            if turned:
                angle = np.random.default_rng([FIRST + k, 62]).uniform(0.3, 1.2)
                cosine, sine = np.cos(angle), np.sin(angle)
                array[run] = array[run] @ np.array([[cosine, sine], [-sine, cosine]])
        start[name] = array
    return start


def _noise(length: float) -> optax.GradientTransformation:
    """Gaussian noise of this length on the steps of K and of Q, from numbers of each run."""

    def init(params: Any) -> Any:
        first = jax.lax.bitcast_convert_type(params["K"][0, 0].astype(jnp.float32), jnp.uint32)
        return jax.random.fold_in(jax.random.PRNGKey(63), first)

    def update(steps: Any, key: Any, params: Any = None) -> Any:
        key, *of_each = jax.random.split(key, 3)
        noisy = {
            name: steps[name] + length / math.sqrt(steps[name].size) * jax.random.normal(k, steps[name].shape)
            for name, k in zip("KQ", of_each, strict=True)
        }
        return noisy, key

    return optax.GradientTransformation(init, update)


ROUND: dict[str, Callable[[Any], Any]] = {
    "float32": lambda x: x.astype(jnp.float32).astype(x.dtype),
    "bfloat16": lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
}


def _rounded(weights: str) -> optax.GradientTransformation:
    """Steps that end at numbers of this kind."""
    nearest = ROUND[weights.split()[0]]

    def between(x: Any, key: Any) -> Any:
        """Up or down by its place between two numbers; 2^-8 is one place of bfloat16 below a power of two."""
        unit = jnp.exp2(jnp.floor(jnp.log2(jnp.maximum(jnp.abs(x), 1e-300))) - 7)
        return jnp.floor(x / unit + jax.random.uniform(key, x.shape)) * unit

    def init(params: Any) -> Any:
        first = jax.lax.bitcast_convert_type(params["K"][0, 0].astype(jnp.float32), jnp.uint32)
        return jax.random.fold_in(jax.random.PRNGKey(64), first)

    def update(steps: Any, key: Any, params: Any = None) -> Any:
        key, *of_each = jax.random.split(key, 3)
        at_random = weights.endswith("at random")
        ends = {
            name: between(params[name] + steps[name], k) if at_random else nearest(params[name] + steps[name])
            for name, k in zip("KQ", of_each, strict=True)
        }
        return {name: end - params[name] for name, end in ends.items()}, key

    return optax.GradientTransformation(init, update)


# ---------------------------------------------------------------------- what is measured


def left(path: att.Path, v: Any, words: Mapping[str, Any]) -> float:
    """Steps from the stop until the second singular value of W has LEFT of the first; NaN if it has not."""
    assert path.K is not None and path.Q is not None
    after = path.index > _before(words)
    of_K, of_Q = (np.linalg.svd(X[after], compute_uv=False) for X in (path.K, path.Q))
    ratio = of_K[:, 1] * of_Q[:, 1] / (of_K[:, 0] * of_Q[:, 0])
    steps = path.index[after] - _before(words) - 1
    time = _crossing(steps, ratio)
    return time if math.isfinite(time) else math.nan


def pull(path: att.Path, v: Any, words: Mapping[str, Any]) -> float:
    """σ/s at the stop, under the run's own steps; NaN where the run stands at no stop of rank one."""
    stop = Stop.of(path, v, words)
    return math.nan if stop is None else stop.pull


def predicted(path: att.Path, v: Any, words: Mapping[str, Any]) -> float:
    """The steps until it should have LEFT; NaN where it stands at no stop, or should never leave."""
    stop = Stop.of(path, v, words)
    if stop is None:
        return math.nan
    if stop.held(words):
        return math.nan
    stop.M = stop.M * stop.memory(words)
    growth = stop.time_to_leave(exponents(str(words.get("p", "2, 2"))), stop.floor(words))
    momentum = float(words.get("momentum", 0.0))
    # Gradients fall by e^(−2γρ lr) a step, and an average forgets older ones only while this is above β.
    if (
        momentum
        and not words.get("decay")
        and stop.fall * float(words["lr"]) * math.exp(growth) > -math.log(momentum)
    ):
        return math.nan
    return stop.steps(growth, words)


def _before(words: Mapping[str, Any]) -> int:
    return int(words.get("before", 3_000))


class Stop:
    """A stop of rank one: M_⊥/s, the spare columns over the used ones, and how a step lengthens these."""

    def __init__(self, M: Any, K: Any, Q: Any, W: Any, step: float, fall: float):
        left_vectors, _, right_vectors = np.linalg.svd(W)
        u, v = left_vectors[:, 0], right_vectors[0]
        inside = float(u @ M @ v)
        P, R = np.eye(len(u)) - np.outer(u, u), np.eye(len(v)) - np.outer(v, v)
        self.M = P @ M @ R / inside
        self.pull = float(np.linalg.norm(self.M, 2))
        column = np.linalg.svd(np.vstack([K, Q]))[2]
        of_K, of_Q = K @ column.T, Q @ column.T
        self.length = math.sqrt(float(np.linalg.norm(of_K[:, 0]) * np.linalg.norm(of_Q[:, 0])))
        self.spare_K = P @ of_K[:, 1] / np.linalg.norm(of_K[:, 0])
        self.spare_Q = R @ of_Q[:, 1] / np.linalg.norm(of_Q[:, 0])
        self.step, self.fall = step, fall

    @classmethod
    def of(cls, path: att.Path, v: Any, words: Mapping[str, Any]) -> Stop | None:
        """Read off the records before the spare column came."""
        assert path.K is not None and path.Q is not None
        early = path.index <= _before(words)
        stop = path.changed(**{name: getattr(path, name)[early] for name in ("W", "K", "Q", "index")})
        assert stop.K is not None and stop.Q is not None
        point = att.kkt_point(stop, v)
        batch = int(words.get("batch", 0))
        in_batches = 0 < batch < path.tokens.n
        M, along = _mean_direction(stop, v, batch if in_batches else path.tokens.n)
        # In batches a run stands where the mean step leads outwards; kkt_point reads whole gradients only.
        stands = _alignment(M, stop) >= ALIGNED if in_batches else point.status == "stop"
        if point.rank != 1 or not stands:
            return None
        powers = exponents(str(words.get("p", "2, 2")))
        joint = 2.0 ** (-1 / powers[0]) if powers[0] == powers[1] else 1.0
        first = int((~early).argmax())
        ρ = math.sqrt(float((stop.K[-1] ** 2).sum() + (stop.Q[-1] ** 2).sum()))
        fall = 2 * _least_margin(stop) / ρ
        found = cls(M, path.K[first], path.Q[first], stop.final, joint * along, fall)
        return found if found.pull > 1 or not in_batches else None

    def time_to_leave(self, powers: tuple[float, ...], floor: float = 0.0) -> float:
        """The growth of log ‖(K, Q)‖ until the spare columns have LEFT; ∞ if it is LATEST or more.

        floor: what noise adds to the square of every growing mode.
        """
        if powers == (2.0, 2.0):
            return self._time_of_modes(floor)
        α, b = (0.0 if math.isinf(p) else 1 / (p - 1) for p in powers)
        x, y = self.spare_K, self.spare_Q

        def slopes(x: Any, y: Any) -> tuple[Any, Any]:
            return _power(self.M @ y, α) - x, _power(self.M.T @ x, b) - y

        before = size = float(np.linalg.norm(x) * np.linalg.norm(y))
        τ = 0.0
        while size < LEFT and τ < LATEST:
            dx, dy = slopes(x, y)
            ex, ey = slopes(x + FINE * dx, y + FINE * dy)
            x, y = x + FINE / 2 * (dx + ex), y + FINE / 2 * (dy + ey)
            before, size, τ = size, float(np.linalg.norm(x) * np.linalg.norm(y)), τ + FINE
            if τ > 1 and size < before and α * b > 1 + 1e-9:  # rounding of 1 for r = 1
                return math.inf  # r below 1: it decays for ever
        return τ - FINE * (1 - _share_below(before, size)) if size >= LEFT else math.inf

    def _time_of_modes(self, floor: float) -> float:
        """For p = 2 the modes (u_iᵀ x ± v_iᵀ y)/2 grow with the powers ± σ_i/s − 1."""
        U, sizes, Vt = np.linalg.svd(self.M)
        of_K, of_Q = U.T @ self.spare_K, Vt @ self.spare_Q
        grows, falls = (of_K + of_Q) / 2, (of_K - of_Q) / 2
        grows = np.sign(grows + (grows == 0)) * np.sqrt(grows**2 + floor)
        τ = np.arange(0, LATEST, FINE)[:, None]
        up = grows * np.exp(np.minimum((sizes - 1) * τ, LARGEST_LOG))
        down = falls * np.exp(-(sizes + 1) * τ)
        ratio = np.linalg.norm(up + down, axis=1) * np.linalg.norm(up - down, axis=1)
        return _crossing(τ[:, 0], ratio)

    def floor(self, words: Mapping[str, Any]) -> float:
        """The variance that additive noise adds to a growing mode, over the used length squared: in a time dτ
        with (lr/length) steps n²/2, which then grow by e^(2(σ/s − 1)τ), and fall behind as the length grows.
        """
        lr, decay = float(words["lr"]), float(words.get("decay", 0.0))
        entry = float(words.get("noise", 0.0)) * lr / math.sqrt(2 * len(self.M))
        rate = 2 * (self.pull - 1) + (0 if decay else 1)
        return entry**2 / 2 / (self.length * self.step * lr * max(rate, 1e-9))

    def memory(self, words: Mapping[str, Any]) -> float:
        """What an average with momentum β has of the growing mode, whose older gradients were smaller:
        (1 − β)/(1 − β e^(−r)) for a growth of r a step. Without decay r falls like one over the steps.
        """
        β, rate = float(words.get("momentum", 0.0)), float(words["lr"]) * float(words.get("decay", 0.0))
        share = 1.0
        for _ in range(50):
            growth = rate * max(self.pull * share - 1, 0.0)
            share = (1 - β) / (1 - β / (1 + growth))
        return share

    def held(self, words: Mapping[str, Any]) -> bool:
        """Whether every step of the spare column is rounded away: it is below half a place of the numbers.

        The places of an entry are as fine as the entry is small, so in a column of its own the spare part
        need only grow by a share of itself; turned, it is a small part of large entries.
        """
        half = {"float32": 2.0**-25, "bfloat16": 2.0**-9}.get(str(words.get("weights")), 0.0)
        lr, decay = float(words["lr"]), float(words.get("decay", 0.0))
        rate = lr * decay * (self.pull - 1) if decay else lr * self.step * self.pull / self.length
        size = max(np.linalg.norm(self.spare_K), np.linalg.norm(self.spare_Q)) if words.get("turned") else 1
        return bool(rate * size < half)

    def steps(self, growth: float, words: Mapping[str, Any]) -> float:
        """The steps in which log ‖(K, Q)‖ would grow so much; with decay, what it would without its pull."""
        lr, decay = float(words["lr"]), float(words.get("decay", 0.0))
        if not growth < LATEST:
            return math.nan
        if not decay:
            return self.length * math.expm1(growth) / (lr * self.step)
        return math.log1p(math.expm1(growth) * self.length * decay / self.step) / (lr * decay)


def _crossing(times: Any, ratio: Any) -> float:
    """When the ratio first comes to LEFT, on a straight line of its logarithm; ∞ if it does not."""
    first = int((ratio >= LEFT).argmax())
    if not ratio[first] >= LEFT:
        return math.inf
    if first == 0:
        return float(times[0])
    share = _share_below(ratio[first - 1], ratio[first])
    return float(times[first - 1] + share * (times[first] - times[first - 1]))


def _share_below(below: float, above: float) -> float:
    """How much of the way from one ratio to the next lies below LEFT, in logarithms."""
    return math.log(LEFT / max(below, 1e-300)) / math.log(above / max(below, 1e-300))


def _power(g: Any, exponent: float) -> Any:
    size = float(np.linalg.norm(g))
    return g * size ** (exponent - 1) if size > 0 else g


def _mean_direction(stop: att.Path, v: Any, batch: int) -> tuple[Any, float]:
    """M of the mean normalised gradient over all batches, and how far a step goes along (K, Q), at most 1.

    With all examples M is the gradient's, averaged over the records.
    """
    tokens, first = stop.tokens, stop.selected.argmax(-1)
    log_attention, coefficient, output = _gaps(stop, v)
    late = np.nonzero(2 * stop.index >= stop.index[-1])[0][-len(output) :]
    size = np.log(np.maximum(np.abs(coefficient), 1e-300))
    log_weight = -np.logaddexp(0, output)[..., None] + log_attention + size
    winners = tokens.keys[np.arange(tokens.n), first]
    apart = winners[:, None] - tokens.keys
    assert stop.K is not None and stop.Q is not None
    mean, along, count = np.zeros(stop.final.shape), 0.0, 0
    for record, logs, signs in zip(late, log_weight, np.sign(coefficient), strict=True):
        K, Q = stop.K[record], stop.Q[record]
        ρ = math.sqrt(float((K**2).sum() + (Q**2).sum()))
        for members in map(list, combinations(range(tokens.n), batch)):
            weight = signs[members] * np.exp(logs[members] - logs[members].max())
            M = np.einsum("nt,ntd,ne->de", weight, apart[members], tokens.queries[members])
            size = math.sqrt(float(((M @ Q) ** 2).sum() + ((M.T @ K) ** 2).sum()))
            mean += M / size
            along += 2 * float((M * (K @ Q.T)).sum()) / (size * ρ)
            count += 1
    return mean / count, along / count


def _alignment(M: Any, stop: att.Path) -> float:
    """⟨M, W⟩ over what it is at most for factors of these lengths; 1 where the step leads outwards."""
    assert stop.K is not None and stop.Q is not None
    K, Q = stop.K[-1], stop.Q[-1]
    lengths = math.hypot(np.linalg.norm(K), np.linalg.norm(Q)) * math.hypot(
        np.linalg.norm(M @ Q), np.linalg.norm(M.T @ K)
    )
    return 2 * float((M * stop.final).sum()) / lengths


def _least_margin(stop: att.Path) -> float:
    tokens, W = stop.tokens, stop.final
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    best = np.where(stop.selected, logits, np.inf).min(-1)[:, None]
    return float((best - logits)[~stop.selected].min())


# ---------------------------------------------------------------------- what is made of it


def summary(study: Any) -> dict[str, Any]:
    """The record: of every cell its settings, medians with intervals, and every run."""
    runs = {name: np.asarray(study.runs[f"waiting:{name}"]) for name in ("left", "predicted", "pull")}
    cells = []
    for k, cell in enumerate(study.cells):
        words = {
            name: value
            for name, value in cell.words.items()
            if name not in ("model", "n", "T", "d", "trainer")
        }
        at = np.asarray(study.runs["cell"]) == k
        cells.append(words | judged(*(runs[name][at] for name in runs), float(words["steps"])))
    return {"left_at": LEFT, "clear": CLEAR, "cells": cells}


def judged(left: Any, predicted: Any, pull: Any, steps: float) -> dict[str, Any]:
    """Medians of the draws that stand at a stop, NaN for never, and of those with a clear pull; every run.

    ratio: measured over predicted, of the runs that have left and should have. agree: the runs that have left
    and should have within the steps, or neither.
    """
    stands = np.isfinite(pull)
    left, predicted, pull = left[stands], predicted[stands], pull[stands]
    in_time = predicted <= steps
    both = np.isfinite(left) & np.isfinite(predicted)
    record: dict[str, Any] = {
        "stops": int(stands.sum()),
        "left": int(np.isfinite(left).sum()),
        "agree": int((np.isfinite(left) == in_time).sum()),
        "ratio": medians(left[both] / predicted[both]),
    }
    for name, of in (("all", np.ones(len(pull), bool)), ("clear", pull >= CLEAR)):
        record[name] = {
            "runs": int(of.sum()),
            "measured": medians(left[of]),
            "predicted": medians(predicted[of]),
        }
    record["runs"] = [[_digits(x) for x in run] for run in zip(pull, predicted, left, strict=True)]
    return record


def medians(times: Any) -> list[float | None]:
    """Median and the ends of its 95 % interval; None for never, which NaN is."""
    finite = np.where(np.isfinite(times), times, NEVER)
    if not len(finite):
        return [None, None, None]
    low, high = bootstrap(lambda at: np.median(finite[at]), len(finite))
    return [_digits(x) for x in (np.median(finite), low, high)]


NEVER = 1e300


def _digits(x: Any) -> float | None:
    return float(f"{float(x):.4g}") if np.isfinite(x) and x < NEVER / 1e9 else None
