"""Where a training stands: at the max-margin direction, at a stop of low rank, or on its way.

The run's own gradient is a sum of rows with weights λ ≥ 0. By weak duality these weights bound the best
margin, so they certify what share of it the run has, without solving a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.data.path import Path
from attsvm.data.selection import scores
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.norms.factored import Factored
from attsvm.norms.names import as_norm
from attsvm.numbers import Float

LIMIT = 0.98
"""From this certified share of the best margin on, a run is at the limit."""

ALIGNED = 0.99
"""From this alignment on, a run that is not at the limit is beside a stop, if its spare part is small."""

AVERAGED = 64
"""The most records over which multipliers are averaged."""

NEGLIGIBLE = 1e-6
"""At a stop, tokens that score higher than the selected ones have at most this share of the gradient."""

TINY = float(np.finfo(float).tiny)

PULL = 0.01
"""A pull that is larger than its bound by this much is no rounding of the bound."""

LARGEST_LOG = 700.0
"""Beyond it, e^x is no float64."""

SPARE = 1e-2
"""Singular values of W below this share of the largest are spare."""


@dataclass(frozen=True)
class KKTPoint:
    """How far the last weight of a run is a KKT point of the margin of its factors, and which kind.

    status: "limit", a max-margin direction up to the missing share; "stop", a KKT point of low rank that is
        no max-margin direction; "on the way".
    norm: the norm of W in which the factors maximise the margin.
    share: a lower bound of the margin of W, as a share of the best one in this norm, by weak duality.
    alignment: ⟨g, θ⟩ / (‖g‖_* ‖θ‖) of the gradient g and the factors θ; it is 1 at KKT points only.
    balance: ‖(KᵀK)^(p_K/2) − (QᵀQ)^(p_Q/2)‖ / ‖(KᵀK)^(p_K/2)‖ for factors of length 1; it is 0 at KKT points.
    rank: the number of singular values of W that are not spare.
    pull: the largest singular value of M beyond the used directions, in units of those inside, M = Σ λ r.
        At a KKT point W is optimal in the nuclear norm if and only if pull ≤ 1, in Schatten(r > 1) if 0.
    exponent: beside a stop spare singular values of W grow relative to the others like ‖(K, Q)‖^exponent
        under gradient descent; NaN in other norms. Normalised steps of one length have ‖(K, Q)‖ ∝ t.
    multipliers (n, T): the weights λ of the rows (x_selected − x_t) zᵀ, their sum one.
    index (k,), singular_values (k, ·): the recorded steps, and the singular values of W there.
    Reference: docs/law_of_halves_proofs.md, theorems 1, 2 and 5.
    """

    status: str
    norm: Norm
    share: float
    alignment: float
    balance: float
    rank: int
    pull: float
    exponent: float
    multipliers: Float
    index: NDArray[Any]
    singular_values: Float

    @property
    def steps_to_leave(self) -> float:
        """More steps until the largest spare singular value reaches the used ones; ∞ if none is growing."""
        sizes = self.singular_values[-1]
        if not (self.rank < len(sizes) and self.exponent > 0 and sizes[self.rank] > 0):
            return float("inf")
        growth = np.log(sizes[self.rank - 1] / sizes[self.rank]) / self.exponent
        return float(self.index[-1] * np.expm1(growth)) if growth < LARGEST_LOG else float("inf")

    def plot(self) -> Any:
        """A matplotlib figure of the singular values at every record, with the predicted slope at a stop."""
        from attsvm.plotting.kkt import draw_kkt_point

        return draw_kkt_point(self)

    def __str__(self) -> str:
        lines = [f"{self.status}: at least {self.share:.1%} of the best {self.norm} margin"]
        conditions = f"alignment {self.alignment:.6f}   balance {self.balance:.1e}"
        lines.append(f"  {conditions}   rank {self.rank}   pull {self.pull:.3f}")
        if self.status == "stop" and np.isfinite(self.exponent):
            steps = self.steps_to_leave
            waits = f"about {steps:.2g} steps to leave" if np.isfinite(steps) else "it does not leave"
            lines.append(f"  spare singular values grow like ρ^{self.exponent:.3f}: {waits}")
        return "\n".join(lines)


def kkt_point(path: Path, head: Any = None, *, loss: Any = None, steps: Any = frobenius) -> KKTPoint:
    """Whether a run of factors W = K Qᵀ, or of W, ends at a max-margin direction or waits at a stop.

        −∇_W L ∝ M = Σ λ_it (x_iα − x_it) z_iᵀ,  λ ≥ 0:     best margin ≤ N_*(M) / Σ λ

    path: of one run and one head, with its factors K and Q; without factors W itself is judged.
    head: the linear head, Linear(v) or v (c,); by default the trained head of the path.
    loss: the loss of the training, by default logistic.
    steps: the norm of the optimizer's steps on K and on Q, or a pair of norms, one for each.

    Raises ValueError where the implied norm of W has no program.
    """
    if path.runs is not None or path.heads is not None:
        raise ValueError("the path has several runs or heads. Pass one: path.run(index) or path.head(index).")
    point = _Point.of(path, steps)
    weights, backwards = _multipliers(path, _linear_head(path, head), loss)
    candidates = _averages(weights)
    share, best = max((_certified_share(path, point.norm, mean), k) for k, mean in enumerate(candidates))
    multipliers = candidates[best]
    M = _combined(path, multipliers)
    alignment, balance = _conditions(point, M)
    rank, pull = _spare_part(point, M)
    spectra = _spectra(path)
    is_nuclear = point.exponent == 1.0
    stays = (
        backwards[-1] <= NEGLIGIBLE
        and alignment >= ALIGNED
        and rank < spectra.shape[1]
        and pull > is_nuclear + PULL
    )
    return KKTPoint(
        "limit" if share >= LIMIT else "stop" if stays else "on the way",
        point.norm,
        share,
        alignment,
        balance,
        rank,
        pull,
        2 * (pull - 1) if is_nuclear else np.nan,
        multipliers,
        path.index,
        spectra,
    )


class _Point(NamedTuple):
    """The last weight and its factors, of length one in their norms; p of each, and r of W."""

    W: Float
    factors: tuple[Float, Float] | None
    norms: tuple[Norm, Norm]
    norm: Norm
    exponent: float

    @classmethod
    def of(cls, path: Path, steps: Any) -> _Point:
        pair = steps if isinstance(steps, tuple) else (steps, steps)
        norm_K, norm_Q = (as_norm(norm) for norm in pair)
        if path.K is None or path.Q is None:
            if norm_K != norm_Q:
                raise ValueError("the path has no factors K and Q. Pass one norm of the steps of W.")
            return cls(path.final, None, (norm_K, norm_Q), norm_K, np.nan)
        implied = Factored((norm_K, norm_Q)).closed
        if implied is None:
            raise ValueError(f"no norm of W with a program is known for steps in {norm_K} and {norm_Q}.")
        K, Q = path.K[-1] / norm_K.value(path.K[-1]), path.Q[-1] / norm_Q.value(path.Q[-1])
        singular = capabilities_of(implied).acts_on == "singular values"
        return cls(K @ Q.T, (K, Q), (norm_K, norm_Q), implied, implied.p if singular else np.nan)


def _linear_head(path: Path, head: Any) -> Any:
    if head is None:
        if path.v is None:
            raise ValueError("the path has no trained head. Pass the head of the training: Linear(v) or v.")
        return path.v[-1]
    return getattr(head, "v", head)


def _multipliers(path: Path, v: Any, loss: Any) -> tuple[Float, Float]:
    """λ_it ∝ |ℓ'(f_i)| s_it (f_i − γ_it) of the losing tokens at late records (k, n, T), each with sum one.

    Safe past saturation. Tokens that score higher than the selected one have negative weights, which are left
    out; their shares (k,) come second.
    """
    from attsvm.training.losses import logistic

    tokens, selected = path.tokens.in_memory(), path.selected
    late = np.nonzero(2 * path.index >= path.index[-1])[0][-AVERAGED:]
    score = np.where(tokens.mask, scores(tokens, v), 0.0)
    log_attention = path.changed(W=path.W[late], index=path.index[late]).log_attention
    # Copies of the selected token share its attention, so the best score is a mean over them.
    among = log_attention - np.where(selected, log_attention, -np.inf).max(-1, keepdims=True)
    attention = np.where(selected, np.exp(np.minimum(among, 0.0)), 0.0)
    best = (attention * score).sum(-1) / attention.sum(-1)
    gap = np.where(tokens.mask & ~selected, best[..., None] - score, 0.0)
    drop = (np.exp(log_attention) * gap).sum(-1)
    coefficient = np.where(gap != 0, gap - drop[..., None], 0.0)
    log_slope = np.asarray((logistic if loss is None else loss).log_slope(best - drop), float)
    with np.errstate(divide="ignore"):
        log_weight = log_slope[..., None] + log_attention + np.log(np.abs(coefficient))
    log_weight -= log_weight.max((-2, -1), keepdims=True)
    weight = np.where(coefficient == 0, 0.0, np.sign(coefficient) * np.exp(log_weight))
    backwards = np.maximum(-weight, 0.0).sum((-2, -1)) / np.abs(weight).sum((-2, -1))
    forwards = np.maximum(weight, 0.0)
    return forwards / np.maximum(forwards.sum((-2, -1), keepdims=True), TINY), backwards


def _averages(multipliers: Float) -> list[Float]:
    """Means over the last 1, 2, 4, … records: steps go to and fro between rows, and a mean evens them out."""
    counts = [1 << k for k in range(len(multipliers).bit_length()) if 1 << k <= len(multipliers)]
    return [multipliers[-count:].mean(0) for count in counts]


def _combined(path: Path, multipliers: Float) -> Float:
    """M = Σ λ_it (x_iα − x_it) z_iᵀ, (d, e)."""
    tokens, first = path.tokens.in_memory(), path.selected.argmax(-1)
    coefficients = -multipliers
    coefficients[np.arange(tokens.n), first] += multipliers.sum(-1)
    return np.asarray(np.einsum("nt,ntd,ne->de", coefficients, tokens.keys, tokens.queries))


def _certified_share(path: Path, norm: Norm, multipliers: Float) -> float:
    """Least margin of W/N(W) over the bound N_*(M)/Σλ of the best margin."""
    tokens, selected = path.tokens.in_memory(), path.selected
    W = path.final / norm.value(path.final)
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    margins = np.where(selected, logits, np.inf).min(-1)[:, None] - logits
    least = margins[tokens.mask & ~selected].min()
    bound = float(norm.dual.value(_combined(path, multipliers)))
    return max(0.0, float(least) * float(multipliers.sum()) / max(bound, TINY))


def _conditions(point: _Point, M: Float) -> tuple[float, float]:
    """The alignment of the gradient with the parameters, and the balance of the factors."""
    if point.factors is None:
        W = point.W / point.norm.value(point.W)
        return float((M * W).sum() / max(float(point.norm.dual.value(M)), TINY)), 0.0
    K, Q = point.factors
    dual = sum(norm.dual.value(G) for norm, G in zip(point.norms, (M @ Q, M.T @ K), strict=True))
    alignment = float(2 * (M * point.W).sum() / max(float(dual), TINY))
    if not all(np.isfinite(norm.p) and norm.p > 1 for norm in point.norms):
        return alignment, float("nan")
    A, B = (_gram_power(X, norm.p / 2) for X, norm in zip((K, Q), point.norms, strict=True))
    return alignment, float(np.linalg.norm(A - B) / np.linalg.norm(A))


def _gram_power(X: Float, power: float) -> Float:
    """(XᵀX)^power."""
    _, sizes, rows = np.linalg.svd(X, full_matrices=False)
    return np.asarray((rows.T * sizes ** (2 * power)) @ rows)


def _spare_part(point: _Point, M: Float) -> tuple[int, float]:
    """The rank of W, and the pull ‖M_⊥‖/s."""
    left, sizes, right = np.linalg.svd(point.W)
    rank = int((sizes > SPARE * sizes[0]).sum())
    U, V = left[:, :rank], right[:rank].T
    beyond = M - U @ (U.T @ M)
    beyond = beyond - (beyond @ V) @ V.T
    inside = float(np.linalg.norm(U.T @ M @ V, 2))
    return rank, float(np.linalg.norm(beyond, 2)) / max(inside, TINY)


def _spectra(path: Path) -> Float:
    """The singular values of W at every record (k, ·); of factors σ_i(K) σ_i(Q), which may be tiny."""
    if path.K is None or path.Q is None:
        return np.asarray(np.linalg.svd(path.W, compute_uv=False))
    of_K, of_Q = (np.linalg.svd(X, compute_uv=False) for X in (path.K, path.Q))
    count = min(of_K.shape[-1], of_Q.shape[-1])
    return np.asarray(of_K[..., :count] * of_Q[..., :count])
