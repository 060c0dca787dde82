"""What layers of torch and JAX take, refused in the same words; their arrays are described, never read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Unseparable = Literal["raise", "nan"]
Degenerate = Literal["flag", "warn", "raise"]


def check_options(unseparable: str, degenerate: str) -> None:
    """Refuse an option that is not one of its kinds."""
    for name, value, kinds in (
        ("unseparable", unseparable, get_args(Unseparable)),
        ("degenerate", degenerate, get_args(Degenerate)),
    ):
        if value not in kinds:
            raise ValueError(f"{name} is {value!r}. Pass {' or '.join(map(repr, kinds))}.")


def check_keys(shape: tuple[int, ...], described: str) -> None:
    """Refuse keys without the axes (n, T, d), or with an axis of length 0."""
    if len(shape) < 3 or 0 in shape:
        raise ValueError(f"keys are {described}. Pass (…, n, T, d), at least one of each.")


def check_trailing(
    name: str, shape: tuple[int, ...] | None, described: str, axes: str, sizes: tuple[int | None, ...]
) -> None:
    """Refuse an array whose last axes have other sizes; None is any size. No shape: it is no such array."""
    fits = shape is not None and len(shape) >= len(sizes)
    fits = fits and all(b in (a, None) for a, b in zip((shape or ())[-len(sizes) :], sizes, strict=True))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"{name} is {described}. Pass {axes}, with last axes ({wanted}).")


def no_common_axes(shapes: Iterable[tuple[int, ...]]) -> ValueError:
    """The error for batch axes that do not broadcast."""
    listed = ", ".join(str(tuple(shape)) for shape in shapes)
    return ValueError(
        f"the batch axes of keys, queries, selected, mask, required, slack do not broadcast: {listed}. "
        "Give every array the same batch axes, or none."
    )


def outside(least: int, most: int, T: int) -> ValueError:
    """The error for selected indices that name no token."""
    return ValueError(
        f"selected has indices from {least} to {most} but T={T}. Pass indices from 0 to {T - 1}."
    )
