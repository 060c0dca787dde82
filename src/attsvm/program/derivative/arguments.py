"""What layers of torch and JAX take: checked, and prepared alike for both."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, get_args

from numpy.typing import NDArray

Unseparable = Literal["raise", "nan"]
Degenerate = Literal["flag", "warn", "raise"]

AnyArray = Any
"""An array of NumPy, torch or JAX; its shape and type; or None."""


class Data(NamedTuple):
    """keys (…, n, T, d), queries (…, n, e), required (…, n); the price (…, n) of a soft margin, or None."""

    keys: AnyArray
    queries: AnyArray
    required: AnyArray
    price: AnyArray


class Choice(NamedTuple):
    """What has no derivative: booleans (…, n, T)."""

    selected: AnyArray
    mask: AnyArray


class Library(Protocol):
    """Arrays of torch or JAX, made where the keys are."""

    @property
    def namespace(self) -> Any:
        """The module with where, broadcast_to and broadcast_shapes."""

    def array(self, name: str, x: Any) -> AnyArray:
        """An argument as an array."""

    def numbers(self, x: AnyArray) -> AnyArray:
        """Numbers in the type in which the layer takes them."""

    def ones(self, *shape: int) -> AnyArray: ...
    def arange(self, stop: int) -> AnyArray: ...

    def on_host(self, x: AnyArray) -> NDArray[Any] | None:
        """The array on the host; None while a program is traced, whose arrays have no entries yet."""


def check_options(unseparable: str, degenerate: str) -> None:
    """Refuse an option that is not one of its kinds."""
    for name, value, kinds in (
        ("unseparable", unseparable, get_args(Unseparable)),
        ("degenerate", degenerate, get_args(Degenerate)),
    ):
        if value not in kinds:
            raise ValueError(f"{name} is {value!r}. Pass {' or '.join(map(repr, kinds))}.")


def prepared(
    library: Library, keys: Any, selected: Any, queries: Any, required: Any, slack: Any, mask: Any
) -> tuple[Data, Choice]:
    """The arguments, checked and with the same batch axes; keys of padding are zero."""
    if _kind(keys) != "float":
        raise TypeError(f"keys are {_described(keys)}. Pass real numbers (…, n, T, d).")
    if keys.ndim < 3 or 0 in keys.shape:
        raise ValueError(f"keys are {_described(keys)}. Pass (…, n, T, d), at least one of each.")
    space, (n, T, _) = library.namespace, keys.shape[-3:]
    chosen = _as_selected(library, selected, n, T)
    queries = library.ones(n, 1) if queries is None else library.array("queries", queries)
    _check_real("queries", queries)
    _check_trailing("queries", queries, "(…, n, e)", (n, None))
    if 0 in queries.shape:
        raise ValueError(f"queries is {_described(queries)}. Pass (…, n, e), at least one of each.")
    tokens = library.ones(n, T) > 0 if mask is None else library.array("mask", mask)
    _check_trailing("mask", tokens, "booleans (…, n, T)", (n, T), "bool")
    margins = _per_example(library, "required", required, n)
    price = None if slack is None else _per_example(library, "slack", slack, n)
    arrays = (keys, 3), (queries, 2), (margins, 1), (price, 1), (chosen, 2), (tokens, 2)
    shapes = [tuple(x.shape[: x.ndim - k]) for x, k in arrays if x is not None]
    differing = set(shapes) - {()}
    try:
        axes = tuple(space.broadcast_shapes(*differing)) if len(differing) > 1 else max(shapes)
    except (RuntimeError, ValueError):
        raise ValueError(
            "the batch axes of keys, queries, selected, mask, required, slack do not broadcast: "
            f"{', '.join(map(str, shapes))}. Give every array the same batch axes, or none."
        ) from None

    def over_axes(x: AnyArray, axes_of_one: int) -> AnyArray:
        shape = (*axes, *x.shape[x.ndim - axes_of_one :])
        return x if tuple(x.shape) == shape else space.broadcast_to(x, shape)

    data = Data(*(None if x is None else library.numbers(over_axes(x, k)) for x, k in arrays[:4]))
    choice = Choice(over_axes(chosen, 2), over_axes(tokens, 2))
    if mask is not None:  # padding may hold anything, NaN too, and so would derivatives
        data = data._replace(keys=space.where(choice.mask[..., None], data.keys, 0.0))
    return data, choice


def _as_selected(library: Library, selected: Any, n: int, T: int) -> AnyArray:
    """The selection as booleans (…, n, T)."""
    array = library.array("selected", selected)
    if _kind(array) == "bool":
        _check_trailing("selected", array, "booleans (…, n, T)", (n, T))
        return array
    if _kind(array) != "int":
        raise TypeError(f"selected is {_described(array)}. Pass booleans (…, n, T) or indices (…, n).")
    _check_trailing("selected", array, "booleans (…, n, T) or indices (…, n)", (n,))
    index = library.on_host(array)
    if index is not None and index.size and not 0 <= index.min() <= index.max() < T:
        raise ValueError(
            f"selected has indices from {index.min()} to {index.max()} but T={T}. "
            f"Pass indices from 0 to {T - 1}."
        )
    return array[..., None] == library.arange(T)


def _per_example(library: Library, name: str, x: Any, n: int) -> AnyArray:
    """One number, or (…, n), as an array (…, n)."""
    numbers = library.array(name, x)
    _check_real(name, numbers)
    if numbers.ndim == 0:
        return library.namespace.broadcast_to(numbers, (n,))
    _check_trailing(name, numbers, "one number, or (…, n)", (n,))
    return numbers


def _check_real(name: str, x: AnyArray) -> None:
    if _kind(x) not in ("float", "int"):
        raise TypeError(f"{name} is {_described(x)}. Pass real numbers.")


def _check_trailing(
    name: str, x: AnyArray, axes: str, sizes: tuple[int | None, ...], kind: str | None = None
) -> None:
    """Refuse an array whose last axes have other sizes, None is any, or of another kind."""
    fits = kind in (None, _kind(x)) and x.ndim >= len(sizes)
    last = tuple(x.shape)[-len(sizes) :]
    if not (fits and all(b in (a, None) for a, b in zip(last, sizes, strict=True))):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} is {_described(x)}. Pass {axes}, with last axes ({wanted}).")


def _kind(x: AnyArray) -> str:
    """Bool, int or float, or another type of numbers, of an array of any library."""
    name = str(x.dtype)
    return next((kind for kind in ("bool", "int", "float") if kind in name), name)


def _described(x: AnyArray) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"
