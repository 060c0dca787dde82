"""How wrong would it have to be? Every claim with a falsified program, run or number, until it is noticed:

    python benchmarks/claim_mutants.py [NAME …] [--seeds 0 1 2] [--out out/claim_mutants.json]

A mutant changes what a claim gets from the package, as a bug or a false theorem would: what `max_margin` and
its kin return, what `train` and `regularisation_path` return, or a fitted or counted number. It is noticed if
the claim no longer holds. Mutants with a size are tried at 20, 5 and 1 %; the smallest one noticed is kept,
0 where none is, and a mutant that a claim never meets is left out. Another norm, token, rule or fewer steps
must be noticed on one of the seeds: where every token is a support vector, all norms have one program.
Refuted claims are not looked at.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path as File
from typing import Any

import numpy as np

import attsvm as att
from attsvm.claims import by_module
from attsvm.claims.claim import Claim
from attsvm.training.train import record_steps

SIZES = (0.2, 0.05, 0.01)
PATIENCE = 60
"""Seconds after which a claim that still looks for its data has noticed."""
PROGRAMS = ("max_margin", "separate", "label_svm", "selections", "next_token.attention_program",
            "next_token.feed_forward_program", "next_token.graph_program", "joint_margin")  # fmt: skip
RUNS = ("train", "regularisation_path", "next_token.train_choice", "next_token.train_two_stages")
NUMBERS = ("fit_rate", "margin_ratio", "datasets.separable_share", "datasets.capacity", "finite_part",
           "next_token.collapse_exponent", "next_token.recover", "next_token.log_excess",
           "next_token.graph_finite_part", "datasets.LocationRisk.on_manifold")  # fmt: skip
CHOICES = ("separable", "all_tokens_support", "locally_optimal", "best_tokens")

# ---------------------------------------------------------------------- what is falsified


def turned(W: Any, size: float, axes: int = 2) -> Any:
    """W plus a part of relative length `size` in a direction of its own, the same at every record."""
    axis = tuple(range(-axes, 0))
    drawn = np.random.default_rng(5).standard_normal(W.shape[-axes:])
    drawn /= np.linalg.norm(drawn)
    return W + size * np.linalg.norm(W, axis=axis, keepdims=True) * drawn


def of_solution(change: Callable[[Any], Any], found: Any) -> Any:
    """The change of every weight in what a program returned."""
    if isinstance(found, list):
        return [of_solution(change, one) for one in found]
    if isinstance(found, att.JointMargin):
        return replace(found, bound=float(change(np.full((1, 1), found.bound))[0, 0]))
    return replace(found, W=change(found.W))


def of_path(change: Callable[[Any], Any], found: Any) -> Any:
    """The change of every trained array in what a training returned."""
    if not isinstance(found, att.Path):
        return replace(found, feed_forward=of_path(change, found.feed_forward),
                       attention=of_path(change, found.attention))  # fmt: skip
    parts = {name: getattr(found, name) for name in ("W", "K", "Q")}
    made = {name: change(part) for name, part in parts.items() if part is not None}
    if found.v is not None:
        made["v"] = change(found.v[..., None])[..., 0]
    return found.changed(**made)


def steeper(factor: float, found: Any) -> Any:
    """Losses that fall with another exponent."""
    if not isinstance(found, att.Path):
        return replace(found, attention=steeper(factor, found.attention))

    def loss() -> Any:
        return found.loss[..., :1] * (found.loss / found.loss[..., :1]) ** factor

    return found.changed(log_excess=lambda: factor * found.log_excess, loss=loss)


def other(norm: Any) -> Any:
    return att.linf if getattr(norm, "p", 0) == 2 else att.frobenius


def in_another_norm(solve: Any) -> Any:
    def found(*given: Any, **more: Any) -> Any:
        given, norm = given[:2], given[2] if len(given) > 2 else more.pop("norm", att.frobenius)
        return solve(*given, **more, norm=other(norm))

    return found


def of_another_token(solve: Any) -> Any:
    def found(tokens: Any, selected: Any, *given: Any, **more: Any) -> Any:
        chosen = np.array(selected)
        if chosen.dtype == bool:
            chosen[..., 0, :] = np.roll(chosen[..., 0, :], 1, axis=-1)
        else:
            chosen[..., 0] = (chosen[..., 0] + 1) % tokens.T
        return solve(tokens, chosen, *given, **more)

    return found


def by_another_rule(train: Any) -> Any:
    def found(*given: Any, **more: Any) -> Any:
        if "optimizer" in more:
            return train(*given, **more | {"optimizer": _other_rule(more["optimizer"])})
        if isinstance(more.get("weight"), att.KeyQuery):
            return train(*given, **more | {"weight": att.FullWeight(), "norm": att.frobenius})
        return train(*given, **more | {"norm": other(more.get("norm", att.frobenius))})

    return found


def _other_rule(optimizer: Any) -> Any:
    rule = optimizer.rule
    kind, lr = type(rule).__name__, getattr(rule, "lr", 1.0)
    if kind == "Steepest":
        return att.steepest(other(rule.norm), lr, rule.momentum, rule.decay)
    if kind == "Mirror":
        return att.mirror(3.0 if rule.p == 2 else 2.0, lr, rule.normalised)
    return att.gd(1.0) if kind == "Polyak" else att.steepest(att.frobenius, lr)


def at_a_tenth(train: Any) -> Any:
    """The run ten times as early, under the steps that were asked for."""

    def found(*given: Any, steps: int, record: Any = 50, **more: Any) -> Any:
        if steps < 20:
            return train(*given, steps=steps, record=record, **more)
        asked = np.asarray(record_steps(steps, record))
        early = np.unique(asked // 10)
        path = train(*given, steps=steps // 10, record=early.tolist(), **more)
        at = np.searchsorted(path.index, asked // 10)
        heads = int(path.heads is not None)
        cut = {n: np.take(a, at, axis=-3 - heads) for n in "WKQ" if (a := getattr(path, n)) is not None}
        if path.v is not None:
            cut["v"] = np.take(path.v, at, axis=-2 - heads)
        return path.changed(index=asked, loss=path.loss[..., at], log_excess=path.log_excess[..., at], **cut)

    return found


def scaled(factor: float, found: Any) -> Any:
    if hasattr(found, "exponent"):
        return replace(found, exponent=factor * found.exponent)
    return replace(found, logits=factor * found.logits) if hasattr(found, "logits") else factor * found


def flipped(size: float, rng: np.random.Generator, found: Any) -> Any:
    """A share of the answers yes and no, or of the selected tokens, is wrong."""
    found = np.array(found)
    if found.ndim < 2:
        return found ^ (rng.random(found.shape) < size)
    return np.where(rng.random(found.shape[:-1])[..., None] < size, np.roll(found, 1, -1), found)


def after(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda call: lambda *given, **more: change(call(*given, **more))


MUTANTS: dict[str, tuple[tuple[str, ...], Callable[[float], Any]]] = {
    "program turned": (PROGRAMS, lambda e: after(partial(of_solution, partial(turned, size=e)))),
    "program longer": (PROGRAMS, lambda e: after(partial(of_solution, lambda W: (1 + e) * W))),
    "program shorter": (PROGRAMS, lambda e: after(partial(of_solution, lambda W: (1 - e) * W))),
    "run turned": (RUNS, lambda e: after(partial(of_path, partial(turned, size=e)))),
    "run longer": (RUNS, lambda e: after(partial(of_path, lambda W: (1 + e) * W))),
    "run shorter": (RUNS, lambda e: after(partial(of_path, lambda W: (1 - e) * W))),
    "loss steeper": (RUNS, lambda e: after(partial(steeper, 1 + e))),
    "loss flatter": (RUNS, lambda e: after(partial(steeper, 1 - e))),
    "number larger": (NUMBERS, lambda e: after(partial(scaled, 1 + e))),
    "number smaller": (NUMBERS, lambda e: after(partial(scaled, 1 - e))),
    "answers flipped": (CHOICES, lambda e: after(partial(flipped, e, np.random.default_rng(7)))),
}
WHOLE: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "program of another norm": (("max_margin",), in_another_norm),
    "program of another token": (("max_margin",), of_another_token),
    "run of another rule": (("train", "regularisation_path"), by_another_rule),
    "run at a tenth of its steps": (("train",), at_a_tenth),
}

# ---------------------------------------------------------------------- whether it is noticed


@contextmanager
def falsified(names: tuple[str, ...], change: Callable[[Any], Any]) -> Iterator[list[str]]:
    """The named functions of the package, changed; which of them were called."""
    kept, called = [], []

    def watched(name: str, call: Any) -> Any:
        return lambda *given, **more: called.append(name) or call(*given, **more)

    for name in names:
        *places, last = name.split(".")
        home: Any = att
        for place in places:
            home = getattr(home, place)
        kept.append((home, last, getattr(home, last)))
        setattr(home, last, watched(name, change(getattr(home, last))))
    try:
        yield called
    finally:
        for home, last, call in kept:
            setattr(home, last, call)


def remembered(call: Any, known: dict[Any, Any]) -> Any:
    """The same call without computing twice: most mutants change what comes out, not what goes in."""

    def found(*given: Any, **more: Any) -> Any:
        key = call.__name__, _told((given, more))
        if key not in known:
            known[key] = call(*given, **more)
        return known[key]

    return found


def _told(thing: Any) -> Any:
    """Something that is equal for equal arguments."""
    if isinstance(thing, np.ndarray) or type(thing).__module__.startswith("jax"):
        return np.asarray(thing).tobytes(), np.shape(thing)
    if isinstance(thing, dict):
        return tuple((name, _told(part)) for name, part in sorted(thing.items()))
    if isinstance(thing, tuple | list):
        return tuple(_told(part) for part in thing)
    return (
        (type(thing).__name__, _told(vars(thing))) if hasattr(thing, "__dataclass_fields__") else repr(thing)
    )


def verdict(claim: Claim, seed: int) -> str:
    for module in [m for name, m in sys.modules.items() if name.startswith("attsvm.claims.")]:
        for part in vars(module).values():
            if hasattr(part, "cache_clear") and getattr(part, "__module__", "") == module.__name__:
                part.cache_clear()
    signal.alarm(PATIENCE)
    try:
        return claim(seed).status
    except Exception as error:  # a claim that breaks has noticed
        return type(error).__name__
    finally:
        signal.alarm(0)


def _too_long(*_: Any) -> None:
    raise TimeoutError("a draw that meets the hypotheses is sought for ever")


def meets(claim: Claim, seeds: Sequence[int], names: tuple[str, ...], change: Any) -> bool | None:
    """Whether the claim no longer holds on one of the seeds; None if it never calls what is changed."""
    for seed in seeds:
        with falsified(names, change) as called:
            status = verdict(claim, seed)
        if not called:
            return None
        if status != "holds":
            return True
    return False


def noticed(claim: Claim, seeds: Sequence[int]) -> dict[str, float]:
    """The smallest size of every mutant at which the claim no longer holds; whole mutants are 1 or 0."""
    found: dict[str, float] = {}
    for name, (what, change) in MUTANTS.items():
        for size in SIZES:
            met = meets(claim, seeds[:1], what, change(size))
            if met is not None:
                found[name] = size if met else found.get(name, 0.0)
            if not met:
                break
    for name, (what, change) in WHOLE.items():
        met = meets(claim, seeds, what, change)
        if met is not None:
            found[name] = float(met)
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*")
    asked.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked.add_argument("--out", type=File, default=File("out/claim_mutants.json"))
    given = asked.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    table = json.loads(given.out.read_text(encoding="utf8")) if given.out.exists() else {}
    known: dict[Any, Any] = {}
    for name in (*PROGRAMS[:3], *RUNS[:2]):
        setattr(att, name, remembered(getattr(att, name), known))
    claims = [one for group in by_module().values() for one in group if not one.refuted]
    for claim in claims:
        if given.names and not {claim.name, claim.check.__module__.split(".")[-1]} & set(given.names):
            continue
        known.clear()
        seeds = [seed for seed in given.seeds if verdict(claim, seed) == "holds"]
        table[claim.name] = noticed(claim, seeds)
        print(claim.name, table[claim.name], flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(table, indent=1), encoding="utf8")


if __name__ == "__main__":
    main()
