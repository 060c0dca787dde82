"""One path type for a training run and a regularisation path: weights with an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.files import STATE, check_shapes, naming, read_arrays, write_arrays
from attsvm.given import told, whole
from attsvm.norms import Norm, frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.stored import Stored
from attsvm.tokens import Tokens

_AXES = {
    "W": "kde",
    "loss": "k",
    "log_excess": "k",
    "stopped": "",
    "K": "kdr",
    "Q": "ker",
    "v": "kc",
    "agreed": "k",
}
"""The arrays of which every run has its own, and their axes."""

_SEEN = ("loss", "log_excess")
"""Those of a training cost a compiled program of their own, so they wait until they are asked for."""

_UNITS = {"steps": "steps", "radius": "radii", "ridge": "ridges"}


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """A sequence of weights W(index): steps of a training run, or radii of a regularisation path.

    index (k,): the recorded steps, radii or ridges; kind: which of them, "steps", "radius" or "ridge".
    W (k, d, e): the weights; K (k, d, r), Q (k, e, r) and the head v (k, c) where they were trained.
    loss (k,): the objective. log_excess (k,): log(L − L*), exact long after L − L* has underflowed;
        NaN where the best loss L* is not known. Those of a training are computed when first asked for.
    stopped: why the run ended: "steps", "saturated", "diverged" or, by Ctrl-C, "interrupted"; a
        regularisation path "converged".
    agreed (k,): how many fresh starts of a regularisation path found its smallest loss at that radius.
    state: arrays from which train(…, resume=path) goes on, those of the optimizer among them.
    heads: how many, where weight=Heads(count) was trained. Then W (k, heads, d, e), K, Q and v have that
        axis, and so has what is computed from them; `head(h)` is the path of one.

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
    heads: int | None = None

    @property
    def runs(self) -> int | None:
        """Number of runs, or None without a runs axis."""
        return self.W.shape[0] if self.W.ndim - (self.heads is not None) == 4 else None

    @property
    def final(self) -> Float:
        """The last weight (d, e), with runs (runs, d, e)."""
        return self.W[..., -1, :, :] if self.heads is None else self.W[..., -1, :, :, :]

    @property
    def log_attention(self) -> Float:
        """log softmax of x_tᵀ W z at every record (k, n, T), exact past saturation; −∞ where masked."""
        if self.heads is not None:
            return self._of_heads(lambda head: head.log_attention)
        relative, power = _relative(self.tokens, self.W)
        with np.errstate(over="ignore"):
            shifted = np.ldexp(relative, power)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))

    @property
    def attention(self) -> Float:
        """Attention at every record (k, n, T), with runs (runs, k, n, T)."""
        return np.asarray(np.exp(self.log_attention))

    @property
    def selected(self) -> Bool:
        """The tokens the last weight attends to most, bool (n, T), with runs (runs, n, T)."""
        if self.heads is not None:
            return self._of_heads(lambda head: head.selected)
        # The logits decide: the softmax ties where it has underflowed, and where W is still tiny.
        return np.asarray(_relative(self.tokens, self.W[..., -1:, :, :])[0][..., 0, :, :] == 0)

    def norm(self, norm: Norm = frobenius) -> Float:
        """N(W) at every record (k,), with runs (runs, k); of several heads each, as the last axis."""
        return np.asarray(norm.value(self.W))

    def run(self, index: int) -> Path:
        """The path of one run."""
        if self.runs is None:
            raise ValueError("this path has no runs axis.")
        _check_place("run", index, self.runs)
        tokens = self.tokens if self.tokens.runs is None else self.tokens.run(index)
        parts = {name: getattr(self, name) for name in _AXES if name not in _SEEN}
        picked: dict[str, Any] = {n: None if a is None else a[index] for n, a in parts.items()}
        picked |= {"loss": lambda: self.loss[index], "log_excess": lambda: self.log_excess[index]}
        picked["stopped"] = str(picked["stopped"])
        return Path(tokens, self.index, kind=self.kind, heads=self.heads, **picked)

    def changed(self, **parts: Any) -> Path:
        """The path with other parts: dataclasses.replace, which would ask for loss and log_excess first."""
        return Path(**{field.name: vars(self)[field.name] for field in fields(self)} | parts)

    def head(self, index: int) -> Path:
        """The path of one of several heads, with the loss of all of them."""
        if self.heads is None:
            raise ValueError("this path has no heads. Train them with weight=Heads(count).")
        _check_place("head", index, self.heads)
        own: dict[str, Any] = {name: getattr(self, name) for name in ("W", "K", "Q")}
        own = {name: None if array is None else array[..., index, :, :] for name, array in own.items()}
        own["v"] = None if self.v is None else self.v[..., index, :]
        return self.changed(heads=None, state=None, **own)

    def _of_heads(self, what: Callable[[Path], Any]) -> Any:
        """Something (…, n, T) of every head, as the third axis from the end."""
        return np.stack([what(self.head(h)) for h in range(self.heads or 0)], axis=-3)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        span = f"{len(self.index)} records over {self.index[0]:g}…{self.index[-1]:g} {_UNITS[self.kind]}"
        what = f"W {' × '.join(map(str, self.W.shape[-2:]))}"
        if self.heads is not None:
            what = f"{self.heads} heads, {what}"
        if self.runs is not None:
            reasons, counts = np.unique(self.stopped, return_counts=True)
            ends = ", ".join(f"{c} {r}" for r, c in zip(reasons, counts, strict=True))
            size = f"{self.runs} runs, median final ‖W‖ {np.median(self._length()):.6g}"
            return f"Path({size}; {what}; {span}; stopped: {ends})"
        loss = f"loss {self.loss[0]:.6g} → {self.loss[-1]:.6g}"
        return f"Path({what}, ‖W‖ {self._length():.6g}; {loss}; {span}; stopped: {self.stopped})"

    def _length(self) -> Float:
        """The length of the last weight, of all heads together."""
        last = frobenius.value(self.final)
        return np.asarray(last if self.heads is None else np.sqrt((last**2).sum(-1)))

    def plot(self, solution: Any = None) -> Any:
        """A matplotlib figure: loss, length, direction and attention against the index.

        solution: a Solution of the selected tokens; then the direction is measured against its W, and its
        margin is drawn too. Without one, the direction is measured against that of the last weight.
        """
        from attsvm.figures.results import draw_path

        if self.heads is not None:
            raise ValueError("plot shows one head. Call path.head(h).plot().")
        return draw_path(self, solution)

    # ------------------------------------------------------------------ open format

    def save(self, file: str | PathLike[str]) -> File:
        """Write the tokens and the path to an .npz file; returns its name."""
        arrays: dict[str, Any] = dict(self.tokens.in_memory().arrays())
        names = ("index", "kind", "heads", *_AXES)
        arrays |= {f"path_{n}": getattr(self, n) for n in names if getattr(self, n) is not None}
        arrays |= {f"{STATE}{name}": array for name, array in (self.state or {}).items()}
        return write_arrays(file, arrays)

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Path:
        """Read a path that `save` wrote. Raises BadFile where it is not one."""
        arrays = read_arrays(file)
        with naming(file):
            tokens = Tokens.from_arrays(arrays)
            state = {name.removeprefix(STATE): arrays[name] for name in arrays if name.startswith(STATE)}
            return cls(tokens, **_parts(tokens, arrays), state=state or None)


