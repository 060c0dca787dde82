"""When a direction has settled: per run, by a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.path import Path, exponent
from attsvm.training.devices import Part
from attsvm.training.plan import State

EARLIEST = 100
"""Steps before which nothing has settled: the first ones of a slow run all go the same way."""


@dataclass
class Settling:
    """A run has settled at a record where 1 − cos(W, W') ≤ tolerance, W' its last record at half the steps.

    reached: which runs have, one flag or (runs,). history: step and weight ((runs,) d, e) of the records.
    """

    tolerance: float | None
    reached: NDArray[np.bool_]
    history: list[tuple[int, NDArray[Any]]] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        return self.tolerance is not None

    def after(self, path: Path, count: int) -> Settling:
        """Going on from so many records of a path: what had settled stays, where a tolerance is asked for."""
        ended = np.asarray(path.stopped) == "converged"
        records = path.W if path.runs is None else path.W.swapaxes(0, 1)
        records = records.reshape(*records.shape[: 1 + ended.ndim], -1, records.shape[-1])
        history = list(zip(path.index.tolist(), records, strict=True))[:count]
        return Settling(self.tolerance, np.asarray(ended & self.asked), history)

    def settled(self, parts: list[Part], step: int, W: NDArray[Any]) -> tuple[list[Part], bool]:
        """The parts after a record W ((runs,) d, e), settled runs at rest; and whether some go on."""
        self._look(step, W)
        held, out = self.reached.ravel(), []
        for part in parts:
            size = part.state.going.size
            # Runs that only fill up the last part have no entry of their own.
            own = np.append(held[:size], np.ones(max(size - held.size, 0), bool))
            out.append(_held(part.state, own))
            held = held[size:]
        return (
            [replace(part, state=state) for part, state in zip(parts, out, strict=True)],
            any(np.asarray(state.going).any() for state in out),
        )

    def reached_by(self, state: State, step: int, W: NDArray[Any]) -> tuple[State, bool]:
        """The same for all runs in one state."""
        self._look(step, W)
        state = _held(state, self.reached)
        return state, bool(np.asarray(state.going).any())

    def _look(self, step: int, W: NDArray[Any]) -> None:
        earlier = [there for at, there in self.history if at <= step / 2]
        runs = self.reached.ndim  # all heads of a run are one direction
        W = W.reshape(*W.shape[:runs], -1, W.shape[-1])
        W = W[: self.reached.size] if runs else W
        self.history.append((step, W))
        if earlier and step >= EARLIEST:
            self.reached |= change(W, earlier[-1]) <= self.tolerance


def change(W: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """1 − cosine of every run, through the distance of unit vectors; NaN where a weight is zero."""
    scaled = (np.ldexp(x, -exponent(x)) for x in (W, before))  # squares of 1e160 would be infinite
    with np.errstate(invalid="ignore"):
        units = [x / np.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in scaled]
        return np.asarray(((units[0] - units[1]) ** 2).sum((-2, -1)) / 2)


def _held(state: State, settled: NDArray[np.bool_]) -> State:
    going = np.asarray(state.going)
    now = going & ~settled.reshape(going.shape)
    return state._replace(going=jax.device_put(now, state.going.sharding))
