"""Data that the device cannot hold: every step reads the examples chunk by chunk from where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.numbers.files import memory
from attsvm.numbers.stored import Stored
from attsvm.training import batches, engine
from attsvm.training.compilation import backend, local_devices
from attsvm.training.convergence import Settling
from attsvm.training.data import Data, some
from attsvm.training.driver import Ride
from attsvm.training.plan import Plan, State
from attsvm.training.prediction_heads import Linear
from attsvm.training.segments import Segments
from attsvm.training.sums import Asked, Sums
from attsvm.training.ties import equal_values

READ = 1 << 26
"""Bytes of keys and values that are sent to the device at once."""
SHARE = 0.5
"""Share of the device's memory that the data may fill."""


def too_large(tokens: Tokens) -> bool:
    """Whether keys and values would fill more than half of the device's memory."""
    return sum(_bytes(x) for x in _large(tokens)) > SHARE * _room()


def ride(
    plan: Plan,
    tokens: Tokens,
    state: State,
    asked: NDArray[np.int64],
    taken: int,
    watch: Segments,
    settling: Settling,
) -> Ride:
    """As host.ride, step by step; of a mini-batch only its examples are read."""
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
    kept: list[int] = []
    found: list[dict[str, Any]] = []
    pressed = False
    for step in range(max(taken, 0), int(asked[-1]) + 1):
        if step > max(taken, 0):
            sums = _summed(plan.asked, plan, _looked_at(plan, tokens, alike, state, step - 1), state)
            state = engine.stepped(plan.at(step - 1, 1).now(0), state, sums)
            watch.done = step
            watch.took(1)
            pressed = watch.pressed
        if (step in asked and step > taken) or pressed:
            kept.append(step)
            found.append(_record(plan, tokens, alike, state))
        if settling.asked and step in asked and step > taken:
            state, going = settling.reached_by(state, step, found[-1]["W"])
            if not going:
                break
        if pressed:
            break
    arrays = {name: np.stack([one[name] for one in found]) for name in found[0]}
    return Ride(state, np.array(kept), arrays, pressed and kept[-1] < asked[-1])


def chunks(tokens: Tokens, alike: Any) -> Iterator[Data]:
    """The examples in chunks of one size; the last overlaps the one before, with a share of zero.

    alike (n, T): the first token of the same value; None where values differ.
    """
    size = max(1, min(tokens.n, READ * tokens.n // max(sum(_bytes(x) for x in _large(tokens)), 1)))
    for first in range(0, tokens.n, size):
        begin = min(first, tokens.n - size)
        part = _some(tokens, alike, slice(begin, begin + size))
        share = np.where(np.arange(begin, begin + size) >= first, 1 / tokens.n, 0.0)
        yield part._replace(share=share)  # type: ignore[arg-type]
    for x in _large(tokens):
        if isinstance(x, Stored):
            x.passes += 1


def _looked_at(plan: Plan, tokens: Tokens, alike: Any, state: State, step: int) -> Iterator[Data]:
    """The examples that a step looks at: all of them, or those of its mini-batch, as one chunk."""
    form = plan.model.batch
    if form is None:
        yield from chunks(tokens, alike)
        return
    seed: Any = state.seed
    chosen = batches.on_host(form, np.ravel(seed)[0], tokens.n, step)
    missing = form.size - len(chosen)  # at the end of an epoch
    share: Any = np.repeat([1 / len(chosen), 0.0], [len(chosen), missing])
    places, where = np.unique(np.append(chosen, np.repeat(chosen[-1:], missing)), return_inverse=True)
    part: Data = jax.tree.map(lambda x: x[where], _some(tokens, alike, places))
    yield part._replace(share=share)


def _some(tokens: Tokens, alike: Any, examples: Any) -> Data:
    part = some(tokens, examples)
    return part if alike is None else part._replace(alike=alike[examples])


def _summed(asked: Asked, plan: Plan, examples: Iterator[Data], state: State) -> Sums:
    model = replace(plan.model, batch=None)
    sums: Any = None
    for chunk in examples:
        here = engine.sums_over(asked, model, jax.device_put(chunk), state.params, state.head)
        before, sums = sums, here if sums is None else engine.sums_together(model.runs, sums, here)
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]  # one chunk ahead, no more
    return sums


def _record(plan: Plan, tokens: Tokens, alike: Any, state: State) -> dict[str, Any]:
    sums = _summed(engine.SEEN, plan, chunks(tokens, alike), state)
    found = {"W": engine.matrix(plan.model, state.params), "loss": sums.loss, "log_excess": sums.log_excess}
    found |= {name: array for name, array in state.params.items() if name in ("K", "Q")}
    if plan.head_rule is not None and isinstance(state.head, Linear):
        found["v"] = state.head.v
    return {name: np.asarray(array) for name, array in found.items()}


def _large(tokens: Tokens) -> list[Any]:
    return [tokens.keys] if tokens.values is tokens.keys else [tokens.keys, tokens.values]


def _bytes(array: Any) -> int:
    return int(array.size) * (
        array.array.dtype.itemsize if isinstance(array, Stored) else array.dtype.itemsize
    )


def _room() -> int:
    """Bytes of the device's memory."""
    stats = local_devices()[0].memory_stats() if backend() != "cpu" else None
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else memory()
