"""Which steps an optimizer of another library takes: measured on random gradients, not read from its code."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from attsvm.norms import capabilities_of
from attsvm.norms.norms import NORMS
from attsvm.numbers import Float

DRAWS, SHAPE = 24, (6, 5)
"""The number and the shape of the random gradients."""

MOMENTA = np.append(np.arange(100) / 100, [0.995, 0.999])
SQUARES = (0.9, 0.95, 0.98, 0.99, 0.999)
"""The averages that are tried: of gradients, and of their squares in Adam."""

ALIKE = 0.9995
"""Mean cosine from which steps are the same: rounding in float32 leaves 1e-7, another momentum 1e-2."""

NEAR = 0.5
"""Mean cosine below which no known steps are near."""

EQUAL = 1e-3
"""Relative difference of steps that counts as none."""

FAR = 1e3
"""The size of a weight at which the usual decay of 1e-4 shows in the steps."""

SMALL = 1e-12
"""The length of small gradients: eps beside a length or a root is larger as a rule."""


class Likeness(NamedTuple):
    """The known steps that are nearest to an optimizer's.

    steps: the word of a norm, or "adam". momentum: the share of the past in the average of the gradients.
    squares: that in Adam's average of squares, or None. cosine: the mean of those between both steps.
    proportional: whether lengths are those of the averaged gradients, as in gradient descent.
    differences: what else the steps depend on.
    """

    steps: str
    momentum: float
    squares: float | None
    cosine: float
    proportional: bool
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both take the same steps, up to their lengths."""
        return self.cosine >= ALIKE and not self.differences

    @property
    def call(self) -> str:
        """The call that makes the known optimizer."""
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        if self.squares is not None:
            return f"adam(lr, b1={self.momentum:g}, b2={self.squares:g}, eps=0.0)"
        if self.proportional and not momentum:
            return "gd(lr)"
        return f"steepest({self.steps!r}, lr{momentum})"

    def __str__(self) -> str:
        if self.cosine < NEAR:
            return "moves unlike all steps that are known"
        alike = f"moves like {self.steps} steps (cosine {self.cosine:.3f})"
        momentum = (f"momentum {self.momentum:g}",) if self.momentum else ()
        return ", ".join((alike, *momentum, *self.differences))


