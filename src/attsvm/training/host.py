"""The host's side of a training run: compiled calls of a quarter of a second, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.tokens import Tokens
from attsvm.training import engine
from attsvm.training.attention import Data
from attsvm.training.heads import Linear
from attsvm.training.segments import SEGMENT, Segments

FEW, MANY, MOST_BYTES = 64, 1024, 2**23
"""Records that a call has room for, in a run of few or of many; and the most bytes that they may take."""

Steps = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Ride:
    """The state after the last step, the recorded steps (k,), what is known there: (k, …) or (k, runs, …)."""

    state: engine.State
    index: Steps
    arrays: Arrays
    interrupted: bool


def ride(
    plan: engine.Plan, data: Data, begin: tuple[engine.State, Any], asked: Steps, taken: int, watch: Segments
) -> Ride:
    """From `taken` steps, −1 before the record of step 0, to the last asked one; or until Ctrl-C.

    begin: the state and the scores of `engine.start`. A call ends when its time is over: where that is
    changes neither what is computed nor what is compiled.
    """
    state, scores = begin
    room, kept, parts, pressed = _room(state, len(asked)), [], [], False
    marks, taken = asked[asked > taken], max(taken, 0)
    while len(marks) and not pressed:
        ends, due = _ends(marks[:room], taken + watch.steps, marks[-1], room)
        lengths = np.zeros(room, np.int64)
        lengths[: len(ends)] = np.diff(ends, prepend=taken)
        state, snapshots = engine.advance(plan, data, scores, state, lengths, len(ends))
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        pressed = watch.pressed  # read once: it decides about the record and about the next call
        count = len(ends) if pressed else due
        if count:
            kept.append(ends[:count])
            parts.append(_arrays(plan.model, data, snapshots, count))
        marks = marks[due:]
        steps, taken = int(ends[-1]) - taken, int(ends[-1])
        watch.done = taken
        watch.took(steps)
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Ride(state, np.concatenate(kept), arrays, len(marks) > 0)


def first_steps(tokens: Tokens, runs: int | None) -> int:
    """Steps of the first call, before any is timed: about half a second of them at 2 ns per entry touched."""
    d, e = tokens.d, tokens.e
    entries = tokens.n * tokens.T * d + 10 * d * e * min(d, e)  # the latter: some steps factor W
    return max(1, int(2 * SEGMENT / (1e-4 + 2e-9 * (runs or 1) * entries)))


def _ends(marks: Steps, reach: int, last: int, room: int) -> tuple[Steps, int]:
    """Where the pieces of one call end, and how many of these are marks: those within reach, then its end."""
    end = min(reach, last)
    due = marks[marks <= end]
    if len(due) == room or (len(due) and due[-1] == end):
        return due, len(due)
    return np.append(due, end), len(due)


def _room(state: engine.State, records: int) -> int:
    """Not the number of records itself, which would compile a program for each."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.head)))
    return max(1, min(FEW if records <= FEW else MANY, MOST_BYTES // max(size, 1)))


def _arrays(model: engine.Model, data: Data, snapshots: engine.Snapshot, count: int) -> Arrays:
    found = dict(engine.observe(model, data, snapshots, count)._asdict())
    found |= {name: array for name, array in snapshots.params.items() if name in ("K", "Q")}
    if isinstance(snapshots.head, Linear):
        found["v"] = snapshots.head.v
    return {name: np.asarray(array)[:count] for name, array in found.items()}
