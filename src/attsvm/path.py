"""One path type for a training run and a regularisation path: weights with an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm, frobenius
from attsvm.selection import attended_tokens
from attsvm.tokens import Bool, Float, Tokens

_PER_RUN = ("W", "loss", "log_excess", "stopped", "K", "Q", "v", "agreed")
_STATE = "path_state_"


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """A sequence of weights W(index): steps of a training run, or radii of a regularisation path.

    index (k,): the recorded steps, radii or ridges; kind: which of them, "steps", "radius" or "ridge".
    W (k, d, e): the weights; K (k, d, r), Q (k, e, r) and the head v (k, c) where they were trained.
    loss (k,): the objective. log_excess (k,): log(L − L*), exact long after L − L* has underflowed;
        NaN where the best loss L* is not known.
    stopped: why the run ended: "steps", "saturated", "diverged" or, by Ctrl-C, "interrupted"; a
        regularisation path "converged".
    agreed (k,): how many fresh starts of a regularisation path found its smallest loss at that radius.
    state: arrays from which train(…, resume=path) goes on, those of the optimizer among them.

    With a runs axis every array but the index carries it first: W (runs, k, d, e), stopped (runs,).
    """

    tokens: Tokens
    index: NDArray[Any]
    W: Float
    loss: Float
    log_excess: Float
    stopped: Any
    kind: str = "steps"
    K: Float | None = None
    Q: Float | None = None
    v: Float | None = None
    agreed: NDArray[Any] | None = None
    state: Mapping[str, NDArray[Any]] | None = None

    @property
    def runs(self) -> int | None:
        """Number of runs, or None without a runs axis."""
        return self.W.shape[0] if self.W.ndim == 4 else None

    @property
    def final(self) -> Float:
        """The last weight (d, e), with runs (runs, d, e)."""
        return self.W[..., -1, :, :]

    @property
    def log_attention(self) -> Float:
        """Logarithm of the attention at every record (k, n, T), exact past saturation; −∞ where masked."""
        return _log_attention(self.tokens, self.W)

    @property
    def attention(self) -> Float:
        """Attention at every record (k, n, T), with runs (runs, k, n, T)."""
        return np.asarray(np.exp(self.log_attention))

    @property
    def selected(self) -> Bool:
        """The tokens the last weight attends to most, bool (n, T), with runs (runs, n, T)."""
        last = _log_attention(self.tokens, self.W[..., -1:, :, :])[..., 0, :, :]
        # One token per example holds all the mass here: the logits decide where softmax has underflowed.
        return attended_tokens(_one_hot_mass(last))

    def norm(self, norm: Norm = frobenius) -> Float:
        """N(W) at every record (k,), with runs (runs, k)."""
        return np.asarray(norm.value(self.W))

    def run(self, index: int) -> Path:
        """The path of one run."""
        if self.runs is None:
            raise ValueError("this path has no runs axis.")
        tokens = self.tokens if self.tokens.runs is None else self.tokens.run(index)
        parts = {name: getattr(self, name) for name in _PER_RUN}
        picked: dict[str, Any] = {n: None if a is None else a[index] for n, a in parts.items()}
        picked["stopped"] = str(picked["stopped"])
        return Path(tokens, self.index, kind=self.kind, **picked)

    def __repr__(self) -> str:
        unit = {"steps": "steps", "radius": "radii", "ridge": "ridges"}[self.kind]
        span = f"{len(self.index)} records over {self.index[0]:g}…{self.index[-1]:g} {unit}"
        what = f"W {' × '.join(map(str, self.W.shape[-2:]))}"
        if self.runs is not None:
            reasons, counts = np.unique(self.stopped, return_counts=True)
            ends = ", ".join(f"{c} {r}" for r, c in zip(reasons, counts, strict=True))
            size = f"{self.runs} runs, median final ‖W‖ {np.median(self.norm()[:, -1]):.6g}"
            return f"Path({size}; {what}; {span}; stopped: {ends})"
        loss = f"loss {self.loss[0]:.6g} → {self.loss[-1]:.6g}"
        return f"Path({what}, ‖W‖ {self.norm()[-1]:.6g}; {loss}; {span}; stopped: {self.stopped})"

    def plot(self) -> Any:
        """A matplotlib figure: loss, norm and attention against the index."""
        from attsvm.figures.results import draw_path

        return draw_path(self)

    # ------------------------------------------------------------------ open format

    def save(self, file: str | PathLike[str]) -> None:
        """Write the tokens and the path to an .npz file."""
        arrays: dict[str, Any] = dict(self.tokens.arrays())
        names = ("index", "kind", *_PER_RUN)
        arrays |= {f"path_{n}": getattr(self, n) for n in names if getattr(self, n) is not None}
        arrays |= {f"{_STATE}{name}": array for name, array in (self.state or {}).items()}
        np.savez(file, **arrays)

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Path:
        """Read a path that `save` wrote."""
        tokens = Tokens.load(file)
        with np.load(file, allow_pickle=False) as data:
            if "path_W" not in data:
                raise ValueError(f"{file} is not a saved Path: it has no array 'path_W'.")
            state = {name.removeprefix(_STATE): data[name] for name in data if name.startswith(_STATE)}
            own = [name for name in data if name.startswith("path_") and not name.startswith(_STATE)]
            parts: dict[str, Any] = {name.removeprefix("path_"): data[name] for name in own}
        parts["kind"] = str(parts["kind"])
        if parts["stopped"].ndim == 0:
            parts["stopped"] = str(parts["stopped"])
        return cls(tokens, state=state or None, **parts)


def _log_attention(tokens: Tokens, W: Float) -> Float:
    """log softmax of x_tᵀ W z for weights (…, k, d, e) → (…, k, n, T)."""
    # W at size one, a shift of its exponent: the logits of a run that diverged would overflow to NaN.
    size = np.frexp(np.abs(W).max((-2, -1), keepdims=True))[1]
    directions = np.matmul(tokens.queries[..., None, :, :], np.swapaxes(np.ldexp(W, -size), -1, -2))
    logits = np.matmul(tokens.keys[..., None, :, :, :], directions[..., None])[..., 0]
    logits = np.where(tokens.mask[..., None, :, :], logits, -np.inf)
    with np.errstate(over="ignore"):
        shifted = np.ldexp(logits - logits.max(-1, keepdims=True), size)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _one_hot_mass(log_attention: Float) -> Float:
    top = log_attention == log_attention.max(-1, keepdims=True)
    return np.asarray(top / top.sum(-1, keepdims=True))
