"""When a direction has settled: per run, by a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.path import Path
from attsvm.training.devices import Part

EARLIEST = 100
"""Steps before which nothing has settled: the first ones of a slow run all go the same way."""


@dataclass
class Settling:
    """A run has settled at a record where 1 − cos(W, W') ≤ tolerance, W' its last record at half the steps.

    reached: which runs have, one flag or (runs,). history: step and weight ((runs,) d, e) of the records so far.
    """

    tolerance: float | None
    reached: NDArray[np.bool_]
    history: list[tuple[int, NDArray[Any]]] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        return self.tolerance is not None

    def after(self, path: Path) -> Settling:
        """Going on from a path: what had settled there stays, unless no tolerance is asked for any more."""
        ended = np.asarray(path.stopped) == "converged"
        records = path.W if path.runs is None else path.W.swapaxes(0, 1)
        history = list(zip(path.index.tolist(), records, strict=True))
        return Settling(self.tolerance, np.asarray(ended & self.asked), history)

    def settled(self, parts: list[Part], step: int, W: NDArray[Any]) -> tuple[list[Part], bool]:
        """The parts after a record W ((runs,) d, e), without the runs that have settled; whether some go on."""
        earlier = [there for at, there in self.history if at <= step / 2]
        self.history.append((step, W))
        if earlier and step >= EARLIEST:
            self.reached |= change(W, earlier[-1])[: self.reached.size].reshape(self.reached.shape) <= self.tolerance
        going = [np.asarray(part.state.going) for part in parts]
        starts = np.cumsum([0] + [x.size for x in going])
        # Runs that only fill up the last part have no entry of their own.
        held = np.append(self.reached, np.ones(int(starts[-1]) - self.reached.size, bool))
        now = [x & ~held[a : a + x.size].reshape(x.shape) for x, a in zip(going, starts, strict=False)]
        return [_going(part, x) for part, x in zip(parts, now, strict=True)], any(x.any() for x in now)


def change(W: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """1 − cosine per run, through the distance of unit vectors; NaN where a weight is zero."""
    with np.errstate(invalid="ignore"):
        units = [x / np.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in (W, before)]
        return np.atleast_1d(((units[0] - units[1]) ** 2).sum((-2, -1)) / 2)


def _going(part: Part, going: NDArray[np.bool_]) -> Part:
    there = jax.device_put(going, part.state.going.sharding)
    return replace(part, state=part.state._replace(going=there))
