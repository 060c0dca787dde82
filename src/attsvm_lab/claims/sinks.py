"""Sinks: a softmax row that must say nothing selects the token that says nothing, and that is a program.

The task of `datasets.trigger_means`, one layer: W is trained, the values are the tokens' contents. With ReLU
in place of softmax a row may add up to nothing, and no sink appears.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import softmax

import attsvm as att
from attsvm.comparison.evidence import Evidence, Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab import datasets
from attsvm_lab.claims.claim import claim
from attsvm_lab.experiment import Experiment, solved

PAPER = "Ran-Milo 2026, Attention Sinks Are Provably Necessary in Softmax Transformers, arXiv 2603.11487"
SIZE, FRESH = (16, 6, 6), 200
"""Sequences, tokens and width; sequences on which ReLU attention is judged."""
STEPS, LR = 10_000, 5.0
BROADCAST_LR, LOUD = 2.0, 2.0
"""Shorter steps for a longer value; its length. Other contents have lengths of about one."""
RELU_STEPS, RELU_LR, START = 1_000, 0.02, 0.1


@claim(
    f"{PAPER}; that it is a program: ours",
    "conjecture",
    removed="a first token without content: its content is drawn as the others' is",
    twin={"silent": False},
)
def a_sink_is_a_max_margin_selection(seed: int, silent: bool = True) -> Verdict:
    """Trained on the squared error, every row but the trigger's attends BOS alone, and W grows by ½ log t
    along the max-margin program that selects BOS there and ties all other tokens at the trigger.

    Sixteen sequences of six tokens of width six, gradient descent from zero, 10,000 steps of 5. Wanted:
    BOS ≥ 0.98 in every row but the trigger's and ≤ 0.02 there; from 1,000 to 10,000 steps W moves along the
    program (cosine ≥ 0.99) by ½ log 10 of its length, to 6 %. In that difference the finite part of W, which
    keeps its own cosine lower, drops out. Contents span their space, so that the program has a closed form,
    ‖W*‖² = 4/3.
    """
    tokens, selected = datasets.trigger_means(*SIZE, seed=seed)
    return judge(
        "a sink is a max-margin selection",
        *_selects(_trained(seed, silent), solved(tokens, selected), selected),
    )


@claim(
    "ours; the two kinds: Fesser et al. 2026, arXiv 2606.08105",
    "derived",
    removed="answers that are the sink's content alone: half of each is the mean of the other tokens",
    twin={"share": 0.5},
)
def a_sink_that_broadcasts_is_the_same_selection(seed: int, share: float = 1.0) -> Verdict:
    """A sink whose value is large is the max-margin selection of a sink without content, if its content is
    the whole answer of the rows that attend it: a selection does not depend on the length of a value.

    BOS has a content of length two, and every row but the trigger's must answer with it; all else is
    as for a silent sink, with steps of 2. Wanted: the same, with a cosine ≥ 0.98 and a growth to 8 %. The
    twin's rows must answer with half of it and half of the mean of the other tokens: attention stays between.
    """
    tokens, selected = broadcasting(seed, share)
    path = _descended(tokens, BROADCAST_LR)
    return judge(
        "a broadcasting sink is a max-margin selection",
        *_selects(path, solved(tokens, selected), selected, nearest=0.98, off=0.08),
    )


def broadcasting(seed: int, share: float) -> tuple[att.Tokens, Bool]:
    """`trigger_means` with a content of BOS, which makes up a share of the answer of all rows but the
    trigger's; the rest is the mean of the other tokens. Values are contents minus answers."""
    tokens, selected = datasets.trigger_means(*SIZE, seed=seed)
    content: Float = np.random.default_rng([11, seed]).standard_normal(tokens.values.shape[-1:])
    content = LOUD * content / np.linalg.norm(content)
    values, others = tokens.values.copy(), tokens.mask.copy()
    values[:, 0] += content
    others[:, 0] = False
    means = np.einsum("nt,ntc->nc", others, tokens.values) / others.sum(1, keepdims=True)
    values -= (~at_trigger(selected)[:, None] * (share * content + (1 - share) * means))[:, None]
    return replace(tokens, values=values * tokens.mask[..., None]), selected


def _selects(
    path: att.Path, best: att.Solution, selected: Bool, nearest: float = 0.99, off: float = 0.06
) -> list[Evidence]:
    """BOS everywhere but at triggers, and growth of W along the program by ½ log t."""
    trigger, bos = at_trigger(selected), path.attention[-1, :, 0]
    moved = path.W[-1] - path.W[-2]
    share = np.linalg.norm(moved) * float(best.margin) / (0.5 * np.log(10))
    return [
        at_least("least attention of BOS but at triggers", bos[~trigger].min(), 0.98),
        at_most("largest attention of BOS at a trigger", bos[trigger].max(), 0.02),
        at_least("cosine of the growth of W to the program", att.cosine(moved[None], best.W)[0], nearest),
        at_most("growth of W / (½ log 10 ‖W*‖), away from 1", abs(share - 1), off),
        reported("‖W*‖² of the program", 1 / float(best.margin) ** 2),
        reported("loss", path.loss[-1]),
    ]


