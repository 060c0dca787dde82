"""Claims on "Selective Attention" (Zhang et al. 2024): temperatures of queries and of values.

The abstract is known: a temperature per query controls how sparse its attention is apart from what it
selects, one per value suppresses noisy tokens. Both experiments are ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

import attsvm as att
from attsvm.comparison.evidence import Verdict, at_least, at_most, judge, reported
from attsvm.numbers import Bool, Float
from attsvm_lab.claims.claim import claim
from attsvm_lab.experiment import solved

PAPER = "Zhang, Chang, Li, Roy-Chowdhury, Chen, Oymak 2024, Selective Attention, arXiv 2411.12892"
TEXTS, LENGTH, WIDTH, MARK = 400, 6, 8, 2.0
"""Texts with as many again for the judgement; tokens; their width; length of the mark on a token's kind."""


# ---------------------------------------------------------------------- values


class Task(NamedTuple):
    """Tokens (n, T, d) and what to say of them (n, d)."""

    tokens: Float
    answers: Float


def silent_task(seed: int, silent: float) -> Task:
    """Texts of tokens N(0, I) with a mark of their kind: one informative token and noise, or noise alone.

    The answer is the informative token; a share `silent` of the texts has none, and the answer is zero.
    """
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((TEXTS, LENGTH, WIDTH))
    informative: Bool = np.zeros((TEXTS, LENGTH), bool)
    informative[round(silent * TEXTS) :, 0] = True
    tokens[..., :2] = MARK * np.stack([informative, ~informative], axis=-1)
    return Task(tokens, np.where(informative[..., None], tokens, 0).sum(1))


def loss_and_gradient(parameters: Float, task: Task, reads_token: bool) -> tuple[float, Float]:
    """½ mean ‖Σ_t s_t τ_t x_t − answer‖² with s = softmax(X p), τ_t = 1/(1 + e^(−a·x_t − b)); its gradient.

    parameters: p (d,), a (d,), b. Where the temperature does not read the token, a counts as zero.
    """
    x, n = task.tokens, len(task.tokens)
    p, a, b = np.split(parameters, (WIDTH, 2 * WIDTH))
    logits = x @ p
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    tau = 1 / (1 + np.exp(-(x @ a if reads_token else 0) - b)) * np.ones_like(s)
    error = ((s * tau)[..., None] * x).sum(1) - task.answers
    pull = np.einsum("ntd,nd->nt", x, error)
    slope_p = s * (tau * pull - (s * tau * pull).sum(-1, keepdims=True)) / n
    slope_a = s * pull * tau * (1 - tau) / n
    of_token = np.einsum("nt,ntd->d", slope_a, x) if reads_token else np.zeros(WIDTH)
    gradient = [np.einsum("nt,ntd->d", slope_p, x), of_token, [slope_a.sum()]]
    return float(0.5 * (error**2).sum(-1).mean()), np.concatenate(gradient)


@claim(
    f"{PAPER}, abstract: value temperature",
    "derived",
    removed="texts in which there is nothing to say",
    twin={"silent": 0.0},
)
def a_value_temperature_silences_texts_of_noise(seed: int, silent: float = 0.5) -> Verdict:
    """A temperature of values that reads the token suppresses noise where attention cannot: softmax must put
    its weight somewhere, and in a text of noise alone every place is noise.

    The abstract says that it helps; the task and the formula are ours. Half of the texts are noise alone, and
    the answer is zero. With one temperature c for all values the least loss is AB/(4(A + B)), c = A/(A + B)
    for A = E‖informative token‖² and B = E‖mean of the noise‖². Both fits from zero by L-BFGS, judged on
    fresh texts. Wanted: a loss of at most 1e-4 with a temperature per token; without, the formula's loss to
    8 % and its c to 4 %. In the twin every text has an informative token, and plain attention finds it.
    """
    task, fresh = silent_task(2 * seed, silent), silent_task(2 * seed + 1, silent)
    fits = {reads: _fit(task, reads) for reads in (True, False)}
    losses = {reads: loss_and_gradient(fit, fresh, reads)[0] for reads, fit in fits.items()}
    informative = MARK**2 + WIDTH - 2
    noise = MARK**2 + (WIDTH - 2) / LENGTH
    floor = informative * noise / (4 * (informative + noise))
    common = 1 / (1 + np.exp(-fits[False][-1]))
    return judge(
        "a value temperature silences texts of noise",
        at_most("loss with a temperature per token", losses[True], 1e-4),
        at_most("loss with one for all, away from the formula", abs(losses[False] / floor - 1), 0.08),
        at_most("that one, away from the formula", abs(common * (1 + noise / informative) - 1), 0.04),
        reported("loss with one for all", losses[False]),
    )


def _fit(task: Task, reads_token: bool) -> Float:
    start = np.zeros(2 * WIDTH + 1)
    arguments = (task, reads_token)
    return np.asarray(minimize(loss_and_gradient, start, arguments, "L-BFGS-B", jac=True).x)


# ---------------------------------------------------------------------- queries


@claim(
    f"{PAPER}, query temperature",
    "derived",
    removed="both queries read the same tokens",
    twin={"same_tokens": False},
)
def without_a_query_temperature_the_norm_grows_like_one_over_the_angle(
    seed: int, same_tokens: bool = True
) -> Verdict:
    """Of two similar queries of the same tokens one selects and one spreads its attention evenly: then W is
    longer by 1/sin θ than with a temperature per query, θ the angle of the queries.

    A summary of the paper says that a temperature per query expresses such maps at a smaller norm; the factor
    is ours. The program: margin 1 for the first query, ties for the second. A temperature of zero meets the
    ties with any W. Wanted: norm · sin θ over the norm of the first query alone is 1 to 1e-6 at θ = 1, 0.3,
    0.1 and 0.03. In the twin the second query reads other tokens, whose span is orthogonal.
    """
    rng = np.random.default_rng(seed)
    d, T = 8, 4
    keys = np.zeros((2, T, d))
    keys[0, :, :T], keys[1, :, T:] = rng.standard_normal((2, T, T))
    if same_tokens:
        keys[1] = keys[0]
    first, second = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
    selected = np.array([np.arange(T) == 0, np.ones(T, bool)])
    alone = solved(att.Tokens(keys[:1], first[None]), selected[:1])
    factors = []
    for angle in (1.0, 0.3, 0.1, 0.03):
        similar = np.cos(angle) * first + np.sin(angle) * second
        both = solved(att.Tokens(keys, np.stack([first, similar])), selected)
        factors.append(np.linalg.norm(both.W) / np.linalg.norm(alone.W) * np.sin(angle))
    return judge(
        "the norm grows like 1/sin θ",
        at_least("least of norm · sin θ over the norm alone", min(factors), 1 - 1e-6),
        at_most("largest of them", max(factors), 1 + 1e-6),
    )
