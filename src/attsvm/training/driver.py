"""The host's side of a training run: compiled calls of a quarter of a second, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.training import engine, resume as resuming, streaming
from attsvm.training.compilation import kept_programs
from attsvm.training.convergence import Convergence
from attsvm.training.data import with_scores
from attsvm.training.devices import Chunk, Share, chunks_of, cores, initial_state, sharing, without_padding
from attsvm.training.inputs import Inputs
from attsvm.training.plan import Model, Outcome, Plan, Snapshot
from attsvm.training.prediction_heads import Head, Linear, with_arrays
from attsvm.training.segments import Segments
from attsvm.training.types import Arrays, Config, Floats, Options, Steps, Tree
from attsvm.training.weights import OURS, FullWeight

SCHEDULED = 4096
"""The largest number of steps of a call with a schedule: their rates are computed before the call."""


def run(plan: Plan, inputs: Inputs, segments: Segments) -> Outcome:
    """Train to the last recorded step, or until Ctrl-C, on data in memory or read chunk by chunk."""
    tokens, count, start = inputs.tokens, inputs.runs, inputs.start
    convergence = Convergence(inputs.tolerance, np.zeros(() if count is None else count, bool))
    first, saved = plan.at(0, 1), None
    if inputs.resume is not None:
        fresh = jax.eval_shape(partial(initial_state, first), *start)
        saved = resuming.restored(inputs.resume, fresh, start[1], inputs.trains_head)
        converged, history = resuming.history(inputs.resume, inputs.recorded)
        reached = np.asarray(converged & convergence.requested)
        convergence = Convergence(inputs.tolerance, reached, history)
        saved = saved._replace(going=saved.going & ~convergence.reached)
    if streaming.too_large(tokens):
        state = initial_state(first, *start) if saved is None else saved
        return streaming.run(plan, tokens, state, inputs.recorded, inputs.taken, segments, convergence)
    data, scores = with_scores(tokens, start[1], inputs.trains_head)
    share = sharing(plan.model, data, start, count)
    chunks = chunks_of(share, first, data, scores, start, saved)
    outcome = run_in_memory(plan, chunks, inputs.recorded, inputs.taken, segments, convergence)
    arrays = without_padding(outcome.arrays, count, 1)
    if count is not None:
        arrays = {name: array.swapaxes(0, 1) for name, array in arrays.items()}
    losses = LazyLosses(plan.model.of_records, share, tokens, start[1], arrays["W"], arrays.get("v"))
    lazy = {"loss": lambda: losses.arrays["loss"], "log_excess": lambda: losses.arrays["log_excess"]}
    return replace(outcome, state=without_padding(outcome.state, count, 0), arrays=arrays, lazy=lazy)


def run_in_memory(
    plan: Plan, chunks: list[Chunk], recorded: Steps, step: int, segments: Segments, convergence: Convergence
) -> Outcome:
    """Train from `step`, −1 before the record of step 0, to the last recorded step, or until Ctrl-C.

    chunks: of runs, computed side by side. A call ends after a time; its number of steps changes neither the
        results nor the compiled program.
    """
    room, index, pressed = _room(chunks, len(recorded)), [], False
    marks, step = recorded[recorded > step], max(step, 0)
    records, going = _Records(len(marks) + 1), True
    if len(chunks) > 1:
        _advanced(plan.at(step, SCHEDULED), chunks[:1], np.zeros(room, np.int64), 0, records)  # compiles
    while len(marks) and going and not pressed:
        most = SCHEDULED if plan.scheduled else segments.steps
        within = marks[:1] if convergence.requested else marks  # a run may converge at every record
        ends, due = _ends(within, step, min(segments.steps, most), room, within[-1] == marks[-1])
        lengths = np.zeros(room, np.int64)
        lengths[: len(ends)] = np.diff(ends, prepend=step)
        chunks, snapshots = _advanced(plan.at(step, SCHEDULED), chunks, lengths, len(ends), records)
        pressed = segments.pressed  # read once: it decides about the record and about the next call
        steps, step = int(ends[-1]) - step, int(ends[-1])
        places = [j for j, end in enumerate(ends) if end in marks[:due]]
        if pressed and (not places or places[-1] != len(ends) - 1):
            places.append(len(ends) - 1)
        if places:
            index.append(ends[places])
            records.pending = _pending(plan.model, chunks, snapshots, places, room)
        if convergence.requested and due:
            chunks, going = convergence.stop_chunks(chunks, step, records.fetched()["W"][-1])
        marks = marks[due:]
        segments.done = step
        segments.took(steps)
    arrays, state = records.fetched(), _joined([chunk.state for chunk in chunks], 0)
    if isinstance(plan.model.weight, OURS) and state.params.keys() <= arrays.keys():
        state = state._replace(params={name: arrays[name][-1] for name in state.params})  # not copied twice
    interrupted = pressed and bool(going) and len(marks) > 0
    return Outcome(state, np.concatenate(index), arrays, convergence.reached, interrupted)


def _advanced(
    plan: Plan, chunks: list[Chunk], lengths: Steps, count: int, records: _Records
) -> tuple[list[Chunk], list[Snapshot]]:
    """Take the same steps in all chunks; meanwhile the records of the previous call are copied to the host.

    A chunk in which a run diverged is computed again, with a check after every step.
    """
    results = _side_by_side(
        lambda c: engine.advance(c.plan(plan), c.data, c.scores, c.state, lengths, count), chunks
    )
    records.fetched()
    jax.block_until_ready(results)  # type: ignore[no-untyped-call]
    for j, chunk in enumerate(chunks):
        was_going, is_going = (np.asarray(state.going) for state in (chunk.state, results[j][0]))
        if (was_going & ~is_going).any():
            arguments = chunk.plan(plan), chunk.data, chunk.scores, chunk.state
            careful = engine.advance_carefully(*arguments, lengths, count)
            results[j] = engine.with_diverged(chunk.state.going, results[j], careful)
    return [replace(c, state=s) for c, (s, _) in zip(chunks, results, strict=True)], [s for _, s in results]


def _side_by_side(function: Callable[[Chunk], Any], chunks: list[Chunk]) -> list[Any]:
    """Apply the function to every chunk, to as many at once as there are cores.

    Threads do this, because XLA for CPUs computes the calls of one thread one after the other. The program
    must be compiled before, or every thread compiles it.
    """
    workers = min(cores(), len(chunks))
    if workers == 1:
        return [function(chunk) for chunk in chunks]

    settings: Config = jax.config
    device = settings.jax_default_device

    def in_thread(chunk: Chunk) -> Any:
        with jax.enable_x64(True), jax.default_device(device):  # each thread has settings of its own
            return jax.block_until_ready(function(chunk))  # type: ignore[no-untyped-call]

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(in_thread, chunks))


def _joined(trees: list[Tree], axis: int) -> Tree:
    """The arrays of all chunks along their runs axis."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *x: np.concatenate([np.asarray(a) for a in x], axis), *trees)