def _check_place(what: str, index: object, count: int) -> None:
    if not (whole(index) and -count <= index < count):
        raise IndexError(f"{what} is {told(index)}. Pass an integer from 0 to {count - 1}.")


class _WhenAsked:
    """A field that may hold a function in the place of its array: called once, at the first question."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, path: Path | None, owner: type | None = None) -> Any:
        if path is None:
            return self
        held = vars(path)
        if callable(held[self.name]):
            held[self.name] = held[self.name]()
        return held[self.name]

    def __set__(self, path: Path, value: Any) -> None:
        vars(path)[self.name] = value


for _name in _SEEN:
    setattr(Path, _name, _WhenAsked(_name))


def _parts(tokens: Tokens, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The arrays of a saved path, checked, under the names of its fields."""
    names = [name for name in ("index", "kind", "heads", *_AXES) if f"path_{name}" in arrays]
    parts: dict[str, Any] = {name: arrays[f"path_{name}"] for name in names}
    missing = {"index", "kind", "W", "loss", "log_excess", "stopped"} - set(parts)
    if missing:
        raise ValueError(f"not a saved Path: no array {', '.join(f'path_{n}' for n in sorted(missing))}.")
    check_shapes(parts, {"index": "k"}, {}, None)
    W, heads = parts["W"], None
    axes = dict(_AXES)
    if "heads" in parts:
        if parts["heads"].shape or parts["heads"] < 1 or parts["heads"] % 1:
            raise ValueError(f"path_heads is {parts['heads'].tolist()!r}, no number of heads.")
        heads = parts["heads"] = int(parts["heads"])
        axes |= {name: f"kh{axes[name][1:]}" for name in ("W", "K", "Q", "v")}
    runs = len(W) if W.ndim == len(axes["W"]) + 1 else None
    widths = {"d": tokens.d, "e": tokens.e, "c": tokens.values.shape[-1]}
    widths |= {} if heads is None else {"h": heads}
    check_shapes(parts, axes, {"k": len(parts["index"])} | widths, runs)
    if tokens.runs not in (None, runs):
        raise ValueError(f"the tokens have {tokens.runs} runs and the path {runs}. Save the path again.")
    if not W.size or not all(np.isfinite(parts[n]).all() for n in ("index", "W", "K", "Q") if n in parts):
        raise ValueError("the path is empty, or a weight or index is not finite. Save the path again.")
    if str(parts["kind"]) not in _UNITS:
        raise ValueError(f"path_kind is {parts['kind'].tolist()!r}. Known: {', '.join(_UNITS)}.")
    stopped = parts["stopped"] if runs else str(parts["stopped"])
    return parts | {"kind": str(parts["kind"]), "stopped": stopped}


