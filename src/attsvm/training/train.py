"""train(): the only training loop. A run, or thousands at once, as one compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.training import resume as resuming
from attsvm.training.attention import SOFTMAX, Mechanism
from attsvm.training.batches import Batches
from attsvm.training.compilation import kept_programs
from attsvm.training.driver import run
from attsvm.training.inputs import Inputs, checked_inputs
from attsvm.training.layout import model_of
from attsvm.training.losses import Loss
from attsvm.training.plan import Outcome, Plan
from attsvm.training.prediction_heads import Head
from attsvm.training.segments import Interrupted, Paused, Segments, first_steps
from attsvm.training.types import OptimizerLike, Options
from attsvm.training.weights import FULL, MultiHead, Weight


def train(
    tokens: Tokens,
    head: Head,
    *,
    weight: Weight = FULL,
    attention: Mechanism = SOFTMAX,
    loss: Loss | None = None,
    optimizer: OptimizerLike,
    steps: int,
    init: Any = None,
    record: int | Sequence[int] = 50,
    batch: Batches | None = None,
    train_head: OptimizerLike = None,
    tolerance: float | None = None,
    resume: Path | None = None,
) -> Path:
    """Train attention by descent of the mean loss, of all examples or of mini-batches.

        L(W) = 1/n Σ_i ℓ(Y_i h(Σ_t s_it value_it)),     s_i = softmax(X_i W z_i)

    weight: FullWeight(), KeyQuery(rank), Diagonal(), or MultiHead(count, weight): several of one kind.
    attention: how logits become weights of tokens, by default softmax; or a mechanism of your own.
    loss: logistic (by default), exponential, correlation, log_loss. The head SquaredError() is a loss itself.
    optimizer: steepest(norm, lr), gd(lr), mirror(p, lr), polyak(), adam(lr), or any optax optimizer.
    init: None, an array (d, e), (K, Q), or a draw such as gaussian(seed), uniform(range(30)).
    record: how many log-spaced steps to keep, or which; the first and the last are always kept.
    batch: Batches(size, seed, order), the examples of a step; None: all of them. The loss and log_excess of a
        record are those of all examples.
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
    inputs = checked_inputs(
        tokens,
        head,
        weight=weight,
        attention=attention,
        loss=loss,
        optimizer=optimizer,
        steps=steps,
        init=init,
        record=record,
        batch=batch,
        train_head=train_head,
        tolerance=tolerance,
        resume=resume,
    )
    plan = Plan(model_of(inputs), *inputs.rules)
    segments = Segments("training", steps, first_steps(inputs.tokens, inputs.runs))
    with segments, kept_programs(), jax.enable_x64(True):
        outcome = run(plan, inputs, segments)
    path = _path(inputs, outcome).changed(trained=(weight, optimizer, batch))
    if segments.by_hand or outcome.interrupted:
        raise (Interrupted if segments.by_hand else Paused)(path)
    return path


def _path(inputs: Inputs, outcome: Outcome) -> Path:
    """The path of a run, with the records of the one that it resumes; loss and excess are computed later."""
    index, arrays, lazy, state = outcome.index, outcome.arrays, outcome.lazy, outcome.state
    if inputs.resume is not None:
        arrays, lazy = arrays | {name: compute() for name, compute in lazy.items()}, {}
        index, arrays = resuming.joined(inputs.resume, index, arrays, inputs.recorded)
    going, moving, converged = np.asarray(state.going), np.asarray(state.moving), outcome.converged
    reasons = np.where(moving, np.where(converged, "converged", "steps"), "saturated")
    reasons = np.where(going | converged, reasons, "diverged")
    if outcome.interrupted:
        reasons = np.where(converged, "converged", "interrupted")
    final: Any = going | converged
    saved = resuming.saved(state._replace(going=final), inputs.description)
    stopped: Any = str(reasons) if inputs.runs is None else reasons
    count = inputs.weight.count if isinstance(inputs.weight, MultiHead) else None
    records: Options = {**lazy, **arrays}
    return Path(
        inputs.original,
        index,
        state=saved,
        stopped=stopped,
        heads=count,
        function=inputs.attention.name,
        **records,
    )
