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
    balance: ‖(KᵀK)^(p_K/2) − (QᵀQ)^(p_Q/2)‖ / ‖(KᵀK)^(p_K/2)‖ for factors of length 1, of diagonals
        |k|^p_K and |q|^p_Q; 0 at KKT points, and NaN where an exponent is infinite or factors are unknown.
    rank: the number of singular values of W that are not spare; of a diagonal, of entries.
    pull: the largest singular value of M beyond the used directions, in units of those inside, M = Σ λ r.
        At a KKT point W is optimal in the nuclear norm if and only if pull ≤ 1, in Schatten(r > 1) if 0.
    multipliers (n, T): the weights λ of the rows (x_selected − x_t) zᵀ, their sum one.
    index (k,), singular_values (k, ·): the recorded steps, and the singular values of W there.
    powers: p of the norm in which each factor takes its steps.
    `attsvm_lab.programs.steps_to_leave` says when a run leaves a stop.
    Reference: docs/law_of_halves_proofs.md, theorems 1, 2 and 5.
    """

    status: str
    norm: Norm
    share: float
    alignment: float
    balance: float
    rank: int
    pull: float
    multipliers: Float
    index: NDArray[Any]
    singular_values: Float
    powers: tuple[float, ...] = ()

    def plot(self) -> Any:
        """A matplotlib figure of the singular values at every record, spare ones in another colour."""
        from attsvm.plotting.results import draw_kkt_point

        return draw_kkt_point(self)

    def __str__(self) -> str:
        lines = [f"{self.status}: at least {self.share:.1%} of the best {self.norm} margin"]
        conditions = f"alignment {self.alignment:.6f}   balance {self.balance:.1e}"
        lines.append(f"  {conditions}   rank {self.rank}   pull {self.pull:.3f}")
        return "\n".join(lines)


def kkt_point(
    path: Path,
    head: Any = None,
    *,
    loss: Any = None,
    steps: Any = frobenius,
    weight: Any = None,
    of_head: int | None = None,
) -> KKTPoint:
    """Whether a run of factors W = K Qᵀ, of diagonals or of W ends at a max-margin direction or at a stop.

        −∇_W L ∝ M = Σ λ_it (x_iα − x_it) z_iᵀ,  λ ≥ 0:     best margin ≤ N_*(M) / Σ λ

    path: of one run, with its factors K and Q; without factors W itself is judged.
    head: the linear head, Linear(v) or v (c,); by default the trained head of the path.
    loss: the loss of the training, by default logistic.
    steps: the norm of the optimizer's steps on K and on Q, or a tuple of norms, one for each factor.
    weight: the weight of the training where its factors are diagonals, such as Diagonal(2); entries
        then stand for singular values, and the support for the rank.
    of_head: which head of several is judged, by the gradient of the loss of all; heads normalised apart, or
        together in the Frobenius norm.

    Raises ValueError where the implied norm of W has no program.
    """
    if path.runs is not None:
        raise ValueError("the path has several runs. Pass one: path.run(index).")
    if path.heads is not None and of_head is None:
        raise ValueError(f"the path has {path.heads} heads. Pass one of them, of_head=0 … {path.heads - 1}.")
    v = _linear_head(path, head)
    weights, backwards = _multipliers(path, v, loss, of_head)
    if of_head is not None:
        path = path.head(of_head)
    point = _UnitFactors.of(path, steps, getattr(weight, "weight", weight))
    candidates = [(mean, _combined(path, point, mean)) for mean in _averages(weights)]
    share, best = max((_certified_share(path, point.norm, *pair), k) for k, pair in enumerate(candidates))
    multipliers, M = candidates[best]
    alignment, balance = _conditions(point, M)
    rank, pull = _spare_part(point, M)
    spectra = _spectra(path, point)
    stays = (
        backwards[-1] <= NEGLIGIBLE
        and alignment >= ALIGNED
        and rank < spectra.shape[1]
        and pull > (point.exponent == 1.0) + PULL
    )
    return KKTPoint(
        "limit" if share >= LIMIT else "stop" if stays else "on the way",
        point.norm,
        share,
        alignment,
        balance,
        rank,
        pull,
        multipliers,
        path.index,
        spectra,
        tuple(float(norm.p) for norm in point.norms),
    )


class _UnitFactors(NamedTuple):
    """The last weight and its factors, of length one in their norms; p of each, and r of W."""

    W: Float
    factors: tuple[Float, ...] | None
    norms: tuple[Norm, ...]
    norm: Norm
    exponent: float
    diagonal: bool
    measured: bool
    """Whether the factors are those of the run; of diagonals without its state they are the balanced ones."""

    @classmethod
    def of(cls, path: Path, steps: Any, weight: Any) -> _UnitFactors:
        depth = getattr(weight, "depth", None)
        count = depth or (2 if path.K is not None and path.Q is not None else 1)
        norms = steps if isinstance(steps, tuple) else (steps,) * count
        norms = tuple(as_norm(norm) for norm in norms)
        if len(norms) != count:
            raise ValueError(
                f"steps has {len(norms)} norms, and the path has {count} factors{' K and Q' * (count == 2)}. "
                "Pass one norm, or one for each factor; of diagonals with their weight, as "
                "weight=Diagonal(depth=3)."
            )
        if depth is not None and (path.K is not None or _off_diagonal(path.final)):
            raise ValueError(f"weight is {weight!r}, and W of the path is not diagonal. Pass its weight.")
        if count == 1:
            norm = norms[0] if depth is None else capabilities_of(norms[0]).on_column or norms[0]
            return cls(path.final / norm.value(path.final), None, norms, norm, np.nan, depth == 1, True)
        factored = Factored(norms, count, depth is not None)
        implied = factored.closed
        if implied is None:
            steps = ", ".join(map(str, norms))
            raise ValueError(f"no norm of W with a program is known for steps in {steps}: {factored.words}.")
        known = capabilities_of(implied).acts_on in ("singular values", "entries")
        r = implied.p if known else np.nan
        if depth is None:
            assert path.K is not None and path.Q is not None
            K, Q = (X[-1] / norm.value(X[-1]) for X, norm in zip((path.K, path.Q), norms, strict=True))
            return cls(K @ Q.T, (K, Q), norms, implied, r, False, True)
        of_entries = tuple(capabilities_of(norm).on_column or norm for norm in norms)
        factors = _diagonals(path, of_entries, r)
        return cls(
            np.diag(np.prod(factors, 0)), factors, of_entries, implied, r, True, path.state is not None
        )


def _off_diagonal(W: Float) -> bool:
    return W.shape[0] != W.shape[1] or bool(np.any(W[~np.eye(len(W), dtype=bool)]))


def _diagonals(path: Path, norms: tuple[Norm, ...], r: float) -> tuple[Float, ...]:
    """The factors of the last diagonal at length one: of the run's state, or balanced ones, |w|^(r/p)."""
    w = np.diagonal(path.final)
    if path.state is not None:
        factors = [np.asarray(path.state[str(k)], float) for k in range(len(norms))]
    else:
        # With r = ∞ the entries of a factor of finite p do not show in W; all of these are infinite.
        shares = [r / norm.p if np.isfinite(r) else 1 / len(norms) for norm in norms]
        factors = [np.abs(w / np.abs(w).max()) ** share for share in shares]
        factors[0] = factors[0] * np.sign(w)
    return tuple(f / norm.value(f[:, None]) for f, norm in zip(factors, norms, strict=True))


