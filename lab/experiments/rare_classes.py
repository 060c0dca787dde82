"""Rare classes: which of QK and VO must be trained by Muon to help them, where Adam trains the rest?

    python lab/experiments/rare_classes.py --task recall     # minutes on one core
    python lab/experiments/rare_classes.py --task marker

recall   The query of class c must find the token of class c among others, so QK stores a pair per class; the
         label of class c must be read from it, so VO does, too.
marker   All queries are alike, and the token to find has a mark that all classes share: QK stores one rule,
         VO a pair per class.

Classes come as often as 1/rank, or all alike (the control). Every pair
(QK, VO) of Adam and Muon has rates of its own, the best of a grid for the mean loss on tuning seeds. The
table is of fresh seeds, contexts and initial weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

C, T, D, BATCH = 96, 6, 32, 64
RULES = ("Adam", "Muon")
PAIRS = tuple(itertools.product(RULES, RULES))
RATES = {"Adam": (0.003, 0.01, 0.03, 0.1, 0.3), "Muon": (0.01, 0.03, 0.1, 0.3, 1.0)}
TAIL = C // 4
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def frequencies(power: float) -> Any:
    p = jnp.arange(1, C + 1.0) ** -power
    return p / p.sum()


def drawn(key: Any, embeddings: Any, classes: Any, task: str) -> tuple[Any, Any]:
    """Tokens (n, T, D), the class's own first, then others; queries (n, D)."""
    others = jax.random.randint(key, (len(classes), T - 1), 1, C)
    content = jnp.concatenate([classes[:, None], (classes[:, None] + others) % C], 1)
    X = embeddings["token"][content]
    if task == "recall":
        return X, embeddings["query"][classes]
    return X.at[:, 0].add(embeddings["query"][0]), embeddings["query"][jnp.ones_like(classes)]


def log_probabilities(params: Any, X: Any, Z: Any) -> Any:
    attention = jax.nn.softmax(jnp.einsum("ntd,dm,nm->nt", X, params["K"], Z @ params["Q"]), -1)
    return jax.nn.log_softmax(jnp.einsum("nt,ntd->nd", attention, X) @ params["V"] @ params["O"])


def loss(params: Any, X: Any, Z: Any, classes: Any) -> Any:
    return -jnp.take_along_axis(log_probabilities(params, X, Z), classes[:, None], 1).mean()


def polar(G: Any) -> Any:
    """Five Newton–Schulz steps, as Muon is used."""
    G = G / (jnp.linalg.norm(G) + 1e-12)
    wide = G.shape[0] > G.shape[1]
    G = G.T if wide else G
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        A = G @ G.T
        G = a * G + (b * A + c * A @ A) @ G
    return G.T if wide else G


def stepped(rule: str, G: Any, state: Any, t: Any) -> tuple[Any, Any]:
    """A step of unit rate: Adam's, or Muon's with Nesterov momentum at Adam's root mean square, 0.2."""
    m, s = state
    if rule == "Muon":
        m = 0.95 * m + G
        return polar(G + 0.95 * m) * 0.2 * max(G.shape) ** 0.5, (m, s)
    m, s = 0.9 * m + 0.1 * G, 0.95 * s + 0.05 * G * G
    return (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.95**t)) + 1e-8), (m, s)


