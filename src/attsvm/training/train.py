"""train(): the only training loop. A run, or thousands at once, as one compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from attsvm.path import Path
from attsvm.tokens import Tokens
from attsvm.training import engine, heads, runs
from attsvm.training.attention import Data, as_data
from attsvm.training.heads import Head, Linear
from attsvm.training.init import starting_point
from attsvm.training.losses import Loss, logistic
from attsvm.training.optimizers import adapted, needs_excess, per_block
from attsvm.training.weights import Weight

LONG_WORK = 1e11
"""Multiplications from which a run on a terminal shows its progress (about half a minute)."""


def train(
    tokens: Tokens,
    head: Head,
    *,
    weight: Weight,
    loss: Loss = logistic,
    optimizer: Any,
    steps: int,
    init: Any = None,
    record: int | Sequence[int] = 50,
    train_head: Any = None,
) -> Path:
    """Train softmax attention by full-batch descent of the mean loss.

        L(W) = 1/n Σ_i ℓ(Y_i h(Σ_t s_it value_it)),     s_i = softmax(X_i W z_i)

    weight: FullWeight(), KeyQuery(rank), Diagonal(). loss: logistic, exponential, linear.
    optimizer: steepest(norm, lr), gd(lr), mirror(p, lr), polyak(), or any optax optimizer.
    init: None, an array (d, e), (K, Q), or a draw such as gaussian(seed), uniform(range(30)).
    record: how many log-spaced steps to keep, or which; the first and the last are always kept.
    train_head: an optimizer of its own for the linear head v, which then moves with the weight.

    A runs axis in tokens, head or init trains all runs at once; what lacks it is shared.
    log_excess is relative to the best tokens under the current head. `stopped` per run: "steps";
    "saturated", the last step changed no weight; "diverged", the last finite weight is kept.
    """
    head = heads.checked(head, tokens)
    _check(weight, loss, head, train_head)
    index = record_steps(steps, record)
    rule = adapted(optimizer)
    if needs_excess(rule) and not isinstance(head, Linear):
        raise ValueError("polyak needs the best loss L*, which is known for the head Linear(v) only.")
    if getattr(weight, "separate", False):
        rule = per_block(rule)
    head_rule = None if train_head is None else adapted(train_head)
    start, count = _start(tokens, weight, init, head)
    model = engine.Model(weight, loss, count is not None, tokens.runs is not None)
    plan = engine.Plan(model, rule, head_rule)
    with jax.enable_x64(True):
        data, state = as_data(tokens), engine.start(plan, *jax.device_put(start))
        state, snapshots = _advance(plan, data, state, np.diff(index, prepend=0))
        records = engine.observe(model, data, snapshots)
        arrays = _arrays(model, snapshots, records)
    if train_head is None:
        arrays.pop("v", None)
    reasons = np.where(state.finite, np.where(state.moving, "steps", "saturated"), "diverged")
    return Path(tokens, index, stopped=reasons if model.runs else str(reasons), **arrays)


def record_steps(steps: int, record: int | Sequence[int]) -> NDArray[np.int64]:
    """The recorded steps: 0, the last one, and log-spaced or given ones between."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
        raise ValueError(f"steps is {steps!r}. Pass a positive integer.")
    if isinstance(record, (int, np.integer)):
        if record < 1:
            raise ValueError(f"record is {record}. Pass a positive count, or a sequence of steps.")
        inner = np.geomspace(steps, 1, max(int(record) - 1, 1)).round()
    else:
        inner = np.asarray(record)
        if inner.ndim != 1 or (inner.size and not np.issubdtype(inner.dtype, np.integer)):
            raise ValueError("record is neither a count nor a sequence of integer steps.")
        if inner.size and not (inner.min() >= 0 and inner.max() <= steps):
            raise ValueError(f"record asks for steps {inner.min()}…{inner.max()}. Pass steps in 0…{steps}.")
    return np.unique(np.concatenate([[0, steps], inner]).astype(np.int64))


# ---------------------------------------------------------------------- details


def _check(weight: object, loss: object, head: Head, train_head: object) -> None:
    if isinstance(weight, type) or not isinstance(weight, Weight):
        raise TypeError(f"{weight!r} is not a weight. Pass FullWeight(), KeyQuery() or Diagonal().")
    if isinstance(loss, type) or not isinstance(loss, Loss):
        raise TypeError(f"{loss!r} is not a loss. Pass logistic, exponential or linear.")
    if train_head is not None and not isinstance(head, Linear):
        raise ValueError(f"train_head trains the head Linear(v), got {type(head).__name__}.")


def _start(tokens: Tokens, weight: Weight, init: Any, head: Head) -> tuple[tuple[Any, Head], int | None]:
    """Parameters and head, each repeated for the runs that share it, and the number of runs."""
    params = starting_point(weight, init, (tokens.d, tokens.e), tokens.keys.dtype)
    axes = {name: len(shape) for name, shape in weight.shapes(tokens.d, tokens.e).items()}
    given, head_axes = heads.arrays(head)
    found = {f"init {name}": count for name, count in runs.counts(params, axes).items()}
    found |= {f"head {name}": count for name, count in runs.counts(given, head_axes).items()}
    count = runs.common({"tokens": tokens.runs, **found})
    return (
        runs.repeated(params, axes, count),
        heads.with_arrays(head, runs.repeated(given, head_axes, count)),
    ), count


def _advance(
    plan: engine.Plan, data: Data, state: engine.State, lengths: NDArray[np.int64]
) -> tuple[engine.State, engine.Snapshot]:
    """All segments in one call; on a terminal a long run goes piece by piece under a progress bar."""
    work = 2.0 * int(lengths.sum()) * data.keys.size
    work *= state.finite.size if not plan.model.data_runs else 1
    console = Console(stderr=True)
    if work < LONG_WORK or not console.is_terminal:
        return engine.advance(plan, data, state, lengths)
    return _with_progress(plan, data, state, lengths, console)


def _with_progress(
    plan: engine.Plan, data: Data, state: engine.State, lengths: NDArray[np.int64], console: Console
) -> tuple[engine.State, engine.Snapshot]:
    longest = max(int(lengths.sum()) // 200, 1)
    kept = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("training", total=int(lengths.sum()))
        for length in lengths:
            pieces = np.diff(np.append(np.arange(0, length, longest), length)) if length else [0]
            for piece in pieces:  # only the snapshot of a segment's last piece is kept
                state, snapshot = engine.advance(plan, data, state, np.array([piece]))
                state.finite.block_until_ready()
                bar.advance(task, float(piece))
            kept.append(snapshot)
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)


def _arrays(model: engine.Model, snapshots: engine.Snapshot, records: engine.Record) -> dict[str, Any]:
    """The arrays of a Path, the runs axis first."""
    found = dict(records._asdict())
    found |= {name: array for name, array in snapshots.params.items() if name in ("K", "Q")}
    if isinstance(snapshots.head, Linear):
        found["v"] = snapshots.head.v
    return {n: np.asarray(a).swapaxes(0, 1) if model.runs else np.asarray(a) for n, a in found.items()}
