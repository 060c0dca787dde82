"""K, Q, V and O trained together by an independent trainer: does attention follow the offset program?

    python lab/experiments/key_query_value_output.py [--seeds 16] [--steps 30000]     # minutes on one core

W = K Qᵀ and v = V o. Every matrix takes normalised steps of its own, GD or Muon, so that both products grow
like the square of the rates. Gradients are exact past saturation, by logarithms. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attsvm as att
from attsvm_lab import programs
from values_and_outputs import interval

jax.config.update("jax_enable_x64", True)
RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
RATE, FALL, START = 0.1, 0.55, 0.1
IMPLIED = {"GD": att.nuclear, "Muon": att.spectral}


def gradients(params: dict[str, Any], data: tuple[Any, ...]) -> dict[str, Any]:
    """Gradients of the mean logistic loss, each up to a positive factor."""
    X, Z, y = data
    W, v = params["K"] @ params["Q"].T, params["V"] @ params["o"]
    logits = jnp.einsum("ntd,de,ne->nt", X, W, Z)
    score = y[:, None] * (X @ v)
    winner = logits.argmax(1)
    relative = logits - logits.max(1, keepdims=True)
    losing = jnp.arange(X.shape[1]) != winner[:, None]
    first = jnp.take_along_axis(X, winner[:, None, None], 1)
    g = jnp.where(losing, score - jnp.take_along_axis(score, winner[:, None], 1), 0.0)
    odds = jnp.where(losing, jnp.exp(relative), 0.0)
    share = 1 / (1 + odds.sum(1))
    drop = share * (odds * g).sum(1)
    margin = jnp.take_along_axis(score, winner[:, None], 1)[:, 0] + drop
    log_slope = -jax.nn.softplus(margin)
    top = jnp.where(losing, relative, -jnp.inf).max(1)
    log_weight = log_slope + top
    weight = jnp.exp(log_weight - log_weight.max())
    # s_t (g_t − ḡ) without e^top: no difference of saturated weights.
    pull = jnp.where(losing, jnp.exp(relative - top[:, None]), 0.0) * share[:, None] * (g - drop[:, None])
    along = jnp.einsum("nt,ntd->nd", weight[:, None] * pull, X - first)
    of_W = -jnp.einsum("nd,ne->de", along, Z)
    attended = first[:, 0] + share[:, None] * jnp.einsum("nt,ntd->nd", odds, X - first)
    of_v = -((jnp.exp(log_slope - log_slope.max()) * y)[:, None] * attended).sum(0)
    return {
        "K": of_W @ params["Q"],
        "Q": of_W.T @ params["K"],
        "V": jnp.outer(of_v, params["o"]),
        "o": params["V"].T @ of_v,
    }


def normalised(G: Any, muon: bool) -> Any:
    """The steepest direction: U Vᵀ for Muon on a matrix, G/‖G‖ else."""
    if not muon or G.ndim == 1:
        return G / jnp.maximum(jnp.linalg.norm(G), 1e-300)
    U, sigma, Vt = jnp.linalg.svd(G / jnp.maximum(jnp.abs(G).max(), 1e-300), full_matrices=False)
    return (U * (sigma > 1e-12 * sigma[0])) @ Vt


@partial(jax.jit, static_argnames=("muon", "steps"))
def run(params: dict[str, Any], data: tuple[Any, ...], ratio: Any, muon: bool, steps: int) -> Any:
    """The parameters after half of the steps, and after all."""

    def step(params: dict[str, Any], k: Any) -> tuple[dict[str, Any], None]:
        rate = RATE * (k + 1.0) ** -FALL
        rates = {"K": rate, "Q": rate, "V": ratio * rate, "o": ratio * rate}
        grads = gradients(params, data)
        return {name: params[name] - rates[name] * normalised(grads[name], muon) for name in params}, None

    middle, _ = jax.lax.scan(step, params, jnp.arange(steps // 2))
    return middle, jax.lax.scan(step, middle, jnp.arange(steps // 2, steps))[0]


def started(seed: int, d: int) -> dict[str, Any]:
    rng = np.random.default_rng([7, seed])
    shapes = {"K": (d, d), "Q": (d, d), "V": (d, d), "o": (d,)}
    return {name: START * rng.standard_normal(shape) for name, shape in shapes.items()}


def judged(name: str, tokens: att.Tokens, both: list[dict[str, Any]]) -> dict[str, float] | None:
    """Shares of the offset program and of the plain margin; None where the selection still changed."""
    norm, shares, chosen, lengths = IMPLIED[name], [], [], []
    for params in both:
        W, v = (np.asarray(params[a] @ params[b]) for a, b in (("K", "QT"), ("V", "o")))
        logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
        chosen.append(logits.argmax(1))
        label = tokens.labels * (tokens.values[np.arange(tokens.n), chosen[-1]] @ v)
        lengths.append(float(norm.value(W)))
        best = programs.offset_margin(tokens, chosen[-1], norm, offsets=label / lengths[-1])
        shares.append(100 * best.share(W))
    if (chosen[0] != chosen[1]).any():
        return None
    try:
        solution = att.max_margin(tokens, chosen[1], norm)
        plain = float(np.min(solution.constraints.token_margins(W)[solution.constraints.separating]))
        plain *= 100 / lengths[1] / float(solution.margin)
    except att.NotSeparable:
        plain = np.nan
    return {
        "share": shares[1],
        "limit": (lengths[1] * shares[1] - lengths[0] * shares[0]) / (lengths[1] - lengths[0]),
        "plain": plain,
        "ratio": float(np.linalg.norm(v)) / lengths[1],
        "negative": bool(best.above.any()),
        "certified": best.certified,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=5300)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--rules", nargs="+", default=list(IMPLIED))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", att.NotCertified)
    rows, d = [], 6
    for name in options.rules:
        for ratio in RATIOS:
            runs = []
            for seed in range(options.first, options.first + options.seeds):
                tokens, _ = att.datasets.sphere(options.n, 4, d, seed=seed)
                data = tokens.keys, tokens.queries, tokens.labels
                both = run(started(seed, d), data, ratio, name == "Muon", options.steps)
                runs.append(judged(name, tokens, [{**one, "QT": one["Q"].T} for one in both]))
            rows.append({"rule": name, "ratio": ratio, "runs": runs})
            print(line(name, ratio, runs), flush=True)
    if options.record:
        options.record.write_text(json.dumps(rows, indent=1))


def line(name: str, ratio: float, runs: list[dict[str, float] | None]) -> str:
    settled = [one for one in runs if one is not None]
    clean = [one for one in settled if not one["negative"]]
    words = [name, f"{ratio:g}", f"{len(clean)} of {len(runs)}"]
    for key in ("ratio", "share", "limit", "plain"):
        values = [one[key] for one in clean if np.isfinite(one[key])]
        words.append("{:.3g} ({:.3g} – {:.3g})".format(*interval(values)) if values else "–")
    return f"| {' | '.join(words)} | {len(settled) - len(clean)} |"


if __name__ == "__main__":
    main()