@partial(jax.jit, static_argnames=("pair", "steps", "task"))
def run(seed: Any, rates: Any, power: Any, pair: tuple[str, str], steps: int, task: str) -> dict[str, Any]:
    """Accuracy and loss of every class on fresh contexts, after training."""
    keys = jax.random.split(jax.random.key(seed), 8)
    unit = lambda key: (x := jax.random.normal(key, (C, D))) / jnp.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    embeddings = {"token": unit(keys[0]), "query": unit(keys[1])}
    shapes = {"K": (D, D), "Q": (D, D), "V": (D, D), "O": (D, C)}
    params = {
        name: 0.3 * jax.random.normal(key, shape) / D**0.5
        for key, (name, shape) in zip(keys[2:6], shapes.items(), strict=True)
    }
    rule = {"K": pair[0], "Q": pair[0], "V": pair[1], "O": pair[1]}
    rate = {"K": rates[0], "Q": rates[0], "V": rates[1], "O": rates[1]}
    state = {name: (jnp.zeros(shape), jnp.zeros(shape)) for name, shape in shapes.items()}
    log_p = jnp.log(frequencies(power))

    def step(carry: Any, t: Any) -> tuple[Any, None]:
        params, state = carry
        draw, context = jax.random.split(jax.random.fold_in(keys[6], t))
        classes = jax.random.categorical(draw, log_p, shape=(BATCH,))
        grads = jax.grad(loss)(params, *drawn(context, embeddings, classes, task), classes)
        fall = 1 - t / steps
        new = {name: stepped(rule[name], grads[name], state[name], t + 1.0) for name in params}
        params = {name: params[name] - fall * rate[name] * new[name][0] for name in params}
        return (params, {name: new[name][1] for name in new}), None

    (params, _), _ = jax.lax.scan(step, (params, state), jnp.arange(steps))
    classes = jnp.repeat(jnp.arange(C), 16)
    X, Z = drawn(keys[7], embeddings, classes, task)
    logits = log_probabilities(params, X, Z)
    right = (logits.argmax(1) == classes).reshape(C, 16).mean(1)
    attention = jax.nn.softmax(jnp.einsum("ntd,dm,nm->nt", X, params["K"], Z @ params["Q"]), -1)
    return {
        "accuracy": right,
        "loss": -jnp.take_along_axis(logits, classes[:, None], 1).reshape(C, 16).mean(1),
        "found": (attention.argmax(1) == 0).reshape(C, 16).mean(1),
    }


def measured(
    seeds: range, rates: Any, power: float, pair: tuple[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    one = partial(run, pair=pair, steps=options.steps, task=options.task)
    each = jax.vmap(lambda seed: one(seed, jnp.array(rates), power))(jnp.array(seeds))
    return {name: np.asarray(value) for name, value in each.items()}


def tuned(power: float, pair: tuple[str, str], options: argparse.Namespace) -> tuple[float, float]:
    """The rates of QK and VO with the least mean loss, classes weighted by their frequency."""
    seeds, p = range(options.tuning), np.asarray(frequencies(power))
    grid = list(itertools.product(RATES[pair[0]], RATES[pair[1]]))
    losses = [
        float(np.nan_to_num(measured(seeds, rates, power, pair, options)["loss"] @ p, nan=99).mean())
        for rates in grid
    ]
    return grid[int(np.argmin(losses))]


def interval(values: Any) -> list[float]:
    """The mean over seeds, with its 95 % interval by resampling."""
    values = np.asarray(values)
    means = np.random.default_rng(0).choice(values, (4000, len(values))).mean(1)
    return [float(values.mean()), *np.quantile(means, [0.025, 0.975]).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["recall", "marker"], default="recall")
    parser.add_argument("--seeds", type=int, default=48)
    parser.add_argument("--first", type=int, default=7000)
    parser.add_argument("--tuning", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--powers", type=float, nargs="+", default=[1.0, 0.0])
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows, began = [], time.process_time()
    for power in options.powers:
        tail: dict[tuple[str, str], Any] = {}
        for pair in PAIRS:
            rates = tuned(power, pair, options)
            seeds = range(options.first, options.first + options.seeds)
            result = measured(seeds, rates, power, pair, options)
            p = np.asarray(frequencies(power))
            row = {"task": options.task, "power": power, "QK": pair[0], "VO": pair[1], "rates": rates}
            row["loss"] = interval(result["loss"] @ p)
            for name in ("accuracy", "found"):
                row[f"{name}, most frequent quarter"] = interval(100 * result[name][:, :TAIL].mean(1))
                row[f"{name}, rarest quarter"] = interval(100 * result[name][:, -TAIL:].mean(1))
            tail[pair] = 100 * result["accuracy"][:, -TAIL:].mean(1)
            rows.append(row)
            print(json.dumps(row), f"{time.process_time() - began:.0f} s", flush=True)
        AA, AM, MA, MM = (tail[pair] for pair in PAIRS)
        effects = {
            "task": options.task,
            "power": power,
            "points of the rarest quarter by Muon on VO": interval((AM + MM - AA - MA) / 2),
            "points of the rarest quarter by Muon on QK": interval((MA + MM - AA - AM) / 2),
        }
        rows.append(effects)
        print(json.dumps(effects), flush=True)
    if options.record:
        settings = {"seeds": options.seeds, "first": options.first, "steps": options.steps}
        record = {"settings": settings, "rows": rows, "cpu_seconds": round(time.process_time() - began)}
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
