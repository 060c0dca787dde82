"""The path of a training run or of a regularisation path: weights with an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm._support.validation import describe, is_integer
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms import Norm, frobenius
from attsvm.norms.names import as_norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.files import STATE, check_shapes, naming, read_arrays, write_arrays
from attsvm.numbers.library import home, on_host
from attsvm.numbers.stored import Stored

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
"""The arrays with a runs axis in front, and their other axes."""

_LAZY = ("loss", "log_excess")
"""Fields computed at first access: for a training run they need a compiled program of their own."""

RESOLVED = 32.0
"""Largest logit gap that softmax in float64 resolves: attention near 1 is rounded to 2⁻⁵³, and beyond this
gap more than a percent of the attention on other tokens is rounding. `train` has no such bound."""

_UNITS = {"steps": "steps", "radius": "radii", "ridge": "ridges"}


@dataclass(frozen=True, eq=False, repr=False)
class Path:
    """Weights W of a training run at its recorded steps, or of a regularisation path at its radii.

    index (k,): the recorded steps, radii or ridges; kind says which: "steps", "radius" or "ridge".
    W (k, d, e): the weights of the logits x_tᵀ W z.
    K (k, d, r), Q (k, e, r): the factors of W = K Qᵀ, where factors were trained.
    v (k, c): the linear head, where it was trained.
    loss (k,): the objective.
    log_excess (k,): log(L − L*), accurate even where L − L* underflows; NaN where the infimum L* of the
        loss is not known. For a training run, loss and log_excess are computed at first access.
    stopped: why the run ended. "steps": at the last step; "saturated": the last step changed no weight;
        "converged": within the tolerance; "diverged": W is the last finite weight; "interrupted": by Ctrl-C.
    agreed (k,): of a regularisation path, the number of starts that reached the smallest loss of the radius.
    state: arrays from which train(…, resume=path) continues, those of the optimizer included.
    function: from logits to weights; for another than "softmax" its mechanism computes the attention.
    trained: the weight, optimizer and batch of `train`, which limit_norm reads; None for other paths.
        Files and pickles do not hold them: it is empty there.
    heads: the number of heads where weight=MultiHead(count) was trained. Then W (k, heads, d, e), K, Q, v and
        all results computed from them have this axis; head(h) is the path of one head.

    With several runs every array except index has them as its first axis: W (runs, k, d, e), stopped (runs,).
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
    function: str = "softmax"
    trained: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, tokens: Tokens, weights: Any, steps: Any = None, *, loss: Any = None) -> Path:
        """The path of weights that another program trained, for `compare`, `classify` and `plot`.

        A softmax in float64 resolves logit gaps up to about 32. The repr says from which step on the path is
        beyond, and `compare` does not call a run that went on from there a failure.

        weights: W at some steps of training, the initial weight first: a stack (k, d, e) or a list of
            matrices, of NumPy, torch or JAX. Prompts may be vectors (d,). Factors of W = K Qᵀ are a list of
            pairs (K, Q), or a tuple of two stacks K (k, d, r) and Q (k, e, r). With several runs, stacks
            have them as their first axis.
        steps (k,): the steps at which W was recorded, by default 0, 1, 2, …
        loss (k,): the losses at these steps, by default NaN.
        """
        tokens = as_tokens(tokens)
        arrays: dict[str, Any] = _stacked_weights(tokens, weights)
        shape = arrays["W"].shape[:-2]
        index = _recorded_steps(steps, shape[-1])
        stopped: Any = "steps" if len(shape) == 1 else np.full(shape[0], "steps")
        return cls(
            tokens,
            index,
            loss=_recorded_loss(loss, shape),
            log_excess=np.full(shape, np.nan),
            stopped=stopped,
            **arrays,
        )

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
        """log softmax of x_tᵀ W z at every record (k, n, T), accurate past saturation; −∞ where masked."""
        if self.heads is not None:
            return self._stack_heads(lambda head: head.log_attention)
        self._check_softmax()
        log_attention = np.empty((*self.W.shape[:-2], *self.tokens.mask.shape[-2:]))
        for examples, block in _log_attention(self.tokens, self.W):
            log_attention[..., examples, :] = block
        return log_attention

    @property
    def attention(self) -> Float:
        """Attention at every record (k, n, T), with runs (runs, k, n, T)."""
        return np.asarray(np.exp(self.log_attention))

    @property
    def selected(self) -> Bool:
        """The tokens of the last weight's largest logits, bool (n, T), with runs (runs, n, T)."""
        if self.heads is not None:
            return self._stack_heads(lambda head: head.selected)
        self._check_softmax()
        # Compare logits, not attention: the softmax ties where it underflows, and where W is tiny.
        blocks = _relative_logits(self.tokens, self.W[..., -1:, :, :], equal_keys=True)
        return np.concatenate([relative[..., 0, :, :] == 0 for _, relative, _ in blocks], axis=-2)

    def least_attention(self, selected: ArrayLike | None = None) -> Float:
        """At every record, the smallest sum of attention on the selected tokens of an example: (k,).

        selected: bool (n, T), by default the tokens to which the last weight attends. With runs the result
        is (runs, k). Computed in blocks of examples, so that no array (k, n, T) is allocated.
        """
        return self.attention_and_gap(selected)[0]

    def logit_gap(self, selected: ArrayLike | None = None) -> Float:
        """At every record, the least |log(attention on selected / on other tokens)| of an example: (k,).

        A program that computes softmax in float64 resolves gaps up to about 32; beyond, its gradient is
        rounding. selected: as in least_attention. An example without other tokens has the gap ∞.
        """
        return self.attention_and_gap(selected)[1]

    def attention_and_gap(self, selected: ArrayLike | None = None) -> tuple[Float, Float]:
        """`least_attention` and `logit_gap` in one reading of the keys."""
        if self.heads is not None:
            raise ValueError(f"the path has {self.heads} heads. Ask one: path.head(h).")
        selected = self._as_selected(selected)
        self._check_softmax()
        mass, gap = np.full((2, *self.W.shape[:-2]), np.inf)
        for examples, block in _log_attention(self.tokens, self.W):
            wins = selected[..., None, examples, :]
            on_selected, on_others = (
                np.logaddexp.reduce(np.where(among, block, -np.inf), -1) for among in (wins, ~wins)
            )
            mass = np.minimum(mass, np.exp(on_selected).min(-1))
            gap = np.minimum(gap, np.abs(on_selected - on_others).min(-1))
        return mass, gap

    def resolved(self, gap: Float | None = None) -> Bool:
        """The records (k,) that another program's softmax in float64 resolves; all records of `train`.

        gap: the `logit_gap`, where it is known.
        """
        if self.kind != "steps" or self.trained is not None:
            return np.ones(self.W.shape[:-2], bool)
        return np.logical_and.accumulate((self.logit_gap() if gap is None else gap) <= RESOLVED, axis=-1)

    def _as_selected(self, selected: ArrayLike | None) -> Bool:
        array = np.asarray(self.selected if selected is None else selected)
        shape = self.tokens.mask.shape[-2:]
        if array.dtype != bool or array.shape[-2:] != shape:
            raise ValueError(
                f"selected has shape {array.shape} and dtype {array.dtype}. Pass booleans {shape}."
            )
        return array

    def norm(self, norm: Norm | str = frobenius) -> Float:
        """The norm of W at every record (k,), with runs (runs, k); with several heads (…, k, heads)."""
        return np.asarray(as_norm(norm).value(self.W))

    def run(self, index: int) -> Path:
        """The path of one run."""
        if self.runs is None:
            raise ValueError("this path has no runs axis.")
        _check_index("run", index, self.runs)
        tokens = self.tokens if self.tokens.runs is None else self.tokens.run(index)
        arrays = {name: getattr(self, name) for name in _AXES if name not in _LAZY}
        of_run: dict[str, Any] = {n: None if a is None else a[index] for n, a in arrays.items()}
        of_run |= {"loss": lambda: self.loss[index], "log_excess": lambda: self.log_excess[index]}
        of_run["stopped"] = str(of_run["stopped"])
        alike: dict[str, Any] = {n: getattr(self, n) for n in ("kind", "heads", "function", "trained")}
        return Path(tokens, self.index, **alike, **of_run)

    def changed(self, **changes: Any) -> Path:
        """`dataclasses.replace` without computing loss and log_excess."""
        return Path(**{field.name: vars(self)[field.name] for field in fields(self)} | changes)

    def head(self, index: int) -> Path:
        """The path of one of several heads; its loss is that of all heads together."""
        if self.heads is None:
            raise ValueError("this path has no heads. Train them with weight=MultiHead(count).")
        _check_index("head", index, self.heads)
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("W", "K", "Q")}
        of_head = {name: None if array is None else array[..., index, :, :] for name, array in arrays.items()}
        of_head["v"] = None if self.v is None else self.v[..., index, :]
        return self.changed(heads=None, state=None, **of_head)

    def _check_softmax(self) -> None:
        if self.function != "softmax":
            name = self.function
            raise ValueError(f"the path's attention is {name}, not softmax: its mechanism has the weights.")

    def _stack_heads(self, function: Callable[[Path], Any]) -> Any:
        """The results (…, n, T) of a function of each head's path, stacked to (…, heads, n, T)."""
        return np.stack([function(self.head(h)) for h in range(self.heads or 0)], axis=-3)

    def __getstate__(self) -> dict[str, Any]:
        # An optimizer of optax is a closure, which pickle refuses.
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "trained": None if self.trained is None else ()
        }

    def __repr__(self) -> str:
        span = f"{len(self.index)} records over {self.index[0]:g}…{self.index[-1]:g} {_UNITS[self.kind]}"
        weights = f"W {' × '.join(map(str, self.W.shape[-2:]))}"
        if self.heads is not None:
            weights = f"{self.heads} heads, {weights}"
        if self.runs is not None:
            reasons, counts = np.unique(self.stopped, return_counts=True)
            ends = ", ".join(f"{c} {r}" for r, c in zip(reasons, counts, strict=True))
            size = f"{self.runs} runs, median final ‖W‖ {np.median(self._final_length()):.6g}"
            return f"Path({size}; {weights}; {span}; stopped: {ends}{self._agreement()})"
        loss = "" if np.isnan(self.loss).all() else f"loss {self.loss[0]:.6g} → {self.loss[-1]:.6g}; "
        ends = f"{self.stopped}{self._agreement()}{self._unresolved()}"
        return f"Path({weights}, ‖W‖ {self._final_length():.6g}; {loss}{span}; stopped: {ends})"

    def _agreement(self) -> str:
        """The range of `agreed` over all radii and runs, for the repr."""
        if self.agreed is None:
            return ""
        low, high = int(self.agreed.min()), int(self.agreed.max())
        return f"; starts that agree: {low if low == high else f'{low} to {high}'}"

    def _unresolved(self) -> str:
        """From which step on float64 softmax resolves no more, for the repr."""
        resolved = np.ones(1, bool) if self.heads is not None else self.resolved()
        if resolved.all():
            return ""
        return f"; beyond what float64 softmax resolves from step {self.index[resolved.argmin()]:g} on"

    def _final_length(self) -> Float:
        """The Frobenius norm of the last weight, of all heads together."""
        norms = frobenius.value(self.final)
        return np.asarray(norms if self.heads is None else np.sqrt((norms**2).sum(-1)))

    def plot(self, solution: Any = None) -> Any:
        """A matplotlib figure of loss, norm, direction and attention against the index.

        solution: the Solution of the selected tokens. Directions are compared with its W, and its margin is
        drawn; without a solution they are compared with the last weight.
        """
        from attsvm.plotting.results import draw_path

        if self.heads is not None:
            raise ValueError("plot shows one head. Call path.head(h).plot().")
        return draw_path(self, solution)

    # ------------------------------------------------------------------ open format

    def save(self, file: str | PathLike[str]) -> File:
        """Write the tokens and the path to an .npz file, and return the file's path."""
        arrays: dict[str, Any] = dict(self.tokens.in_memory().arrays())
        names = ("index", "kind", "heads", "function", *_AXES)
        arrays |= {f"path_{n}": getattr(self, n) for n in names if getattr(self, n) is not None}
        if self.function == "softmax":  # which versions before had alone
            del arrays["path_function"]
        arrays |= {f"{STATE}{name}": array for name, array in (self.state or {}).items()}
        return write_arrays(file, arrays)

    @classmethod
    def load(cls, file: str | PathLike[str]) -> Path:
        """Read a path that `save` wrote; raises BadFile for another file."""
        arrays = read_arrays(file)
        with naming(file):
            tokens = Tokens.from_arrays(arrays)
            state = {name.removeprefix(STATE): arrays[name] for name in arrays if name.startswith(STATE)}
            trained = () if "trained" in state else None
            return cls(tokens, **_saved_fields(tokens, arrays), state=state or None, trained=trained)


