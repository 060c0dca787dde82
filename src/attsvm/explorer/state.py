"""Tokens, head and path → the state that the page opens with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.path import Path
from attsvm.data.selection import as_head, as_selected, scores
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.numbers import Float

INPUTS, TOKENS = 8, 12
"""The largest numbers of inputs, and of tokens in each, that the page shows."""

LARGE = 1e9
"""The largest coordinate that the page accepts: products of several coordinates must be finite."""

POINTS = 200
"""Number of points of a recorded path that the page draws."""


def state_of(tokens: Tokens, v: ArrayLike | None = None, selected: ArrayLike | None = None) -> dict[str, Any]:
    """The state of a problem in the plane: keys (n, T, 2), queries (n, 1) or (n, 2), head v.

    Values other than the keys become scores set by hand. Without a head, selected tokens score 1 and the
    others 0; without either, the head is (1, 0), to be dragged.
    """
    _check(tokens)
    tokens = tokens.in_memory()
    head = None if v is None else as_head(tokens, v)
    for name, numbers in (("keys", tokens.keys), ("queries", tokens.queries), ("head", head)):
        if numbers is not None and (largest := np.abs(numbers).max()) > LARGE:
            extent = f"the {name} reach{'es' * (name == 'head')} {largest:g}"
            raise ValueError(f"{extent}. The explorer shows up to {LARGE:g}: rescale them.")
    selection = None if selected is None else as_selected(tokens, selected)
    by_head = tokens.values is tokens.keys and not (v is None and selection is not None)
    gamma = None if by_head else _scores(tokens, v, selection)
    inputs = [_input(tokens, i, gamma, selection) for i in range(tokens.n)]
    state: dict[str, Any] = {"inputs": inputs, "byHead": by_head}
    if by_head and head is not None:
        state["head"] = head.tolist()
    return state if selection is None else state | {"choose": "hand"}


def state_of_path(
    path: Path,
    settings: Mapping[str, Any] | None = None,
    v: ArrayLike | None = None,
    selected: ArrayLike | None = None,
) -> Any:
    """The state of a saved run, the first one of several: tokens, start, and the path.

    settings: those that `attsvm train` saved. selected: by default the best tokens under v; without v the
    tokens that the run attends to.
    """
    if path.heads is not None:
        raise ValueError(f"the path has {path.heads} heads. The explorer shows one: pass path.head(0).")
    if path.runs is not None:
        path = path.run(0)
    state = state_of(path.tokens, v, path.selected if v is None and selected is None else selected)
    W = path.W.reshape(len(path.index), -1)
    state["starts"] = {"points": [W[0].tolist()]}
    if path.tokens.e == 1:
        state["recorded"] = [W[np.unique(np.linspace(0, len(W) - 1, POINTS).astype(int))].tolist()]
    if path.kind == "steps":
        state["time"] = int(np.clip(path.index[-1], 1, 100_000))
    return state | _training(settings or {}, path.tokens.e)


def _check(tokens: Tokens) -> None:
    if as_tokens(tokens).runs is not None:
        raise ValueError(f"the tokens have {tokens.runs} runs. The explorer shows one: pass tokens.run(0).")
    if tokens.d != 2 or tokens.e > 2:
        raise ValueError(
            f"the keys have width {tokens.d} and the queries {tokens.e}. The explorer shows keys of width 2 "
            "with queries of width 1 (prompts) or 2: project them first, for example on two principal axes."
        )
    if tokens.n > INPUTS or tokens.T > TOKENS:
        raise ValueError(
            f"{tokens.n} examples of {tokens.T} tokens. The explorer shows up to {INPUTS} of {TOKENS}: "
            "pass a part of them."
        )


def _scores(tokens: Tokens, v: ArrayLike | None, selection: Any) -> Float:
    """Scores without the label, which the user of the page can set by hand."""
    if v is None:
        return np.where(selection, 1.0, 0.0) if selection is not None else np.zeros(tokens.mask.shape)
    return np.where(tokens.mask, scores(tokens, v), 0.0) * tokens.labels[:, None]


def _input(tokens: Tokens, i: int, gamma: Float | None, selection: Any) -> dict[str, Any]:
    unmasked = tokens.mask[i]
    fields: dict[str, Any] = {"tokens": tokens.keys[i][unmasked].tolist(), "label": int(tokens.labels[i])}
    fields["query"] = tokens.queries[i].tolist()
    if gamma is not None:
        fields["scores"] = gamma[i][unmasked].tolist()
    if selection is not None:
        fields["chosen"] = np.flatnonzero(selection[i][unmasked]).tolist()
    return fields


_NORMS = {"l1": 1.0, "frobenius": 2.0, "linf": math.inf}
_STEPS = {1.0: "coordinate", 2.0: "normalised", math.inf: "sign"}


def _training(settings: Mapping[str, Any], e: int) -> dict[str, Any]:
    """The page's fields for the settings of a run; a setting that the page does not offer is left out.

    Norms of singular values are offered for weights W, e = 2.
    """
    fields: dict[str, Any] = {}
    rule, norm = settings.get("optimizer"), str(settings.get("norm", "frobenius"))
    p = float(norm.removeprefix("lp:")) if norm.startswith("lp:") else _NORMS.get(norm)
    if rule == "gd":
        fields["rule"] = "gd"
    elif rule == "steepest" and p in _STEPS:
        fields["rule"] = _STEPS[p]
    elif rule in ("steepest", "mirror") and p is not None:
        fields |= {"rule": rule, "ruleP": p}
    elif rule == "steepest" and e == 2 and norm == "spectral":
        fields["rule"] = "spectral"
    elif rule == "steepest" and e == 2 and norm.startswith("schatten:"):
        fields |= {"rule": "schatten", "ruleP": float(norm.removeprefix("schatten:"))}
    if "lr" in settings:
        fields["lr"] = float(settings["lr"])
    if settings.get("loss") in ("logistic", "exponential", "correlation"):
        fields["loss"] = settings["loss"]
    return fields
