"""Training on data that the device cannot hold: every step reads the examples in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.numbers.files import memory
from attsvm.numbers.stored import Stored
from attsvm.training import batches, engine
from attsvm.training.compilation import backend, local_devices
from attsvm.training.convergence import Convergence
from attsvm.training.data import Data, equal_values, of_examples
from attsvm.training.plan import Outcome, Plan, State
from attsvm.training.prediction_heads import Linear
from attsvm.training.segments import Segments
from attsvm.training.sums import Needed, Sums
from attsvm.training.types import AnyArray, Arrays, Steps, Tree

READ = 1 << 26
"""Bytes of keys and values that are sent to the device at once."""
SHARE = 0.5
"""Share of the device's memory that the data may fill."""


def too_large(tokens: Tokens) -> bool:
    """Whether keys and values would fill more than half of the device's memory."""
    return sum(_bytes(x) for x in _large(tokens)) > SHARE * _room()


def run(
    plan: Plan,
    tokens: Tokens,
    state: State,
    recorded: Steps,
    taken: int,
    segments: Segments,
    convergence: Convergence,
) -> Outcome:
    """As driver.run_in_memory, step by step; of a mini-batch only its examples are read."""
    if tokens.runs is not None:
        raise ValueError(
            "the data of all runs do not fit into the device's memory. Pass fewer runs at a time."
        )
    if state.seed is not None and np.unique(state.seed).size > 1:
        raise ValueError(
            "the data do not fit into the device's memory, so runs read their mini-batches together. "
            "Pass one seed for all of them."
        )
    alike = equal_values(tokens)
    index: list[int] = []
    records: list[Arrays] = []
    pressed = False
    for step in range(max(taken, 0), int(recorded[-1]) + 1):
        if step > max(taken, 0):
            sums = _summed(plan.needed, plan, _of_step(plan, tokens, alike, state, step - 1), state)
            state = engine.stepped(plan.at(step - 1, 1).of_step(0), state, sums)
            segments.done = step
            segments.took(1)
            pressed = segments.pressed
        due = step in recorded and step > taken
        if due or pressed:
            index.append(step)
            records.append(_record(plan, tokens, alike, state))
        if due and convergence.requested:
            state, going = convergence.stop(state, step, records[-1]["W"])
            if not going:
                break
        if pressed:
            break
    arrays = {name: np.stack([record[name] for record in records]) for name in records[0]}
    if plan.model.runs:
        arrays = {name: array.swapaxes(0, 1) for name, array in arrays.items()}
    interrupted = pressed and index[-1] < recorded[-1]
    return Outcome(state, np.array(index), arrays, convergence.reached, interrupted)


def chunks(tokens: Tokens, alike: AnyArray) -> Iterator[Data]:
    """The examples in chunks of one size; the last overlaps the one before, with a share of zero.

    alike (n, T): the first token of the same value; None where values differ.
    """
    size = max(1, min(tokens.n, READ * tokens.n // max(sum(_bytes(x) for x in _large(tokens)), 1)))
    for first in range(0, tokens.n, size):
        begin = min(first, tokens.n - size)
        chunk = _of_examples(tokens, alike, slice(begin, begin + size))
        share = np.where(np.arange(begin, begin + size) >= first, 1 / tokens.n, 0.0)
        yield chunk._replace(share=share)  # type: ignore[arg-type]
    for x in _large(tokens):
        if isinstance(x, Stored):
            x.passes += 1


def _of_step(plan: Plan, tokens: Tokens, alike: AnyArray, state: State, step: int) -> Iterator[Data]:
    """The examples of a step: all of them, or those of its mini-batch, as one chunk."""
    form = plan.model.batch
    if form is None:
        yield from chunks(tokens, alike)
        return
    seed: AnyArray = state.seed
    batch = batches.on_host(form, np.ravel(seed)[0], tokens.n, step)
    missing = form.size - len(batch)  # at the end of an epoch
    share: AnyArray = np.repeat([1 / len(batch), 0.0], [len(batch), missing])
    places, where = np.unique(np.append(batch, np.repeat(batch[-1:], missing)), return_inverse=True)
    chunk: Data = jax.tree.map(lambda x: x[where], _of_examples(tokens, alike, places))
    yield chunk._replace(share=share)


def _of_examples(tokens: Tokens, alike: AnyArray, examples: AnyArray) -> Data:
    data = of_examples(tokens, examples)
    return data if alike is None else data._replace(alike=alike[examples])


def _summed(needed: Needed, plan: Plan, examples: Iterator[Data], state: State) -> Sums:
    model = replace(plan.model, batch=None)
    sums: Tree = None
    for chunk in examples:
        of_chunk = engine.sums_over(needed, model, jax.device_put(chunk), state.params, state.head)
        previous, sums = sums, of_chunk if sums is None else engine.sums_together(model.runs, sums, of_chunk)
        jax.block_until_ready(previous)  # type: ignore[no-untyped-call]  # one chunk ahead, no more
    return sums


def _record(plan: Plan, tokens: Tokens, alike: AnyArray, state: State) -> Arrays:
    sums = _summed(engine.OF_RECORDS, plan, chunks(tokens, alike), state)
    arrays = {"W": engine.matrix(plan.model, state.params), "loss": sums.loss, "log_excess": sums.log_excess}
    arrays |= {name: array for name, array in state.params.items() if name in ("K", "Q")}
    if plan.head_rule is not None and isinstance(state.head, Linear):
        arrays["v"] = state.head.v
    return {name: np.asarray(array) for name, array in arrays.items()}


def _large(tokens: Tokens) -> list[AnyArray]:
    return [tokens.keys] if tokens.values is tokens.keys else [tokens.keys, tokens.values]


def _bytes(array: AnyArray) -> int:
    return int(array.size) * (
        array.array.dtype.itemsize if isinstance(array, Stored) else array.dtype.itemsize
    )


def _room() -> int:
    """Bytes of the device's memory."""
    stats = local_devices()[0].memory_stats() if backend() != "cpu" else None
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else memory()