def _check_index(name: str, index: object, count: int) -> None:
    if not (is_integer(index) and -count <= index < count):
        raise IndexError(f"{name} is {describe(index)}. Pass an integer from 0 to {count - 1}.")


class _LazyField:
    """A field of Path that may be set to a function, which is called at first access."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, path: Path | None, owner: type | None = None) -> Any:
        if path is None:
            return self
        values = vars(path)
        if callable(values[self.name]):
            values[self.name] = values[self.name]()
        return values[self.name]

    def __set__(self, path: Path, value: Any) -> None:
        vars(path)[self.name] = value


for _name in _LAZY:
    setattr(Path, _name, _LazyField(_name))


def _saved_fields(tokens: Tokens, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The fields of a saved path, checked."""
    names = [name for name in ("index", "kind", "heads", "function", *_AXES) if f"path_{name}" in arrays]
    saved: dict[str, Any] = {name: arrays[f"path_{name}"] for name in names}
    missing = {"index", "kind", "W", "loss", "log_excess", "stopped"} - set(saved)
    if missing:
        raise ValueError(f"not a saved Path: no array {', '.join(f'path_{n}' for n in sorted(missing))}.")
    check_shapes(saved, {"index": "k"}, {}, None)
    W, heads = saved["W"], None
    axes = dict(_AXES)
    if "heads" in saved:
        if saved["heads"].shape or saved["heads"] < 1 or saved["heads"] % 1:
            raise ValueError(f"path_heads is {saved['heads'].tolist()!r}, no number of heads.")
        heads = saved["heads"] = int(saved["heads"])
        axes |= {name: f"kh{axes[name][1:]}" for name in ("W", "K", "Q", "v")}
    runs = len(W) if W.ndim == len(axes["W"]) + 1 else None
    widths = {"d": tokens.d, "e": tokens.e, "c": tokens.values.shape[-1]}
    widths |= {} if heads is None else {"h": heads}
    check_shapes(saved, axes, {"k": len(saved["index"])} | widths, runs)
    if tokens.runs not in (None, runs):
        raise ValueError(f"the tokens have {tokens.runs} runs and the path {runs}. Save the path again.")
    if not W.size or not all(np.isfinite(saved[n]).all() for n in ("index", "W", "K", "Q") if n in saved):
        raise ValueError("the path is empty, or a weight or index is not finite. Save the path again.")
    if str(saved["kind"]) not in _UNITS:
        raise ValueError(f"path_kind is {saved['kind'].tolist()!r}. Known: {', '.join(_UNITS)}.")
    stopped = saved["stopped"] if runs else str(saved["stopped"])
    function = str(saved.get("function", "softmax"))
    return saved | {"kind": str(saved["kind"]), "stopped": stopped, "function": function}


