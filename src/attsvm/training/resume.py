"""Resuming a run: its state is saved as plain arrays, and checked against what shall be resumed."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cached_property
from hashlib import sha256
from inspect import isroutine

import jax
import numpy as np

from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.training.attention import SOFTMAX
from attsvm.training.losses import Loss
from attsvm.training.plan import State
from attsvm.training.prediction_heads import Head
from attsvm.training.rules import Rule
from attsvm.training.types import Arrays, Flags, Floats
from attsvm.training.weights import Weight

Description = dict[str, str]

NUMBERS = ("lr", "momentum", "factor", "decay", "b1", "b2", "eps", "ridge")
"""Fields of rules that may differ when a run is resumed."""
WHOLE = "all examples"


def saved(state: State, description: Description) -> Arrays | None:
    """The arrays of a state by number, and what it was trained with.

    None where an optimizer's state holds something that is not an array.
    """
    leaves = jax.tree.leaves(state)
    if not all(isinstance(leaf.dtype, np.dtype) for leaf in leaves):  # a random key, say
        return None
    arrays = {str(j): np.asarray(leaf) for j, leaf in enumerate(leaves)}
    return arrays | {"trained": np.array(json.dumps(description))}


def described(
    weight: Weight,
    loss: Loss,
    head: Head,
    rules: tuple[Rule, Rule | None],
    batch: object = None,
    attention: object = SOFTMAX,
) -> Description:
    """What a run is trained with, in words and without the numbers that may change.

    An optax optimizer is a closure: its description is its type.
    """
    of_head = "nothing" if rules[1] is None else _described(rules[1])
    return {
        "weight": _described(weight),
        "loss": _described(loss),
        "head": type(head).__name__,
        "optimizer": _described(rules[0]),
        "train_head": of_head,
        "batch": WHOLE if batch is None else repr(batch),
        "attention": repr(attention),
    }


def check_description(path: Path, description: Description) -> None:
    """Refuse to resume with a different weight, loss, head or rule."""
    state = {} if path.state is None else path.state
    try:
        saved_description = dict(json.loads(str(state["trained"])))
    except (ValueError, TypeError, KeyError):
        raise ValueError("resume does not say what it was trained with: its file is damaged.") from None
    differences = [
        f"{name}: {saved_description.get(name)}, now {value}"
        for name, value in description.items()
        if saved_description.get(name) != value
    ]
    if differences:
        reported = "; another ".join(differences)
        raise ValueError(
            f"resume was trained with another {reported}. Pass the same; lr and such may differ."
        )


def taken_steps(path: Path, tokens: Tokens, steps: int, init: object) -> int:
    """How many steps a path has taken, after checking that it can be resumed up to `steps`."""
    if not isinstance(path, Path) or path.state is None:
        raise ValueError("resume holds no state to go on from. Pass a Path that train() returned or carried.")
    if init is not None:
        raise ValueError("pass either init, or resume, which starts where that path stopped.")
    if path.tokens is not tokens and not _equal(*(t.in_memory().arrays() for t in (path.tokens, tokens))):
        raise ValueError("resume was trained on other tokens. Pass these: resume.tokens.")
    step = int(path.index[-1])
    if steps <= step:
        raise ValueError(f"steps is {steps} but resume has taken {step}. Pass more: steps counts from 0.")
    return step


def restored(path: Path, fresh: State, head: Head, trained_head: bool) -> State:
    """The state of a path, as NumPy's arrays in the form of a fresh one, of which only shapes are used."""
    arrays = dict(path.state or {})
    leaves = [arrays.get(str(j)) for j in range(len(jax.tree.leaves(fresh)))]
    expected = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(fresh)]
    if [None if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves] != expected:
        raise ValueError(
            "resume was trained with another weight, head or optimizer: its state has other arrays. "
            "Pass the same ones; their numbers, such as lr, may differ."
        )
    state: State = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
    if not trained_head and not all(map(np.array_equal, *map(jax.tree.leaves, (state.head, head)))):
        raise ValueError("resume was trained with another head. Pass the same one.")
    return state


def records(path: Path, recorded: Floats) -> int:
    """How many records of a path stay; that of an interruption stays only if its step is to be recorded."""
    interrupted = np.any(np.asarray(path.stopped) == "interrupted")
    return len(path.index) - int(interrupted and path.index[-1] not in recorded)


def history(path: Path, recorded: Floats) -> tuple[Flags, list[tuple[int, Floats]]]:
    """Which runs of a path had converged; step and weight ((runs,) d, e) of its records that stay."""
    converged = np.asarray(np.asarray(path.stopped) == "converged")
    weights = path.W if path.runs is None else path.W.swapaxes(0, 1)
    weights = weights.reshape(*weights.shape[: 1 + converged.ndim], -1, weights.shape[-1])
    return converged, list(zip(path.index.tolist(), weights, strict=True))[: records(path, recorded)]


def joined(path: Path, index: Floats, arrays: Arrays, recorded: Floats) -> tuple[Floats, Arrays]:
    """The records of a path that stay, and those after it."""
    keep = records(path, recorded)
    axis = 0 if path.runs is None else 1
    old_arrays = {name: np.asarray(getattr(path, name)) for name in arrays if getattr(path, name) is not None}
    cut = {name: array[:keep] if axis == 0 else array[:, :keep] for name, array in old_arrays.items()}
    all_arrays = {name: np.concatenate([cut[name], arrays[name]], axis) for name in cut}
    return np.concatenate([path.index[:keep], index]), all_arrays


def _described(setting: object) -> str:
    """The type of a setting and its values, plain ones and those of nested records."""
    if isinstance(setting, (str, int, float, type(None))):
        return repr(setting)
    if isinstance(setting, np.ndarray):
        return f"array {setting.shape} {sha256(setting.tobytes()).hexdigest()[:12]}"
    if is_dataclass(setting) and not getattr(setting, "__dataclass_params__").repr:  # noqa: B009
        return repr(setting)  # its own repr holds what distinguishes it
    if is_dataclass(setting):
        values = {field.name: getattr(setting, field.name) for field in fields(setting)}
    else:  # a class of the user's own; of a function only the type is known
        values = {} if isroutine(setting) else dict(getattr(setting, "__dict__", {}))
        values = {
            name: value
            for name, value in values.items()
            if not isinstance(getattr(type(setting), name, None), cached_property)
        }
        if not values:
            return type(setting).__name__
    options = [f"{name}={_described(value)}" for name, value in values.items() if name not in NUMBERS]
    return f"{type(setting).__name__}({', '.join(options)})"


def _equal(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