def _relative(tokens: Tokens, W: Float) -> tuple[Float, NDArray[np.intc]]:
    """Logits x_tᵀ W z minus the winner's (…, k, n, T), −∞ where masked; and the power of two of each example.

    Logits beyond 1e308 would be ∞ − ∞, and below 1e-308 all equal: their powers of two are set aside.
    """
    weight = exponent(W)
    query = np.asarray(np.frexp(tokens.query_size)[1])[..., None, :, None]
    # That of the keys goes to the directions, which are fewer.
    key = np.clip(np.frexp(tokens.key_size)[1], -900, 900)[..., None, :, None]
    queries, weights = np.ldexp(tokens.queries[..., None, :, :], -query), np.ldexp(W, -weight)
    directions = np.ldexp(np.matmul(queries, np.swapaxes(weights, -1, -2)), -key)
    keys: Any = tokens.keys
    if isinstance(keys, Stored):  # which may be larger than the memory
        parts = [np.matmul(keys[part], directions[..., part, :, None])[..., 0] for part in keys.parts()]
        logits = np.concatenate(parts, axis=-2)
    else:
        logits = np.matmul(keys[..., None, :, :, :], directions[..., None])[..., 0]
    logits = np.where(tokens.mask[..., None, :, :], logits, -np.inf)
    return logits - logits.max(-1, keepdims=True), weight + query + key


def exponent(W: Float) -> NDArray[np.intc]:
    """The power of two just above the largest entry of each weight: (…, d, e) → (…, 1, 1)."""
    return np.asarray(np.frexp(np.abs(W).max((-2, -1), keepdims=True))[1])
