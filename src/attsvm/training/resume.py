"""What a run needs to go on where it stopped: kept as plain arrays, checked when it comes back."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from functools import cached_property
from hashlib import sha256
from inspect import isroutine
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.training.losses import Loss
from attsvm.training.plan import State
from attsvm.training.prediction_heads import Head
from attsvm.training.rules import Rule
from attsvm.training.weights import Weight

Arrays = dict[str, NDArray[Any]]
Words = dict[str, str]

NUMBERS = ("lr", "momentum", "factor", "decay", "b1", "b2", "eps", "ridge")
"""Of a rule; they may change where a run goes on."""
WHOLE = "all examples"


def kept(state: State) -> Arrays | None:
    """The arrays of a state by number; None where an optimizer keeps something that is not an array."""
    leaves = jax.tree.leaves(state)
    if not all(isinstance(leaf.dtype, np.dtype) for leaf in leaves):  # a random key, say
        return None
    return {str(j): np.asarray(leaf) for j, leaf in enumerate(leaves)}


def described(
    weight: Weight, loss: Loss, head: Head, rules: tuple[Rule, Rule | None], batch: object = None
) -> Words:
    """What a run is trained with, in words and without the numbers that may change.

    An optax optimizer is a closure, of which no more than its state can be told.
    """
    of_head = "nothing" if rules[1] is None else _word(rules[1])
    told = {"weight": _word(weight), "loss": _word(loss), "head": type(head).__name__}
    told |= {"optimizer": _word(rules[0]), "train_head": of_head}
    return told | {"batch": WHOLE if batch is None else repr(batch)}


def signed(path: Path, words: Words) -> Path:
    """The path, whose state says what it was trained with."""
    return (
        path
        if path.state is None
        else path.changed(state={**path.state, "trained": np.array(json.dumps(words))})
    )


def check_words(path: Path, words: Words) -> None:
    """Refuse to go on with something else, by its name; paths of an earlier version do not say."""
    saved = {} if path.state is None else path.state
    try:
        before = {"batch": WHOLE} | json.loads(str(saved["trained"])) if "trained" in saved else words
        # Version 0.2.0 called the weight MultiHead "Heads".
        before = before | {"weight": re.sub(r"^Heads\(", "MultiHead(", before["weight"])}
    except (ValueError, TypeError, KeyError):
        raise ValueError("resume does not say what it was trained with: its file is damaged.") from None
    others = [
        f"{name}: {before.get(name)}, now {now}" for name, now in words.items() if before.get(name) != now
    ]
    if others:
        told = "; another ".join(others)
        raise ValueError(f"resume was trained with another {told}. Pass the same; lr and such may differ.")


def taken_steps(path: Path, tokens: Tokens, steps: int, init: object) -> int:
    """How many steps a path has taken, after checking that it can go on to `steps`."""
    if not isinstance(path, Path) or path.state is None:
        raise ValueError("resume holds no state to go on from. Pass a Path that train() returned or carried.")
    if init is not None:
        raise ValueError("pass either init, or resume, which starts where that path stopped.")
    if path.tokens is not tokens and not _equal(*(t.in_memory().arrays() for t in (path.tokens, tokens))):
        raise ValueError("resume was trained on other tokens. Pass these: resume.tokens.")
    taken = int(path.index[-1])
    if steps <= taken:
        raise ValueError(f"steps is {steps} but resume has taken {taken}. Pass more: steps counts from 0.")
    return taken


def restored(path: Path, fresh: State, head: Head, trained_head: bool) -> State:
    """The state of a path, as NumPy's arrays in the form of a fresh one, of which only shapes are asked."""
    saved = dict(path.state or {})
    leaves = [saved.get(str(j)) for j in range(len(jax.tree.leaves(fresh)))]
    wanted = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(fresh)]
    if [None if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves] != wanted:
        raise ValueError(
            "resume was trained with another weight, head or optimizer: its state has other arrays. "
            "Pass the same ones; their numbers, such as lr, may differ."
        )
    state: State = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
    if not trained_head and not all(map(np.array_equal, *map(jax.tree.leaves, (state.head, head)))):
        raise ValueError("resume was trained with another head. Pass the same one.")
    return state


def records(path: Path, asked: NDArray[Any]) -> int:
    """How many records of a path count: that of an interruption does only where it is asked for."""
    interrupted = np.any(np.asarray(path.stopped) == "interrupted")
    return len(path.index) - int(interrupted and path.index[-1] not in asked)


def joined(path: Path, index: NDArray[Any], arrays: Arrays, asked: NDArray[Any]) -> tuple[Any, Arrays]:
    """The records of a path and those after it; the one of an interruption goes unless it is asked for."""
    keep = records(path, asked)
    axis = 0 if path.runs is None else 1
    before = {name: np.asarray(getattr(path, name)) for name in arrays}
    cut = {name: array[:keep] if axis == 0 else array[:, :keep] for name, array in before.items()}
    together = {name: np.concatenate([cut[name], arrays[name]], axis) for name in arrays}
    return np.concatenate([path.index[:keep], index]), together


def _word(thing: object) -> str:
    """Its type and, of a record, what distinguishes it: plain values and other records."""
    if isinstance(thing, (str, int, float, type(None))):
        return repr(thing)
    if isinstance(thing, np.ndarray):
        return f"array {thing.shape} {sha256(thing.tobytes()).hexdigest()[:12]}"
    if is_dataclass(thing) and not getattr(thing, "__dataclass_params__").repr:  # noqa: B009
        return repr(thing)  # it says itself what distinguishes it
    if is_dataclass(thing):
        own = {field.name: getattr(thing, field.name) for field in fields(thing)}
    else:  # a class of the user's own; of a function no more than that can be told
        own = {} if isroutine(thing) else dict(getattr(thing, "__dict__", {}))
        own = {n: x for n, x in own.items() if not isinstance(getattr(type(thing), n, None), cached_property)}
        if not own:
            return type(thing).__name__
    own = {name: value for name, value in own.items() if name not in NUMBERS}
    return f"{type(thing).__name__}({', '.join(f'{name}={_word(value)}' for name, value in own.items())})"


def _equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
