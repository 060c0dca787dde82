"""Maximum likelihood of the logits of a corpus, and Graph-SVM's finite part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attsvm.next_token.corpus import Corpus, Ids
from attsvm.next_token.priorities import Priorities
from attsvm.next_token.problems import as_embeddings, sentence_tokens
from attsvm.numbers import Float
from attsvm.program.finite_part import finite_part

NEWTON_STEPS = 100
"""Limit of damped Newton steps; about ten suffice."""

VISIBLE = 1e-10
"""Smallest relative rise of the log-likelihood that is not hidden by rounding errors."""


@dataclass(frozen=True, eq=False, repr=False)
class Recovery:
    """The maximum-likelihood logits of a corpus.

    logits (V queries, V tokens): log π up to one constant per component, centred; NaN for tokens that
        no sentence compares under the query.
    component (V, V): the component of the priority graph; −1 where NaN. Odds inside a component are finite.
        Between two components the likelihood grows as the odds of the upper one tend to infinity.
    residual: largest difference between expected and observed choices of a token, per sentence of its
        query. The likelihood is concave, so 0 proves the optimum.
    """

    logits: Float
    component: Ids
    residual: float

    def __repr__(self) -> str:
        compared = self.component >= 0
        count = len(np.unique(self.component[compared]))
        size = f"{int(compared.sum())} of {compared.size} logits in {count} components"
        return f"Recovery({size}; residual {self.residual:.1e})"


def recover(corpus: Corpus) -> Recovery:
    """Maximum likelihood of the chain's logits θ from pairs of prompt and next token.

        max_θ Σ_i log( m_y e^{θ_y} / Σ_j m_j e^{θ_j} ),     m_j the count of j in prompt i, y its winner

    A finite optimum exists inside the strongly connected components of the priority graphs (Ford 1957), and
    is unique there up to a constant. It is computed on the cyclic sub-corpus.
    """
    graph = Priorities.of(corpus)
    V = corpus.V
    logits, component = np.full((V, V), np.nan), np.full((V, V), -1)
    logits.flat[graph.nodes], component.flat[graph.nodes] = 0.0, graph.components
    cyclic, residual = graph.cyclic(), 0.0
    if cyclic is not None:
        order = np.argsort(cyclic.queries, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(cyclic.queries[order])) + 1):
            query = int(cyclic.queries[rows[0]])
            tokens, theta, error = _luce(cyclic.take(rows), component[query])
            logits[query, tokens] = theta
            residual = max(residual, error)
    return Recovery(logits, component, residual)


def graph_finite_part(corpus: Corpus, embeddings: ArrayLike | None = None) -> Float:
    """W_fin of Graph-SVM: the smallest weight (d, d) with the maximum-likelihood odds inside components.

        min ‖W‖_F  subject to  (x − x')ᵀ W q = θ_x − θ_x'  for x, x' in one component of q's graph

    Without embeddings tokens are orthonormal, and W[x, q] (V, V) are the centred logits themselves.
    It minimises the log-loss of the cyclic sub-corpus within the span of these pairs. Theory predicts that
    training ends near R · W_svm + W_fin. Raises ValueError where the embeddings are too dependent to express
    the odds exactly; there `train_choice` on `Priorities.cyclic()` computes the minimiser.
    Reference: Li et al. 2024, "Mechanics of Next Token Prediction with Self-Attention".
    """
    if embeddings is None:
        return np.nan_to_num(recover(corpus).logits).T
    E, cyclic = as_embeddings(corpus, embeddings), Priorities.of(corpus).cyclic()
    if cyclic is None:
        return np.zeros((E.shape[1], E.shape[1]))
    tokens = sentence_tokens(cyclic, E)
    theta = recover(cyclic).logits[cyclic.queries[:, None], cyclic.ids]
    weights = np.exp(np.where(tokens.mask, theta, -np.inf))
    return finite_part(tokens, weights / weights.sum(-1, keepdims=True), tokens.mask)


# ---------------------------------------------------------------------- details


def _luce(corpus: Corpus, component: Ids) -> tuple[Ids, Float, float]:
    """Tokens, centred logits and residual of one query's choices, by damped Newton steps."""
    rows = np.nonzero(corpus.mask)[0]
    present, place = np.unique(corpus.ids[corpus.mask], return_inverse=True)
    counts = np.zeros((corpus.n, len(present)))
    np.add.at(counts, (rows, place), 1.0)
    contexts, times = np.unique(counts, axis=0, return_counts=True)
    wins = np.bincount(np.searchsorted(present, corpus.winners), minlength=len(present))
    joined = component[present][:, None] == component[present]
    theta = np.zeros(len(present))
    level, expected, shares = _likelihood(contexts, times, wins, theta)
    last = np.inf
    for _ in range(NEWTON_STEPS):
        # The constant of each component is free: adding the matrix `joined` makes the Hessian regular.
        hessian = np.diag(expected) - (shares * times[:, None]).T @ shares + joined
        step = np.linalg.solve(hessian, wins - expected)
        promise = float(step @ (wins - expected))
        visible = promise > VISIBLE * abs(
            level
        )  # otherwise rounding hides the rise; there full steps converge
        if not visible and promise > last / 4:
            break
        last = promise
        size = 1 / max(1.0, float(np.abs(step).max()))  # beyond a change of one the model is not quadratic
        trial = _likelihood(contexts, times, wins, theta + size * step)
        while visible and trial[0] < level + 0.1 * size * promise:
            size /= 2
            trial = _likelihood(contexts, times, wins, theta + size * step)
        theta = theta + size * step
        level, expected, shares = trial
    theta -= joined @ theta / joined.sum(-1)
    return present, theta, float(np.abs(wins - expected).max() / corpus.n)


def _likelihood(contexts: Float, times: Ids, wins: Ids, theta: Float) -> tuple[float, Float, Float]:
    """Log-likelihood, expected choices of each token, and their shares in each context."""
    top = np.where(contexts > 0, theta, -np.inf).max(-1, keepdims=True)
    weights = contexts * np.exp(np.minimum(theta - top, 0.0))
    total = weights.sum(-1, keepdims=True)
    shares = weights / total
    level = float(wins @ theta - times @ (top + np.log(total))[:, 0])
    return level, times @ shares, shares