def likeness(optimizer: Any) -> Likeness:
    """The likeness of an optimizer with `init` and `update`, as in optax, or of torch.

    Raises ValueError if it takes no steps on a matrix and its gradient alone.
    """
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((DRAWS, *SHAPE)) * 4.0 ** rng.uniform(-1, 1, (DRAWS, 1, 1))
    origin, elsewhere = np.zeros(SHAPE), FAR * rng.standard_normal(SHAPE)
    steps = _steps(optimizer, gradients, origin)
    moved = steps.any((-2, -1))
    if not moved.any() or not np.isfinite(steps).all():
        raise ValueError("it takes no steps on a matrix")

    def nearness(candidate: tuple[str, float | None, Float]) -> Float:
        return np.round(_cosines(candidate[2], steps)[:, moved].mean(-1), 6)  # beyond is rounding

    candidates = [(candidate[:2], nearness(candidate)) for candidate in _candidates(gradients)]
    (word, squares), cosines = max(candidates, key=lambda candidate: float(candidate[1].max()))
    equal = np.flatnonzero(cosines == cosines.max())  # signs are the same for several averages
    momentum = float(MOMENTA[equal[len(equal) // 2] if equal[0] else 0])
    proportional = _constant(_lengths(steps) / _lengths(_averages(gradients, momentum)))
    expected = SMALL * steps if proportional else steps
    differences = []
    if squares is not None and not _constant(_lengths(steps) / _lengths(_adam(gradients, momentum, squares))):
        differences.append("lengths of steps that are not Adam's, as in RMSprop and AdaGrad")
    if not _equal(_steps(optimizer, gradients, elsewhere), steps):
        differences.append("its steps depend on the weight, as with decay")
    if not _equal(_steps(optimizer, SMALL * gradients, origin), expected):
        differences.append(f"other steps at gradients of {SMALL:g}, as with eps")
    return Likeness(word, momentum, squares, float(cosines.max()), proportional, tuple(differences))


def _candidates(gradients: Float) -> Iterator[tuple[str, float | None, Float]]:
    """The steps of known optimizers with every momentum (momenta, draws, d, e)."""
    averages = _averages(gradients, MOMENTA)
    for word, norm in NORMS.items():
        if capabilities_of(norm).acts_on in ("entries", "rows", "singular values"):
            yield word, None, norm.steepest(averages)
    for share in SQUARES:
        yield "adam", share, _adam(gradients, MOMENTA, share)


def _steps(optimizer: Any, gradients: Float, W: Float) -> Float:
    try:
        run = _of_torch if is_torch(optimizer) else _of_jax
        return np.stack([np.asarray(step, float) for step in run(optimizer, gradients, W)])
    except Exception as error:  # any: the code is not ours
        raise ValueError(f"it raises {type(error).__name__} on a matrix and its gradient") from error


def _of_jax(optimizer: Any, gradients: Float, W: Float) -> Iterator[Float]:
    """The steps at one weight; JAX is imported by who made the optimizer."""
    W, state = W.astype(np.float32), optimizer.init(W.astype(np.float32))
    update = sys.modules["jax"].jit(optimizer.update)
    for gradient in gradients.astype(np.float32):
        move, state = update(gradient, state, W)
        yield -np.asarray(move)


def _of_torch(optimizer: Any, gradients: Float, W: Float) -> Iterator[Float]:
    """The steps at one weight of a copy; torch is imported by who made the optimizer."""
    torch = sys.modules["torch"]
    parameter = torch.nn.Parameter(torch.tensor(W))
    copy = object.__new__(type(optimizer))
    copy.__dict__ |= optimizer.__dict__ | {"state": defaultdict(dict)}
    copy.__dict__.pop("step", None)  # a scheduler's, which counts
    copy.param_groups = [{**optimizer.param_groups[0], "params": [parameter]}]
    for gradient in gradients:
        parameter.data, parameter.grad = torch.tensor(W), torch.tensor(gradient)
        copy.step()
        yield W - parameter.detach().numpy()


def is_torch(optimizer: object) -> bool:
    """Whether it is an optimizer of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(optimizer, torch.optim.Optimizer)


def _averages(gradients: Float, momentum: Float | float) -> Float:
    """Averages (…, draws, d, e) that begin at zero, for momenta (…,)."""
    share = np.asarray(momentum)[..., None, None]
    average, averages = np.zeros(SHAPE), []
    for gradient in gradients:
        average = share * average + (1 - share) * gradient
        averages.append(average)
    return np.stack(averages, axis=-3)


def _adam(gradients: Float, b1: Float | float, b2: float) -> Float:
    """The steps of Adam without eps, for shares b1 (…,)."""
    count = np.arange(1, len(gradients) + 1)[:, None, None]
    mean = _averages(gradients, b1) / (1 - np.asarray(b1)[..., None, None, None] ** count)
    return np.asarray(mean / np.sqrt(_averages(gradients**2, b2) / (1 - b2**count)))


def _cosines(a: Float, b: Float) -> Float:
    sizes = _lengths(a) * _lengths(b)
    return np.asarray((a * b).sum((-2, -1)) / np.where(sizes > 0, sizes, 1.0))


def _lengths(steps: Float) -> Float:
    return np.asarray(np.linalg.norm(steps, axis=(-2, -1)))


def _constant(lengths: Float) -> bool:
    return bool(np.ptp(lengths) < EQUAL * lengths.max())


def _equal(a: Float, b: Float) -> bool:
    return bool(np.linalg.norm(a - b) <= EQUAL * np.linalg.norm(b))