# ---------------------------------------------------------------------- weights of other programs


def _stacked_weights(tokens: Tokens, weights: Any) -> dict[str, Float]:
    """W (k, d, e), with runs (runs, k, d, e), and the factors K and Q if pairs of factors are passed."""
    factors = _factors(weights)
    if factors is None:
        return {"W": _stacked(tokens, "W", weights, tokens.d, tokens.e)}
    K, Q = _stacked(tokens, "K", factors[0], tokens.d), _stacked(tokens, "Q", factors[1], tokens.e)
    if K.shape[:-2] != Q.shape[:-2] or K.shape[-1] != Q.shape[-1]:
        raise ValueError(f"K has shape {K.shape} and Q {Q.shape}. Pass (k, d, r) and (k, e, r): W = K Qᵀ.")
    return {"W": np.matmul(K, np.swapaxes(Q, -1, -2)), "K": K, "Q": Q}


def _recorded_steps(steps: Any, count: int) -> NDArray[Any]:
    """The index of a path: increasing steps, by default 0, 1, 2, …"""
    index = np.arange(count) if steps is None else np.asarray(steps)
    numeric = index.shape == (count,) and index.dtype.kind in "iuf" and np.isfinite(index).all()
    if not (numeric and (index >= 0).all() and (np.diff(index) > 0).all()):
        raise ValueError(f"steps is {steps!r}. Pass {count} increasing numbers ≥ 0, one per weight.")
    return index