def _linear_head(path: Path, head: Any) -> Any:
    if head is None:
        if path.v is None:
            raise ValueError("the path has no trained head. Pass the head of the training: Linear(v) or v.")
        return path.v[-1]
    return getattr(head, "v", head)


def _multipliers(path: Path, v: Any, loss: Any, of_head: int | None) -> tuple[Float, Float]:
    """λ_it ∝ |ℓ'(f_i)| s_it (f_i − γ_it) of the losing tokens at late records (k, n, T), each with sum one.

    Safe past saturation. Tokens that score higher than the selected one have negative weights, which are left
    out; their shares (k,) come second. Of several heads f is the sum.
    """
    from attsvm.training.losses import log_slopes, logistic

    if of_head is None:
        log_attention, coefficient, output = _gaps(path, v)
    else:
        heads = [_gaps(path.head(h), v if np.ndim(v) == 1 else v[h]) for h in range(path.heads or 0)]
        log_attention, coefficient, _ = heads[of_head]
        output = sum(f for _, _, f in heads)
    log_slope = log_slopes(logistic if loss is None else loss, output)
    with np.errstate(divide="ignore"):
        log_weight = log_slope[..., None] + log_attention + np.log(np.abs(coefficient))
    log_weight -= log_weight.max((-2, -1), keepdims=True)
    weight = np.where(coefficient == 0, 0.0, np.sign(coefficient) * np.exp(log_weight))
    backwards = np.maximum(-weight, 0.0).sum((-2, -1)) / np.abs(weight).sum((-2, -1))
    forwards = np.maximum(weight, 0.0)
    return forwards / np.maximum(forwards.sum((-2, -1), keepdims=True), TINY), backwards


def _gaps(path: Path, v: Any) -> tuple[Float, Float, Any]:
    """Of one head at late records: log attention, f_i − γ_it of losing tokens (k, n, T), and f (k, n)."""
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
    return log_attention, coefficient, best - drop