def _ends(marks: Steps, step: int, steps: int, room: int, final: bool) -> tuple[Steps, int]:
    """The steps at which the pieces of one call end, the last at its end, and how many of them are marks.

    final: the last mark is the last step of the training. This step is a separate piece: whether it changes a
        weight decides why the run stopped.
    """
    last = int(marks[-1])
    end = min(step + steps, last)
    due = marks[marks <= end]
    ends = due if len(due) and due[-1] == end else np.append(due, end)
    if final and end == last and last - 1 > step:
        ends = np.unique(np.append(ends, last - 1))
    ends = ends[:room]
    return ends, int(np.isin(due, ends).sum())


# ---------------------------------------------------------------------- records


def _room(chunks: list[Chunk], records: int) -> int:
    leaves = jax.tree.leaves([(chunk.state.params, chunk.state.head) for chunk in chunks])
    return engine.room(records, sum(x.nbytes for x in leaves))


class _Pending(NamedTuple):
    """The trained arrays of a call, on their way to the host, for every chunk; places: of the records."""

    chunks: list[Options]
    places: Options


class _Records:
    """The trained arrays at the recorded steps, `most` at most; the last ones may still be on their way."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self.room: Arrays = {}
        self.pending: _Pending | None = None

    def fetched(self) -> Arrays:
        """All of them on the host, (k, …) or (k, runs, …)."""
        if self.pending is not None:
            pending, self.pending, begin = self.pending, None, self.count
            for name, places in pending.places.items():
                new = _joined([np.asarray(chunk[name])[places] for chunk in pending.chunks], 1)
                if name not in self.room:
                    self.room[name] = np.empty((self.most, *new.shape[1:]), new.dtype)
                self.count = begin + len(new)
                self.room[name][begin : self.count] = new
        return {name: room[: self.count] for name, room in self.room.items()}


def _pending(
    model: Model, chunks: list[Chunk], snapshots: list[Snapshot], records: list[int], room: int
) -> _Pending:
    """The trained arrays of these snapshots, of which a call has `room`; `records`: which are recorded."""
    is_full = isinstance(model.weight, FullWeight)
    # Runs first, where the program is small: it compiles in two thirds of the time and is as fast.
    model = replace(model, runs_last=False, fused=False, batch=None)
    places, arrays = np.resize(np.array(records), room), []
    for chunk, snapshot in zip(chunks, snapshots, strict=True):
        trained = {name: array for name, array in snapshot.params.items() if name in ("W", "K", "Q")}
        trained |= {"v": snapshot.head.v} if isinstance(snapshot.head, Linear) else {}
        if not is_full:
            with engine.compiled_quickly(chunk.data, chunk.state.going.size, len(chunks)):
                trained["W"] = engine.matrices(model, snapshot.params, places, len(records))
        arrays.append(trained)
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    # A slice makes no copy: where there is room for one record only, the record is large.
    of_trained = slice(None) if len(records) == room else records
    of_made = slice(len(records))
    return _Pending(
        arrays, {name: of_made if name == "W" and not is_full else of_trained for name in arrays[0]}
    )


# ---------------------------------------------------------------------- losses, computed when first read

# The program of the losses takes nearly as long to compile as that of the steps, and most users read weights
# only. Its argument is W alone, so that all parameterisations share it.


@dataclass(frozen=True, eq=False)
class LazyLosses:
    """Loss and log_excess of k records W ((runs,) k, d, e), under a head or, where it was trained, its v.

    It holds NumPy's arrays, which the path holds too, and nothing on a device.
    """

    model: Model
    share: Share
    tokens: Tokens
    head: Head
    W: Floats
    v: Floats | None

    @cached_property
    def arrays(self) -> Arrays:
        """loss and log_excess, ((runs,) k)."""
        with kept_programs(), jax.enable_x64(True), jax.default_device(self.share.device):
            chunks = [self._of_chunk(j) for j in range(self.share.chunks)]
        return {name: _concatenated(chunks, name)[: self.share.count] for name in chunks[0]}

    def _of_chunk(self, j: int) -> Arrays:
        share, model = self.share, self.model
        data, scores = with_scores(self.tokens, self.head, self.v is not None)
        data = share.placed(data, j) if model.data_runs else share.everywhere(data)
        (head, scores), axis = share.placed((self.head, scores), j), int(model.runs)
        trained_head = None if self.v is None else with_arrays(self.head, {"v": self.v})
        params: Tree = {"W": self.W}
        records = jax.tree.map(lambda x: share.cut(x, j), Snapshot(params, trained_head))
        leaves = jax.tree.leaves(records)
        count = leaves[0].shape[axis]
        size = engine.room(count, sum(x.nbytes for x in leaves) // count)
        losses: list[Arrays] = []
        with engine.compiled_quickly(data, share.size or 1, share.chunks):
            for begin in range(0, count, size):
                block = share.put(jax.tree.map(lambda x, begin=begin: _cut(x, axis, begin, size), records))
                length = min(size, count - begin)
                record = engine.observe(model, data, scores, head, block, length)
                losses.append({name: np.asarray(array)[:length] for name, array in record._asdict().items()})
        return {name: _concatenated(losses, name).T for name in losses[0]}


def _concatenated(pieces: list[Arrays], name: str) -> Floats:
    return np.concatenate([arrays[name] for arrays in pieces])


def _cut(array: Floats, axis: int, begin: int, size: int) -> Floats:
    """`size` records from `begin` on, padded with zeros."""
    block = array[(slice(None),) * axis + (slice(begin, begin + size),)]
    missing = [(0, size - block.shape[axis] if k == axis else 0) for k in range(block.ndim)]
    return np.pad(block, missing)