def _recorded_loss(loss: Any, shape: tuple[int, ...]) -> Float:
    """The losses recorded with the weights, by default NaN."""
    if loss is None:
        return np.full(shape, np.nan)
    array = _as_float64("loss", loss)
    if array.shape != shape:
        raise ValueError(f"loss has shape {array.shape}. Pass {shape}, one number per weight.")
    return array


def _factors(weights: Any) -> tuple[Any, Any] | None:
    """K and Q of a tuple of two stacks or of a list of pairs of matrices; None for other weights."""
    if isinstance(weights, tuple) and len(weights) == 2 and all(_ndim(x) > 2 for x in weights):
        return weights
    if isinstance(weights, (list, tuple)) and weights and all(_is_pair(x) for x in weights):
        return [pair[0] for pair in weights], [pair[1] for pair in weights]
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(_ndim(x) == 2 for x in value)


def _ndim(value: Any) -> int:
    try:
        return int(value.ndim) if hasattr(value, "ndim") else np.ndim(value)
    except ValueError:  # rows of different lengths
        return 0


def _stacked(tokens: Tokens, name: str, weights: Any, rows: int, columns: int | None = None) -> Float:
    """The array (…, k, rows, columns) of a stack or a list of matrices; of prompts, also of vectors."""
    if hasattr(weights, "ndim") or not isinstance(weights, Iterable):
        array = _as_float64(name, weights)
    else:
        weights = list(weights)
        arrays = [_as_float64(f"{name} number {k}", weight) for k, weight in enumerate(weights)]
        shapes_of_all = dict.fromkeys(array.shape for array in arrays)
        if len(shapes_of_all) != 1:
            shapes = ", ".join(map(str, shapes_of_all)) or "none"
            raise ValueError(f"the {name} of the list have shapes {shapes}. Pass at least one, all alike.")
        _check_memory(name, weights)
        array = np.stack(arrays)
    if columns == 1 and array.ndim == 2 and array.shape[1] == rows:
        array = array[..., None]  # prompts as vectors
    if array.shape == (rows, columns):
        array = array[None]  # a single weight
    expected = f"(k, {rows}, {'r' if columns is None else columns})"
    if array.ndim not in (3, 4) or array.shape[-2] != rows or columns not in (None, array.shape[-1]):
        transposed = array.ndim > 1 and array.shape[-1] == rows and columns in (None, array.shape[-2])
        hint = " Transpose them: logits are xᵀ W z, and nn.Linear keeps (r, d)." if transposed else ""
        raise ValueError(
            f"{name} has shape {array.shape}. Pass {expected}, or (runs, {expected[1:]} for many runs.{hint}"
        )
    if not array.size or not np.isfinite(array).all():
        raise ValueError(
            f"{name} is empty, or has a NaN or infinite entry. Leave out the steps from there on."
        )
    runs = array.shape[0] if array.ndim == 4 else None
    if tokens.runs is not None and tokens.runs != runs:
        raise ValueError(
            f"the tokens have {tokens.runs} runs and {name} shape {array.shape}. "
            f"Pass ({tokens.runs}, {expected[1:]}, or tokens.run(0)."
        )
    return array


