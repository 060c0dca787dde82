"""train(): the only training loop. A run, or thousands at once, as one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm._support.validation import as_integer, describe, is_finite, is_integer
from attsvm.data.equal_keys import merged, without_shared_entries
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.training import (
    batches,
    devices,
    engine,
    fused,
    losses,
    prediction_heads as heads,
    resume as going_on,
    runs,
    streaming,
    weights,
)
from attsvm.training.batches import Batches
from attsvm.training.combinators import per_run
from attsvm.training.compilation import backend, kept_programs
from attsvm.training.convergence import Settling
from attsvm.training.data import check_size, in_place
from attsvm.training.driver import Ride, first_steps, ride
from attsvm.training.init import starting_point
from attsvm.training.lazy_records import Look
from attsvm.training.losses import Loss, logistic
from attsvm.training.optimizers import adapted, needs_excess, over_heads, per_block
from attsvm.training.plan import Model, Plan
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.runs import FEWEST, FEWEST_ON_GPU, LONGEST, LONGEST_ON_GPU
from attsvm.training.segments import Interrupted, Paused, Segments
from attsvm.training.sums import block
from attsvm.training.ties import decided
from attsvm.training.weights import FULL, MultiHead, Weight

MOST_STEPS = 2**53
"""Records are log-spaced in float64, which counts no further."""


def train(
    tokens: Tokens,
    head: Head,
    *,
    weight: Weight = FULL,
    loss: Loss = logistic,
    optimizer: Any,
    steps: int,
    init: Any = None,
    record: int | Sequence[int] = 50,
    batch: int | Batches | None = None,
    train_head: Any = None,
    tolerance: float | None = None,
    resume: Path | None = None,
) -> Path:
    """Train softmax attention by descent of the mean loss, of all examples or of mini-batches.

        L(W) = 1/n Σ_i ℓ(Y_i h(Σ_t s_it value_it)),     s_i = softmax(X_i W z_i)

    weight: FullWeight(), KeyQuery(rank), Diagonal(), or MultiHead(count, weight): several of one kind.
    loss: logistic, exponential, correlation, log_loss. Squared loss: the head SquaredError() and correlation.
    optimizer: steepest(norm, lr), gd(lr), mirror(p, lr), polyak(), adam(lr), or any optax optimizer.
    init: None, an array (d, e), (K, Q), or a draw such as gaussian(seed), uniform(range(30)).
    record: how many log-spaced steps to keep, or which; the first and the last are always kept.
    batch: so many examples per step, shuffled anew every epoch, or Batches(size, seed, order); None: all of
        them. The loss and log_excess of a record are those of all examples.
    train_head: an optimizer of its own for the linear head v, which then moves with the weight.
    tolerance: end a run, as "converged", at the first record where its direction has changed by no more than
        this, in 1 − cosine, while its steps doubled. It keeps that weight while the others go on.
    resume: a Path to go on from, up to `steps` in all, with the same weight, loss, head and optimizer, whose
        numbers, such as lr, may differ. It ends in the same bits as a run that never stopped.

    A runs axis in tokens, head or init, or one number per run in an optimizer, trains all runs at once; what
    lacks it is shared.
    Keys that are stored in half or single precision stay so; what the device cannot hold is read from where
    it is, chunk by chunk, once per step.
    loss and log_excess of the records are computed when they are first asked for, by a program of their own.
    log_excess is relative to the best tokens under the current head. `stopped` per run: "steps";
    "saturated", the last step changed no weight; "diverged", the last finite weight is kept.
    Ctrl-C raises Interrupted, a KeyboardInterrupt whose `path` holds the records so far and can resume.
    One compiled program serves every steps, record, lr, schedule, momentum and factor; an optax optimizer is
    compiled in, once per object. Programs are kept on disk for other processes (compilation.py). Runs share
    the cores of a CPU, or all devices that JAX sees; on one GPU, small problems are one kernel (fused.py).
    """
    given = in_place(as_tokens(tokens))
    steps, record = as_integer(steps), as_integer(record)
    weights.check(weight)
    tokens = without_shared_entries(merged(given, weights.reached(weight, given.queries)))
    several = weight.count if isinstance(weight, MultiHead) else None
    head = heads.checked(head, tokens, several)
    losses.check(loss)
    heads.check_loss(head, loss, tokens)
    check_size(tokens, np.asarray(head.v) if isinstance(head, Linear) and train_head is None else None)
    if train_head is not None and not isinstance(head, Linear):
        raise ValueError(f"train_head trains the head Linear(v), got {type(head).__name__}.")
    asked = record_steps(steps, record)
    taken = -1 if resume is None else going_on.taken_steps(resume, given, steps, init)
    chosen = batches.asked(batch, tokens.n)
    rules = _rules(optimizer, train_head, weight, head, tokens)
    known = {"tokens": tokens.runs, "resume": None if resume is None else resume.runs}
    known |= {f"optimizer {name}": n for rule in rules for name, n in per_run(rule).items()}
    start, count = _start(tokens, weight, init, head, chosen, known)
    words = going_on.described(weight, loss, head, rules, chosen)
    if resume is not None:
        going_on.check_words(resume, words)
    model = _model(tokens, weight, loss, count)
    if chosen is not None:
        model = replace(model, runs_last=False, batch=batches.choice(chosen))
    elif fused.serves(tokens, weight, head, loss, rules):
        model = replace(model, runs_last=False, fused=True)
    plan = Plan(model, *rules)
    settling = Settling(_tolerance(tolerance), np.zeros(() if count is None else count, bool))
    segments = Segments("training", steps, first_steps(tokens, count))
    with segments as watch, kept_programs(), jax.enable_x64(True):
        first, saved, look = plan.at(0, 1), None, None
        if resume is not None:
            fresh = jax.eval_shape(partial(engine.begun, first), *start)
            saved = going_on.restored(resume, fresh, start[1], train_head is not None)
            settling = settling.after(resume, going_on.records(resume, asked))
            saved = saved._replace(going=saved.going & ~settling.reached)
        if streaming.too_large(tokens):
            state = engine.begun(first, *start) if saved is None else saved
            done = streaming.ride(plan, tokens, state, asked, taken, watch, settling)
        else:
            data, scores = decided(tokens, start[1], train_head is not None)
            share = devices.shared(model, data, start, count)
            parts = devices.parts(share, first, data, scores, start, saved)
            done = ride(plan, parts, asked, taken, watch, settling)
            look = partial(Look, model.of_records, share, tokens, start[1])
    path = _path(given, done, settling, count, resume, asked, look).changed(heads=several)
    path = going_on.signed(path, words)
    if watch.by_hand or done.interrupted:
        raise (Interrupted if watch.by_hand else Paused)(path)
    return path


def record_steps(steps: int, record: int | Sequence[int]) -> NDArray[np.int64]:
    """The recorded steps: 0, the last one, and log-spaced or given ones between."""
    if not (is_integer(steps) and 1 <= steps <= MOST_STEPS):
        raise ValueError(f"steps is {describe(steps)}. Pass a positive integer, 2⁵³ at most.")
    if isinstance(record, (int, np.integer)):
        if isinstance(record, bool) or record < 1:
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


def _model(tokens: Tokens, weight: Weight, loss: Loss, count: int | None) -> Model:
    sizes = [tokens.n, tokens.T, tokens.d, tokens.e, tokens.values.shape[-1]]
    sizes += [size for shape in weight.shapes(tokens.d, tokens.e).values() for size in shape]
    cpu = backend() == "cpu"
    fewest, longest = (FEWEST, LONGEST) if cpu else (FEWEST_ON_GPU, LONGEST_ON_GPU)
    small = max(sizes) <= longest and not tokens.stored and not isinstance(weight, MultiHead)
    runs_last = count is not None and count >= fewest and small
    return Model(weight, loss, count is not None, tokens.runs is not None, runs_last, cpu, block(tokens, cpu))


def _tolerance(tolerance: object) -> float | None:
    if tolerance is None:
        return None
    if not (is_finite(tolerance) and 0 < tolerance < 1):
        raise ValueError(f"tolerance is {tolerance!r}. Pass a number in (0, 1), such as 1e-8, or None.")
    return float(tolerance)


def _rules(optimizer: Any, train_head: Any, weight: Weight, head: Head, tokens: Tokens) -> tuple[Any, Any]:
    """The rules of the weight and of the head, if that is trained."""
    rule = adapted(optimizer)
    if needs_excess(rule.rule):
        heads.check_best_loss(head, tokens)
    of_head = None if train_head is None else adapted(train_head)
    if isinstance(weight, MultiHead):
        rule = over_heads(rule, weight.norm)
        of_head = None if of_head is None else over_heads(of_head, "joint")
    if getattr(weight, "separate", False):
        rule = per_block(rule)
    return rule.rule, None if of_head is None else of_head.rule


def _start(
    tokens: Tokens,
    weight: Weight,
    init: Any,
    head: Head,
    batch: Batches | None,
    known: dict[str, int | None],
) -> tuple[tuple[Any, Head, Any], int | None]:
    """Parameters, head and seed of batches, repeated for the runs that share them, and the number of runs."""
    params = starting_point(weight, init, (tokens.d, tokens.e), tokens.keys.dtype)
    axes = {name: len(shape) for name, shape in weight.shapes(tokens.d, tokens.e).items()}
    given, head_axes = heads.arrays(head)
    found = {f"init {name}": count for name, count in runs.counts(params, axes).items()}
    found |= {f"head {name}": count for name, count in runs.counts(given, head_axes).items()}
    own = None if batch is None else batch.runs
    count = runs.common({**known, "batch seed": own, **found})
    return (
        runs.repeated(params, axes, count),
        heads.with_arrays(head, runs.repeated(given, head_axes, count)),
        batches.seeds(batch, count),
    ), count


def _path(
    tokens: Tokens,
    done: Ride,
    settling: Settling,
    count: int | None,
    before: Path | None,
    asked: NDArray[Any],
    look: Callable[..., Look] | None,
) -> Path:
    """look: at the losses of the records, later; None where they are known."""
    index, arrays = done.index, devices.cut(done.arrays, count, 1)
    state = devices.cut(done.state, count, 0)
    if count is not None:
        arrays = {name: array.swapaxes(0, 1) for name, array in arrays.items()}
    later: dict[str, Any] = {}
    if look is not None:
        there = look(arrays["W"], arrays.get("v"))
        later = {"loss": lambda: there.seen["loss"], "log_excess": lambda: there.seen["log_excess"]}
    if before is not None:
        arrays |= {name: of() for name, of in later.items()}
        index, arrays = going_on.joined(before, index, arrays, asked)
    going, moving = np.asarray(state.going), np.asarray(state.moving)
    reasons = np.where(moving, np.where(settling.reached, "converged", "steps"), "saturated")
    reasons = np.where(going | settling.reached, reasons, "diverged")
    if done.interrupted:
        reasons = np.where(settling.reached, "converged", "interrupted")
    parts: dict[str, Any] = {**later, **arrays, "stopped": reasons if count is not None else str(reasons)}
    state = state._replace(going=going | settling.reached)
    return Path(tokens, index, state=going_on.kept(state), **parts)
