"""The selection whose labels one head separates best, by branch and bound, with a proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens, as_tokens
from attsvm.numbers import Bool, Float
from attsvm.program.certificate import TOLERANCE
from attsvm.program.max_margin import label_svm, max_margin
from attsvm.program.solution import NotSeparable, Solution

TOGETHER = 64
"""Programs that are solved at once."""

ENOUGH = 1 - 0.1 * TOLERANCE
"""Nodes are pruned whose bound times this is not above the best margin."""

TINY, EPSILON = np.finfo(float).tiny, np.finfo(float).eps

OPEN = -1
"""In place of a token: undecided."""


@dataclass(frozen=True, eq=False, repr=False)
class JointMargin:
    """The largest label margin that attention can reach, and a head and a prompt that reach it in the limit.

    selected (n,): the token of each example. bound: no head of length one has a larger margin, whatever the
    attention; programs: how many were solved to prove it.
    """

    tokens: Tokens
    selected: NDArray[np.intp]
    bound: float
    programs: int

    @cached_property
    def head(self) -> Solution:
        """The smallest v with Y_i vᵀ x_iα ≥ 1."""
        return label_svm(self.tokens, self.selected)

    @cached_property
    def prompt(self) -> Solution | None:
        """The smallest W that selects these tokens; None where no W does, and the margin is out of reach."""
        try:
            return max_margin(self.tokens, self.selected)
        except NotSeparable:
            return None

    @property
    def margin(self) -> float:
        """min_i Y_i vᵀ x_iα of the head at length one."""
        return float(self.head.margin)

    @property
    def certified(self) -> bool:
        """Whether head and prompt are certified, and no selection has a margin larger by 1e-8 of this one."""
        reached = self.prompt is not None and self.prompt.certified and self.head.certified
        return bool(reached and self.margin >= (1 - TOLERANCE) * self.bound)

    def __repr__(self) -> str:
        proof = f"at most {self.bound:.6g} by {self.programs:,} programs"
        return f"JointMargin({self.margin:.6g}, {proof}; selected {self.selected.tolist()})"


def joint_margin(tokens: Tokens, *, most: int = 10_000) -> JointMargin:
    """The best label margin over all heads v of length one and all attention.

        sup_{v, W} min_i Y_i vᵀ Σ_t s_it x_it = max_v min_i max_t Y_i vᵀ x_it = max_α 1/‖v^mm(α)‖,  ‖v‖ ≤ 1

    It is approached as ‖W‖ → ∞ along the W that selects α, where there is one. For ‖W‖ ≤ R it is an upper
    bound, and the label margin of the tokens pooled by any such W a lower one.

    The maximum over the Tⁿ selections is found by branch and bound: a program asks for the margin of some
    examples only. Where its head serves all the others, too, it is that of a selection; otherwise the worst
    served example is decided, by each of its tokens. Weak duality bounds each node: for every λ ≥ 0 with
    Σ λ = 1 the margin is at most ‖Σ_i λ_i Y_i x_iα‖.

    tokens: keys (n, T, d), values (n, T, c), labels (n,), no runs axis.
    most: programs to solve; beyond them the bound is that of the open nodes, and not certified. Two tokens
        need few; of many tokens with equal scores every choice must be tried.
    Raises ValueError where no selection has a positive margin.
    Reference: Magen et al. 2025, "Benign Overfitting in Single-Head Attention", the max-margin classifier.
    """
    if as_tokens(tokens).runs is not None:
        raise ValueError("joint_margin takes tokens without a runs axis: pass tokens.run(k).")
    tokens = tokens.in_memory()
    tree = _Tree(tokens.labels[:, None, None] * tokens.values, tokens.mask)
    while len(tree.nodes) and tree.solved < most:
        tree.grow()
    if tree.best <= 0:
        raise ValueError(
            f"{tree.solved:,} programs found no head that separates the labels of a selection. "
            "Pass wider values or more programs (most)."
        )
    return JointMargin(tokens, tree.selected, tree.bound, tree.solved)


# ---------------------------------------------------------------------- the tree


class _Tree:
    """Choices for some examples, each with its head and a bound on its margin; and the best selection.

    rows (n, T, c): Y_i x_it. nodes (k, n), bounds (k,), heads (k, c): the nodes that are not pruned.
    """

    def __init__(self, rows: Float, mask: Bool) -> None:
        self.rows, self.mask = rows, mask
        self.nodes = np.full((1, len(rows)), OPEN)
        self.bounds, self.heads = np.array([np.inf]), np.zeros((1, rows.shape[-1]))
        self.best, self.selected, self.pruned, self.solved = 0.0, self.nodes[0], 0.0, 0

    @property
    def bound(self) -> float:
        return max(self.best, self.pruned, float(self.bounds.max(initial=0.0)))

    def grow(self) -> None:
        """Branch the nodes with the largest bounds, and prune nodes that cannot beat the best selection."""
        first = np.argsort(-self.bounds)[: max(TOGETHER // self.rows.shape[1], 1)]
        nodes = self._branched(self.nodes[first], self.heads[first])
        heads, bounds = self._solved(nodes)
        # Also try the selection of the head with the largest bound: a good selection prunes many nodes.
        polished, _ = self._solved(self._served(heads[bounds.argmax()][None])[1])
        self._record(np.concatenate([heads, polished]))
        nodes, bounds, heads = (
            np.concatenate([np.delete(old, first, axis=0), new])
            for old, new in ((self.nodes, nodes), (self.bounds, bounds), (self.heads, heads))
        )
        hopeful = (ENOUGH * bounds > self.best) & (nodes == OPEN).any(-1)
        self.pruned = max(self.pruned, float(bounds[~hopeful].max(initial=0.0)))
        self.nodes, self.bounds, self.heads = nodes[hopeful], bounds[hopeful], heads[hopeful]

    def _record(self, heads: Float) -> None:
        margins, choices = self._served(heads)
        k = int(margins.argmax())
        if margins[k] > self.best:
            self.best, self.selected = float(margins[k]), choices[k]

    def _served(self, heads: Float) -> tuple[Float, NDArray[np.intp]]:
        """The margin of heads where every example takes its best token (k,), and those tokens (k, n)."""
        each = self._scores(heads)
        return each.max(-1).min(-1), each.argmax(-1)

    def _scores(self, heads: Float) -> Float:
        return np.where(self.mask, np.einsum("ntc,kc->knt", self.rows, heads), -np.inf)

    def _branched(self, nodes: NDArray[np.intp], heads: Float) -> NDArray[np.intp]:
        """Every node with its worst served open example decided, by each of its tokens."""
        worst = np.where(nodes == OPEN, self._scores(heads).max(-1), np.inf).argmin(-1)
        choices = [np.flatnonzero(self.mask[i]) for i in worst]
        counts = [len(tokens) for tokens in choices]
        out = np.repeat(nodes, counts, axis=0)
        out[np.arange(len(out)), np.repeat(worst, counts)] = np.concatenate(choices)
        return out

    def _solved(self, nodes: NDArray[np.intp]) -> tuple[Float, Float]:
        """The head of each node's program, at length one (k, c), and an upper bound on its margin (k,)."""
        self.solved += len(nodes)
        decided = nodes != OPEN
        rows = self.rows[np.arange(len(self.rows)), np.where(decided, nodes, 0)] * decided[..., None]
        pairs = Tokens(np.stack([rows, np.zeros_like(rows)], axis=2))
        answer = max_margin(pairs, np.zeros(decided.shape, int), required=decided.astype(float))
        v = answer.W[..., 0]
        weight = np.maximum(answer.token_multipliers.max(-1), 0) * decided
        v, weight = (
            x / np.maximum(size, TINY) for x, size in ((v, _length(v)), (weight, weight.sum(-1)[:, None]))
        )
        mean = np.einsum("kn,knc->kc", weight, rows)
        rounding = len(self.rows) * EPSILON * (weight * _length(rows)[..., 0]).sum(-1)
        return v, _length(mean)[:, 0] + rounding


def _length(x: Float) -> Float:
    return np.asarray(np.linalg.norm(x, axis=-1, keepdims=True))
