"""Runs that have converged: their directions no longer change, and they stop while others go on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import numpy as np

from attsvm.data.path import exponent
from attsvm.training.devices import Chunk
from attsvm.training.plan import State
from attsvm.training.types import Flags, Floats

EARLIEST = 100
"""Before so many steps no run counts as converged: the first steps of a slow run have one direction."""


@dataclass
class Convergence:
    """A run has converged at a record where 1 − cos(W, W') ≤ tolerance, W' its last record at half the steps.

    reached: which runs have converged, one flag or (runs,). history: step and weight ((runs,) d, e) of the
        records.
    """

    tolerance: float | None
    reached: Flags
    history: list[tuple[int, Floats]] = field(default_factory=list)

    @property
    def requested(self) -> bool:
        return self.tolerance is not None

    def stop_chunks(self, chunks: list[Chunk], step: int, W: Floats) -> tuple[list[Chunk], bool]:
        """The chunks after a record W ((runs,) d, e), converged runs stopped; and whether some runs go on."""
        self._compare(step, W)
        reached, states = self.reached.ravel(), []
        for chunk in chunks:
            size = chunk.state.going.size
            # The runs that pad the last chunk have no entry.
            of_chunk = np.append(reached[:size], np.ones(max(size - reached.size, 0), bool))
            states.append(_stopped(chunk.state, of_chunk))
            reached = reached[size:]
        return (
            [replace(chunk, state=state) for chunk, state in zip(chunks, states, strict=True)],
            any(np.asarray(state.going).any() for state in states),
        )

    def stop(self, state: State, step: int, W: Floats) -> tuple[State, bool]:
        """The same for all runs in one state."""
        self._compare(step, W)
        state = _stopped(state, self.reached)
        return state, bool(np.asarray(state.going).any())

    def _compare(self, step: int, W: Floats) -> None:
        earlier = [weight for at, weight in self.history if at <= step / 2]
        runs = self.reached.ndim  # all heads of a run are one direction
        W = W.reshape(*W.shape[:runs], -1, W.shape[-1])
        W = W[: self.reached.size] if runs else W
        self.history.append((step, W))
        if earlier and step >= EARLIEST:
            self.reached |= change(W, earlier[-1]) <= self.tolerance


def change(W: Floats, reference: Floats) -> Floats:
    """1 − cosine of every run, through the distance of unit vectors; NaN where a weight is zero."""
    scaled = (np.ldexp(x, -exponent(x)) for x in (W, reference))  # squares of 1e160 would be infinite
    with np.errstate(invalid="ignore"):
        units = [x / np.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in scaled]
        return np.asarray(((units[0] - units[1]) ** 2).sum((-2, -1)) / 2)


def _stopped(state: State, converged: Flags) -> State:
    going = np.asarray(state.going)
    still_going = going & ~converged.reshape(going.shape)
    return state._replace(going=jax.device_put(still_going, state.going.sharding))