@claim(f"{PAPER}, ReLU attention", "text", removed="ReLU: softmax attention", twin={"kind": "softmax"})
def relu_attention_solves_the_task_without_a_sink(seed: int, kind: str = "relu") -> Verdict:
    """relu(logits)/(i − 1) in place of softmax gives the same answers, and no row attends BOS.

    The same sequences, Adam, 1,000 steps of 0.02 that shrink to zero, from N(0, 0.1²); judged on 200 fresh
    sequences. Wanted: root mean squared error ≤ 1e-4 of that of the answer zero, mean weight of BOS in rows
    but the trigger's ≤ 0.1.
    """
    fresh, selected = datasets.trigger_means(*SIZE, seed=seed, fresh=FRESH)
    if kind == "relu":
        W = _relu_trained(seed)
        weights, loss = relu_weights(W, fresh), relu_loss(W, fresh)[0]
    else:
        weights = softmax_weights(_trained(seed, True).final, fresh)
        loss = (np.einsum("nt,ntc->nc", weights, fresh.values) ** 2).sum(-1).mean() / 2
    silent = (fresh.values[:, 0] ** 2).sum(-1).mean() / 2
    return judge(
        "the task is solved without a sink",
        at_most("error relative to that of the answer zero", np.sqrt(loss / silent), 1e-4),
        at_most("mean weight of BOS but at triggers", weights[~at_trigger(selected), 0].mean(), 0.1),
        reported("largest weight of BOS but at triggers", weights[~at_trigger(selected), 0].max()),
    )


def softmax_weights(W: Float, tokens: att.Tokens) -> Float:
    """Attention (n, T) of W on other tokens than it was trained on."""
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    return np.asarray(softmax(np.where(tokens.mask, logits, -np.inf), axis=-1))


def at_trigger(selected: Bool) -> Bool:
    """The trigger's rows: those that do not select BOS."""
    return ~selected[..., 0]


def _trained(seed: int, silent: bool) -> att.Path:
    tokens, _ = datasets.trigger_means(*SIZE, seed=seed)
    if not silent:
        values = tokens.values.copy()
        content = 2 * np.random.default_rng([9, seed]).random((SIZE[0], 1, SIZE[2] - 3)) - 1
        values[:, 0, 1:-1] += np.repeat(content, SIZE[1] - 1, axis=1).reshape(-1, SIZE[2] - 3)
        tokens = att.Tokens(tokens.keys, tokens.queries, mask=tokens.mask, values=values)
    return _descended(tokens, LR)


def _descended(tokens: att.Tokens, lr: float) -> att.Path:
    return Experiment(tokens, att.SquaredError(), att.gd(lr), STEPS, record=[STEPS // 10]).path


# ---------------------------------------------------------------------- ReLU attention, by hand


def relu_weights(W: Float, tokens: att.Tokens) -> Float:
    """relu(x_tᵀ W z)/(i − 1) over the i tokens that a row sees: (n, T)."""
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    return np.maximum(logits, 0) * tokens.mask / (tokens.lengths - 1)[:, None]


def relu_loss(W: Float, tokens: att.Tokens) -> tuple[float, Float]:
    """Mean ‖Σ_t a_t content_t − target‖²/2 of ReLU attention a, and its gradient in W.

    Values hold content − target, and BOS has no content: its value is −target.
    """
    content = tokens.values - tokens.values[:, :1]
    weights = relu_weights(W, tokens)
    error = np.einsum("nt,ntc->nc", weights, content) + tokens.values[:, 0]
    slope = (weights > 0) / (tokens.lengths - 1)[:, None] * np.einsum("ntc,nc->nt", content, error)
    gradient = np.einsum("nt,ntd,ne->de", slope, tokens.keys, tokens.queries) / tokens.n
    return float((error**2).sum(-1).mean() / 2), gradient


@lru_cache(maxsize=2)
def _relu_trained(seed: int) -> Float:
    tokens, _ = datasets.trigger_means(*SIZE, seed=seed)
    W = START * np.random.default_rng([10, seed]).standard_normal((SIZE[2], SIZE[2]))
    first, second = np.zeros_like(W), np.zeros_like(W)
    for k in range(1, RELU_STEPS + 1):
        gradient = relu_loss(W, tokens)[1]
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        step = first / (1 - 0.9**k) / (np.sqrt(second / (1 - 0.95**k)) + 1e-8)
        W = W - RELU_LR * (1 - k / RELU_STEPS) * step
    return np.asarray(W)
