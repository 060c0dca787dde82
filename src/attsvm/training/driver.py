"""The host's side of a training run: compiled calls of a quarter of a second, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.training import engine
from attsvm.training.compilation import backend
from attsvm.training.convergence import Settling
from attsvm.training.devices import Part, joined, side_by_side
from attsvm.training.lazy_records import Arrays, quickly, room
from attsvm.training.plan import Model, Plan, Snapshot, State
from attsvm.training.prediction_heads import Linear
from attsvm.training.segments import SEGMENT, Segments
from attsvm.training.weights import OURS, FullWeight

SCHEDULED = 4096
"""Steps of a call whose rates are written out."""

Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Ride:
    """The state after the last step, the recorded steps (k,), what is known there: (k, …) or (k, runs, …)."""

    state: State
    index: Steps
    arrays: Arrays
    interrupted: bool


def ride(
    plan: Plan, parts: list[Part], asked: Steps, taken: int, watch: Segments, settling: Settling
) -> Ride:
    """From `taken` steps, −1 before the record of step 0, to the last asked one; or until Ctrl-C.

    parts: some runs each, computed side by side. A call ends when its time is over: where that is
    changes neither what is computed nor what is compiled.
    """
    room, kept, pressed = _room(parts, len(asked)), [], False
    marks, taken = asked[asked > taken], max(taken, 0)
    found, going = _Records(len(marks) + 1), True
    if len(parts) > 1:
        _advanced(plan.at(taken, SCHEDULED), parts[:1], np.zeros(room, np.int64), 0, found)  # compiles
    while len(marks) and going and not pressed:
        most = SCHEDULED if plan.scheduled else watch.steps
        within = marks[:1] if settling.asked else marks  # a run may settle at every record
        ends, due = _ends(within, taken, min(watch.steps, most), room, within[-1] == marks[-1])
        lengths = np.zeros(room, np.int64)
        lengths[: len(ends)] = np.diff(ends, prepend=taken)
        parts, snapshots = _advanced(plan.at(taken, SCHEDULED), parts, lengths, len(ends), found)
        pressed = watch.pressed  # read once: it decides about the record and about the next call
        steps, taken = int(ends[-1]) - taken, int(ends[-1])
        chosen = [j for j, end in enumerate(ends) if end in marks[:due]]
        if pressed and (not chosen or chosen[-1] != len(ends) - 1):
            chosen.append(len(ends) - 1)
        if chosen:
            kept.append(ends[chosen])
            found.coming = _seen(plan.model, parts, snapshots, chosen, room)
        if settling.asked and due:
            parts, going = settling.settled(parts, taken, found.arrived()["W"][-1])
        marks = marks[due:]
        watch.done = taken
        watch.took(steps)
    arrays, state = found.arrived(), joined([part.state for part in parts], 0)
    if isinstance(plan.model.weight, OURS) and state.params.keys() <= arrays.keys():
        state = state._replace(params={name: arrays[name][-1] for name in state.params})  # not copied twice
    return Ride(state, np.concatenate(kept), arrays, pressed and bool(going) and len(marks) > 0)


def first_steps(tokens: Tokens, runs: int | None) -> int:
    """Steps of the first call, before any is timed: about half a second of them at 2 ns per entry touched.

    A GPU touches a hundred in that time.
    """
    d, e = tokens.d, tokens.e
    entries = tokens.n * tokens.T * d + 10 * d * e * min(d, e)  # the latter: some steps factor W
    each = 2e-9 if backend() == "cpu" else 2e-11
    return max(1, int(2 * SEGMENT / (1e-4 + each * (runs or 1) * entries)))


def _advanced(
    plan: Plan, parts: list[Part], lengths: Steps, count: int, found: _Records
) -> tuple[list[Part], list[Snapshot]]:
    """All parts after the same steps, beside which what was found before them arrives.

    Where a run diverged, its part goes again, carefully.
    """
    done = side_by_side(
        lambda p: engine.advance(p.own(plan), p.data, p.scores, p.state, lengths, count), parts
    )
    found.arrived()
    jax.block_until_ready(done)  # type: ignore[no-untyped-call]
    for j, part in enumerate(parts):
        before, after = (np.asarray(state.going) for state in (part.state, done[j][0]))
        if (before & ~after).any():
            given = part.own(plan), part.data, part.scores, part.state
            again = engine.advance_carefully(*given, lengths, count)
            done[j] = engine.mended(part.state.going, done[j], again)
    return [replace(p, state=s) for p, (s, _) in zip(parts, done, strict=True)], [s for _, s in done]


def _ends(marks: Steps, taken: int, steps: int, room: int, final: bool) -> tuple[Steps, int]:
    """Where the pieces of one call end, and how many of these are marks: those within reach, then its end.

    final: the last mark is the last step of all. That is a piece of its own: whether it changed anything
    tells why a run stopped.
    """
    last = int(marks[-1])
    end = min(taken + steps, last)
    due = marks[marks <= end]
    ends = due if len(due) and due[-1] == end else np.append(due, end)
    if final and end == last and last - 1 > taken:
        ends = np.unique(np.append(ends, last - 1))
    ends = ends[:room]
    return ends, int(np.isin(due, ends).sum())


def _room(parts: list[Part], records: int) -> int:
    leaves = jax.tree.leaves([(part.state.params, part.state.head) for part in parts])
    return room(records, sum(x.nbytes for x in leaves))


class _Seen(NamedTuple):
    """The trained arrays at the records of a call, part by part, on their way to the host; and where."""

    parts: list[dict[str, Any]]
    places: dict[str, Any]


class _Records:
    """The trained arrays at the recorded steps, at most so many; the last ones may still be coming."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.room: Arrays = {}
        self.coming: _Seen | None = None

    def arrived(self) -> Arrays:
        """All of it on the host, (k, …) or (k, runs, …)."""
        if self.coming is not None:
            seen, self.coming, begin = self.coming, None, self.count
            for name, places in seen.places.items():
                new = joined([np.asarray(part[name])[places] for part in seen.parts], 1)
                if name not in self.room:
                    self.room[name] = np.empty((self.most, *new.shape[1:]), new.dtype)
                self.count = begin + len(new)
                self.room[name][begin : self.count] = new
        return {name: room[: self.count] for name, room in self.room.items()}


def _seen(model: Model, parts: list[Part], snapshots: list[Snapshot], chosen: list[int], room: int) -> _Seen:
    whole = isinstance(model.weight, FullWeight)
    # Runs first, where the program is small: it compiles in two thirds of the time and is as fast.
    model = replace(model, runs_last=False, fused=False, batch=None)
    places, found = np.resize(np.array(chosen), room), []
    for part, there in zip(parts, snapshots, strict=True):
        trained = {name: array for name, array in there.params.items() if name in ("W", "K", "Q")}
        trained |= {"v": there.head.v} if isinstance(there.head, Linear) else {}
        if not whole:
            with quickly(part.data, part.state.going.size, len(parts)):
                trained["W"] = engine.matrices(model, there.params, places, len(chosen))
        found.append(trained)
    for leaf in jax.tree.leaves(found):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    # All of them without another copy: where there is room for one only, it is large.
    of_trained = slice(None) if len(chosen) == room else chosen
    of_made = slice(len(chosen))
    return _Seen(found, {name: of_made if name == "W" and not whole else of_trained for name in found[0]})
