"""Euclidean projections on norm balls and on circular cones, in JAX."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.norms import Entrywise, Norm, capabilities_of
from attsvm.training.programs import where

PROJECTED = ("entries", "singular values")
"""What a norm may act on for `project_ball` to know its ball."""

State = tuple[Array, Array, Array, Array, Array]


@dataclass(frozen=True)
class ProjectionLimits:
    """How exactly a point is projected."""

    radius: float = 1e-14  # relative accuracy of log ‖w‖_p after the projection on an lp ball
    trials: int = 200  # of Newton and bisection for it
    together: float = 1e-12  # radii by which ball and cone may differ after alternating projections
    rounds: int = 500  # of these


LIMITS = ProjectionLimits()


def project_ball(x: Array, norm: Norm, radius: Array) -> Array:
    """The point of {N(W) ≤ radius} nearest to x (d, e) or (d,).

    Entrywise balls act on the entries, Schatten balls on the singular values.
    """
    traits = capabilities_of(norm)
    if traits.euclidean:
        size = jnp.sqrt((x * x).sum())
        return x * where(size > radius, radius / where(size > 0, size, 1), 1)
    if traits.acts_on == "singular values" and x.ndim == 2:
        U, sigma, Vt = jnp.linalg.svd(x, full_matrices=False)
        return (U * _shrunk(sigma, norm.p, radius)) @ Vt
    flat = x.reshape(-1)
    return (jnp.sign(flat) * _shrunk(jnp.abs(flat), norm.p, radius)).reshape(x.shape)


def project_cone(x: Array, axis: Array, cosine: Array) -> Array:
    """The point of {⟨W, axis⟩ ≥ cosine ‖W‖} nearest to x; axis has unit length, 0 < cosine ≤ 1."""
    along = (x * axis).sum()
    across = x - along * axis
    width = jnp.sqrt((across * across).sum())
    sine = jnp.sqrt((1 - cosine) * (1 + cosine))
    edge = cosine * axis + sine * across / where(width > 0, width, 1)
    on_edge = jnp.maximum(cosine * along + sine * width, 0) * edge
    inside = along * sine >= cosine * width
    return where(inside & (along >= 0), x, on_edge)


def project_both(x: Array, norm: Norm, radius: Array, axis: Array, cosine: Array) -> Array:
    """The point of ball ∩ cone nearest to x, by Dykstra's alternating projections.

    Where the ball's projection already lies in the cone, the first round ends it. In the Frobenius
    norm the cone's projection followed by the ball's is exact.
    """
    if capabilities_of(norm).euclidean:
        return project_ball(project_cone(x, axis, cosine), norm, radius)

    def disagree(state: State) -> Array:
        count, _, _, _, gap = state
        return (count < LIMITS.rounds) & (gap > LIMITS.together * radius)

    def around(state: State) -> State:
        count, y, of_ball, of_cone, _ = state
        in_ball = project_ball(y + of_ball, norm, radius)
        in_cone = project_cone(in_ball + of_cone, axis, cosine)
        of_ball, of_cone = y + of_ball - in_ball, in_ball + of_cone - in_cone
        return count + 1, in_cone, of_ball, of_cone, jnp.abs(in_ball - in_cone).max()

    zero = jnp.zeros_like(x)
    start = (jnp.asarray(0), x, zero, zero, jnp.full_like(x, jnp.inf, shape=()))
    return lax.while_loop(disagree, around, start)[1]


def ball_of(norm: Norm, axes: int) -> Norm:
    """The norm that acts on a parameter: of a diagonal w (one axis) every norm of diag(w) is ‖w‖_p."""
    return norm if axes == 2 else Entrywise(norm.p)


# ---------------------------------------------------------------------- lp balls in the positive orthant


def _shrunk(size: Array, p: float, radius: Array) -> Array:
    """The projection of nonnegative numbers (m,) on the lp ball."""
    if p == jnp.inf:
        return jnp.minimum(size, radius)
    if p == 1:
        return _shrunk_l1(size, radius)
    if p == 2:
        return project_ball(size, Entrywise(2), radius)
    return radius * _shrunk_lp(size / radius, p)


def _shrunk_l1(size: Array, radius: Array) -> Array:
    """max(size − τ, 0) with the τ ≥ 0 that gives the sum `radius`, found by sorting."""
    falling = jnp.sort(size)[::-1]
    tau = (jnp.cumsum(falling) - radius) / jnp.arange(1, size.size + 1)
    return jnp.maximum(size - jnp.maximum(tau.max(), 0), 0)


def _shrunk_lp(size: Array, p: float) -> Array:
    """Projection on the unit ball: w + μ w^(p−1) = size with the μ ≥ 0 that gives ‖w‖_p = 1.

    Newton on log ‖w(μ)‖_p from μ = 0, which is one step from a point near the ball; bisection where
    Newton leaves the bracket 0 ≤ μ ≤ ‖size‖_q.
    """
    log_size = jnp.log(size)

    def excess(mu: Array) -> tuple[Array, Array]:
        """log ‖w(μ)‖ and minus its derivative, d log w/dμ = −w^(p−2) / (1 + (p−1) μ w^(p−2))."""
        u = _log_root(log_size, jnp.log(mu), p)
        weights = jax.nn.softmax(p * u)
        power = jnp.exp(where(weights > 0, (p - 2) * u, 0))
        return jax.nn.logsumexp(p * u) / p, (weights * power / (1 + (p - 1) * mu * power)).sum()

    def newton(state: State) -> State:
        count, mu, low, high, _ = state
        value, fall = excess(mu)
        low, high = where(value > 0, mu, low), where(value > 0, high, mu)
        ahead = mu + value / fall
        inside = (ahead > low) & (ahead < high)
        middle = where(low > 0, jnp.sqrt(low * high), high / 1024)
        settled = (jnp.abs(value) <= LIMITS.radius) | ((mu == 0) & (value < 0))  # the latter: inside the ball
        mu = where(settled, mu, where(inside, ahead, middle))
        return count + 1, mu, low, high, settled

    zero = jnp.zeros_like(size, shape=())
    q = p / (p - 1)
    high = 2 * jnp.exp(jax.nn.logsumexp(q * log_size) / q)
    start = (jnp.asarray(0), zero, zero, high, jnp.asarray(False))
    _, mu, *_ = lax.while_loop(lambda s: ~s[-1] & (s[0] < LIMITS.trials), newton, start)
    return jnp.exp(_log_root(log_size, jnp.log(mu), p))


def _log_root(log_size: Array, log_mu: Array, p: float) -> Array:
    """u = log w with w + μ w^(p−1) = size, by Halley steps on the convex log(e^u + μ e^((p−1)u)) − log size.

    The start is at most log 2 above the root in value, and the slopes lie between 1 and p − 1: four steps
    reach rounding for every size and μ if 1.01 ≤ p ≤ 100, where six of Newton's leave up to 2e-8.
    """
    finite = where(jnp.isfinite(log_size), log_size, 0)

    def halley(_: int, u: Array) -> Array:
        second = log_mu + (p - 1) * u
        share = jax.nn.sigmoid(second - u)
        slope, bend = 1 + (p - 2) * share, (p - 2) ** 2 * share * (1 - share)
        step = (jnp.logaddexp(u, second) - finite) / slope
        return u - step / (1 - step * bend / (2 * slope))

    u = lax.fori_loop(0, 4, halley, jnp.minimum(finite, (finite - log_mu) / (p - 1)))
    return where(jnp.isfinite(log_size), u, -jnp.inf)