def _averages(multipliers: Float) -> list[Float]:
    """Means over the last 1, 2, 4, … records: steps go to and fro between rows, and a mean evens them out."""
    counts = [1 << k for k in range(len(multipliers).bit_length()) if 1 << k <= len(multipliers)]
    return [multipliers[-count:].mean(0) for count in counts]


def _combined(path: Path, point: _UnitFactors, multipliers: Float) -> Float:
    """M = Σ λ_it (x_iα − x_it) z_iᵀ, (d, e); of a diagonal, its diagonal."""
    tokens, first = path.tokens.in_memory(), path.selected.argmax(-1)
    coefficients = -multipliers
    coefficients[np.arange(tokens.n), first] += multipliers.sum(-1)
    M = np.asarray(np.einsum("nt,ntd,ne->de", coefficients, tokens.keys, tokens.queries))
    return np.diag(np.diagonal(M)) if point.diagonal else M


def _certified_share(path: Path, norm: Norm, multipliers: Float, M: Float) -> float:
    """Least margin of W/N(W) over the bound N_*(M)/Σλ of the best margin."""
    tokens, selected = path.tokens.in_memory(), path.selected
    W = path.final / norm.value(path.final)
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    margins = np.where(selected, logits, np.inf).min(-1)[:, None] - logits
    least = margins[tokens.mask & ~selected].min()
    bound = float(norm.dual.value(M))
    return max(0.0, float(least) * float(multipliers.sum()) / max(bound, TINY))


def _conditions(point: _UnitFactors, M: Float) -> tuple[float, float]:
    """The alignment of the gradient with the parameters, and the balance of the factors."""
    if point.factors is None:
        W = point.W / point.norm.value(point.W)
        return float((M * W).sum() / max(float(point.norm.dual.value(M)), TINY)), 0.0
    factors, L = point.factors, len(point.factors)
    if point.diagonal:
        others = [np.prod([f for j, f in enumerate(factors) if j != k], 0) for k in range(L)]
        gradients = [np.diagonal(M) * other for other in others]
        lengths = [norm.dual.value(g[:, None]) for norm, g in zip(point.norms, gradients, strict=True)]
    else:
        K, Q = factors
        lengths = [norm.dual.value(G) for norm, G in zip(point.norms, (M @ Q, M.T @ K), strict=True)]
    alignment = float(L * (M * point.W).sum() / max(float(sum(lengths)), TINY))
    if not (point.measured and all(np.isfinite(norm.p) and norm.p > 1 for norm in point.norms)):
        return alignment, float("nan")
    if capabilities_of(point.norms[0]).acts_on == "rows" and not point.diagonal:
        return alignment, float("nan")
    power = (lambda f, p: np.abs(f) ** p) if point.diagonal else (lambda X, p: _gram_power(X, p / 2))
    A, *rest = (power(f, norm.p) for f, norm in zip(factors, point.norms, strict=True))
    return alignment, float(max(np.linalg.norm(A - B) for B in rest) / np.linalg.norm(A))


def _gram_power(X: Float, power: float) -> Float:
    """(XᵀX)^power."""
    _, sizes, rows = np.linalg.svd(X, full_matrices=False)
    return np.asarray((rows.T * sizes ** (2 * power)) @ rows)


def _spare_part(point: _UnitFactors, M: Float) -> tuple[int, float]:
    """The rank of W, and the pull ‖M_⊥‖/s."""
    if point.diagonal:
        w, pulls = np.diagonal(point.W), np.diagonal(M)
        used = np.abs(w) > SPARE * np.abs(w).max()
        if used.all():
            return len(w), 0.0
        inside = max(float(np.abs(pulls[used]).max()), TINY)
        return int(used.sum()), float(np.abs(pulls[~used]).max()) / inside
    left, sizes, right = np.linalg.svd(point.W)
    rank = int((sizes > SPARE * sizes[0]).sum())
    U, V = left[:, :rank], right[:rank].T
    beyond = M - U @ (U.T @ M)
    beyond = beyond - (beyond @ V) @ V.T
    pull = float(np.linalg.norm(beyond, 2))
    inside = max(float(np.linalg.norm(U.T @ M @ V, 2)), TINY)
    return rank, pull / inside


def _spectra(path: Path, point: _UnitFactors) -> Float:
    """The singular values of W at every record (k, ·); of factors σ_i(K) σ_i(Q), which may be tiny."""
    if point.diagonal:
        return np.asarray(-np.sort(-np.abs(np.diagonal(path.W, axis1=-2, axis2=-1)), axis=-1))
    if path.K is None or path.Q is None:
        return np.asarray(np.linalg.svd(path.W, compute_uv=False))
    of_K, of_Q = (np.linalg.svd(X, compute_uv=False) for X in (path.K, path.Q))
    count = min(of_K.shape[-1], of_Q.shape[-1])
    return np.asarray(of_K[..., :count] * of_Q[..., :count])