def _as_float64(name: str, value: Any) -> Float:
    """Real numbers of any library as a float64 array of NumPy."""
    try:
        array = on_host(value.detach().cpu() if home(value) == "torch" else value)
        if array.dtype == object or np.iscomplexobj(array) or array.dtype.kind in "USMmb":
            raise TypeError
        return np.asarray(array, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is not an array of real numbers.") from None


def _check_memory(name: str, weights: list[Any]) -> None:
    """Raise if entries share memory: a parameter that was appended at each step without a copy."""
    addresses = [address for address in map(_address, weights) if address is not None]
    if len(set(addresses)) < len(addresses):
        raise ValueError(
            f"several {name} of the list share one memory, so that all are the last one. "
            "Append copies: W.detach().clone() of torch, W.copy() of NumPy."
        )


def _address(array: Any) -> int | None:
    """The address of a mutable array; None for arrays of JAX, which are immutable."""
    if home(array) == "torch":
        return int(array.data_ptr())
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else None


# ---------------------------------------------------------------------- attention at every record


BLOCK = 1 << 18
"""Number of logits that are computed at once: 2 MB, which fit the cache of a core."""


def _log_attention(tokens: Tokens, W: Float) -> Iterator[tuple[slice, Float]]:
    """Blocks of examples, each with the logarithm of its attention (…, k, block, T) at every record."""
    for examples, relative, power in _relative_logits(tokens, W):
        with np.errstate(over="ignore"):
            shifted = np.ldexp(relative, power)
        yield examples, shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _relative_logits(
    tokens: Tokens, W: Float, equal_keys: bool = False
) -> Iterator[tuple[slice, Float, NDArray[np.intc]]]:
    """Blocks of examples, each with its logits minus the largest, (x_t − x_winner)ᵀ W z, in scaled form.

    The relative logits are (…, k, block, T), −∞ where masked, times 2 to the powers (…, k, block, 1). The
    powers are separate since logits may exceed 1e308, and ∞ − ∞ is NaN, or underflow, and then all are equal.
    equal_keys: tokens with equal keys have equal logits, to the last bit.
    """
    weight_power = exponent(W)
    weights = np.swapaxes(np.ldexp(W, -weight_power), -1, -2)
    query_powers = np.asarray(np.frexp(tokens.query_size)[1])[..., None, :, None]
    # Scale the directions, not the keys: there are fewer of them.
    key_powers = np.clip(np.frexp(tokens.key_size)[1], -900, 900)[..., None, :, None]
    for examples, keys in example_blocks(tokens, W.size // (tokens.d * tokens.e)):
        query_power, key_power = query_powers[..., examples, :], key_powers[..., examples, :]
        queries = np.ldexp(tokens.queries[..., None, examples, :], -query_power)
        directions = np.ldexp(np.matmul(queries, weights), -key_power)
        if equal_keys:
            logits = _token_by_token(keys[..., None, :, :, :], directions)
        else:
            logits = np.matmul(keys[..., None, :, :, :], directions[..., None])[..., 0]
        logits = np.where(tokens.mask[..., None, examples, :], logits, -np.inf)
        yield examples, logits - logits.max(-1, keepdims=True), weight_power + query_power + key_power


def _token_by_token(keys: Float, directions: Float) -> Float:
    """x_tᵀ u, (…, T, d) and (…, d) → (…, T), every sum in the same order, while BLAS changes it by place."""
    wide = np.asarray(keys, np.float64)
    wide = wide if wide.strides[-1] == wide.itemsize else np.ascontiguousarray(wide)
    return np.asarray(np.einsum("...td,...d->...t", wide, directions))


def example_blocks(tokens: Tokens, weights: int) -> Iterator[tuple[slice, Float]]:
    """Slices of examples with their keys, so small that the logits of all weights fill a BLOCK.

    Stored keys, which may exceed the memory, are read once.
    """
    keys: Any = tokens.keys
    step = max(1, BLOCK // (tokens.T * weights))
    for chunk in keys.parts() if isinstance(keys, Stored) else [slice(0, tokens.n)]:
        chunk_keys = keys[chunk] if isinstance(keys, Stored) else keys
        for start in range(chunk.start, chunk.stop, step):
            block = slice(start, min(start + step, chunk.stop))
            yield block, chunk_keys[..., start - chunk.start : block.stop - chunk.start, :, :]


def exponent(W: Float) -> NDArray[np.intc]:
    """The binary exponent of the largest entry of each weight: (…, d, e) → (…, 1, 1)."""
    return np.asarray(np.frexp(np.abs(W).max((-2, -1), keepdims=True))[1])
