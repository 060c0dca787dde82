"""How wrong would it have to be? Every claim with a falsified program, run or number, until it is noticed:

    python lab/benchmarks/claim_mutants.py [NAME …] [--seeds 0 1] [--out out/claim_mutants.json]

A mutant changes what a claim gets from the package, as a bug or a false theorem would, and is noticed if the
claim no longer holds. Those with a size are tried at 20, 5 and 1 %; kept is the smallest that is noticed, 0
where none is. Others are 1 or 0, and must be noticed on one of the seeds: where every token is a support
vector, all norms have one program. What a claim never meets is left out, and so are refuted claims. Prints
the rows of docs/claims_strength.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import numpy as np

import attsvm as att
from attsvm.training.inputs import record_steps
from attsvm_lab import datasets as neighbours, programs
from attsvm_lab.claims import by_module
from attsvm_lab.claims.claim import Claim

SIZES = (0.2, 0.05, 0.01)
PATIENCE = 30
"""Seconds after which a claim that still looks for its data has noticed."""
RUNS = ("train", "regularisation_path", "next_token.train_choice", "next_token.train_two_stages")
HOMES: dict[str, Any] = {"programs": programs, "neighbours": neighbours}
"""Modules of the laboratory by the first part of a name; other names are those of the package."""
NUMBERS = (
    *("programs.fit_rate", "finite_part", "neighbours.separable_share", "neighbours.capacity"),
    *("neighbours.LocationRisk.on_manifold", "programs.collapse_exponent", "next_token.recover"),
    *("next_token.log_excess", "next_token.graph_finite_part"),
)

# ---------------------------------------------------------------------- what is falsified: call, size → call


def turned(call: Any, size: float) -> Any:
    """Every weight gets a part of this relative length in another direction, the same at every record."""

    def change(W: Any) -> Any:
        drawn = np.random.default_rng(5).standard_normal(W.shape[-2:])
        return W + size * np.linalg.norm(W, axis=(-2, -1), keepdims=True) * drawn / np.linalg.norm(drawn)

    return lambda *arguments, **options: _changed(call(*arguments, **options), change)


def scaled(call: Any, size: float) -> Any:
    return lambda *arguments, **options: _changed(call(*arguments, **options), lambda W: (1 + size) * W)


def _changed(result: Any, change: Callable[[Any], Any]) -> Any:
    """A path, two of them, a solution, or a number with other values."""
    if hasattr(result, "feed_forward"):
        names = ("feed_forward", "attention")
        return replace(result, **{name: _changed(getattr(result, name), change) for name in names})
    if isinstance(result, att.Path):
        changed_arrays = {name: change(a) for name in "WKQ" if (a := getattr(result, name)) is not None}
        return result.changed(
            **changed_arrays, v=None if result.v is None else change(result.v[..., None])[..., 0]
        )
    name = next((name for name in ("W", "exponent", "logits") if hasattr(result, name)), None)
    return replace(result, **{name: change(getattr(result, name))}) if name else change(result)


def flipped(call: Any, size: float) -> Any:
    """A share of the answers yes and no, or of the selected tokens, is wrong."""
    rng = np.random.default_rng(7)

    def changed_call(*arguments: Any, **options: Any) -> Any:
        answer = np.array(call(*arguments, **options))
        if answer.ndim < 2:
            return answer ^ (rng.random(answer.shape) < size)
        return np.where(rng.random(answer.shape[:-1])[..., None] < size, np.roll(answer, 1, -1), answer)

    return changed_call


def _other_norm(norm: Any) -> Any:
    return att.linf if getattr(norm, "p", 0) == 2 else att.frobenius


def other_norm(call: Any, _: float) -> Any:
    return lambda tokens, selected, norm=att.frobenius, **options: call(
        tokens, selected, _other_norm(norm), **options
    )


def other_token(call: Any, _: float) -> Any:
    def changed_call(tokens: Any, selected: Any, *arguments: Any, **options: Any) -> Any:
        changed_selection = np.array(selected)
        if changed_selection.dtype == bool:
            changed_selection[..., 0, :] = np.roll(changed_selection[..., 0, :], 1, axis=-1)
        else:
            changed_selection[..., 0] = (changed_selection[..., 0] + 1) % tokens.T
        return call(tokens, changed_selection, *arguments, **options)

    return changed_call


def other_rule(call: Any, _: float) -> Any:
    def changed_call(*arguments: Any, **options: Any) -> Any:
        if "optimizer" not in options:  # a path of radii: another ball
            reference = {"weight": att.FullWeight(), "norm": _other_norm(options.get("norm", att.frobenius))}
            return call(*arguments, **options | reference)
        rule = options["optimizer"].rule
        kind, lr = type(rule).__name__, getattr(rule, "lr", 1.0)
        changed_rule = att.gd(1.0) if kind == "Polyak" else att.steepest(att.frobenius, lr)
        if kind == "Steepest":
            changed_rule = att.steepest(_other_norm(rule.norm), lr, rule.momentum, rule.decay)
        if kind == "Mirror":
            changed_rule = att.mirror(3.0 if rule.p == 2 else 2.0, lr, rule.normalised)
        return call(*arguments, **options | {"optimizer": changed_rule})

    return changed_call


def a_tenth(call: Any, _: float) -> Any:
    """The run ten times as early, under the steps that were asked for."""

    def changed_call(*arguments: Any, steps: int, record: Any = 50, **options: Any) -> Any:
        if steps < 20:
            return call(*arguments, steps=steps, record=record, **options)
        recorded = np.asarray(record_steps(steps, record))
        path = call(*arguments, steps=steps // 10, record=np.unique(recorded // 10).tolist(), **options)
        at, heads = np.searchsorted(path.index, recorded // 10), path.heads is not None
        cut = {n: np.take(a, at, axis=-3 - heads) for n in "WKQ" if (a := getattr(path, n)) is not None}
        cut |= {"loss": path.loss[..., at], "log_excess": path.log_excess[..., at]}
        v = None if path.v is None else np.take(path.v, at, axis=-2 - heads)
        return path.changed(index=recorded, v=v, **cut)

    return changed_call


MUTANTS: dict[str, tuple[Any, Sequence[str], Sequence[float]]] = {
    "other norm": (other_norm, ("max_margin",), ()),
    "other token": (other_token, ("max_margin",), ()),
    "program turned": (turned, ("max_margin", "separate", "label_svm"), SIZES),
    "other rule": (other_rule, RUNS[:2], ()),
    "tenth of the steps": (a_tenth, RUNS[:1], ()),
    "run turned": (turned, RUNS, SIZES),
    "run longer": (scaled, RUNS, SIZES),
    "run shorter": (scaled, RUNS, [-size for size in SIZES]),
    "number larger": (scaled, NUMBERS, SIZES),
    "number smaller": (scaled, NUMBERS, [-size for size in SIZES]),
    "answers flipped": (
        flipped,
        ("separable", "programs.all_tokens_support", "locally_optimal", "best_tokens"),
        SIZES,
    ),
}

# ---------------------------------------------------------------------- whether it is noticed


@contextmanager
def falsified(change: Any, names: Sequence[str], size: float) -> Iterator[list[str]]:
    """The named functions of the package, changed; which of them were called."""
    originals, called = [], []

    def watched(name: str, call: Any) -> Any:
        return lambda *arguments, **options: called.append(name) or call(*arguments, **options)

    for name in names:
        *places, last = name.split(".")
        home: Any = HOMES.get(places[0], att) if places else att
        for place in places if home is att else places[1:]:
            home = getattr(home, place)
        originals.append((home, last, getattr(home, last)))
        setattr(home, last, watched(name, change(getattr(home, last), size)))
    try:
        yield called
    finally:
        for home, last, call in originals:
            setattr(home, last, call)


def verdict(claim: Claim, seed: int) -> str:
    for name, module in list(sys.modules.items()):
        for value in list(vars(module).values()) if name.startswith("attsvm_lab.") else ():
            if hasattr(value, "cache_clear") and getattr(value, "__module__", "") == name:
                value.cache_clear()
    signal.alarm(PATIENCE)
    try:
        return claim(seed).status
    except Exception as error:  # a claim that breaks has noticed
        return type(error).__name__
    finally:
        signal.alarm(0)


def noticed(claim: Claim, seeds: Sequence[int]) -> dict[str, float]:
    """Of every mutant that the claim meets the smallest size at which it no longer holds."""
    shares: dict[str, float] = {}
    for name, (change, names, sizes) in MUTANTS.items():
        for size in sizes or (1.0,):
            called, status = [], "holds"
            for seed in seeds[: 1 if sizes else None]:
                if status == "holds":
                    with falsified(change, names, size) as called:
                        status = verdict(claim, seed)
            if called:
                shares[name] = abs(size) if status != "holds" else shares.get(name, 0.0)
            if status == "holds":
                break
    return shares


def _too_long(*_: Any) -> None:
    raise TimeoutError("no draw meets the hypotheses")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=File, default=File("out/claim_mutants.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    table = json.loads(options.out.read_text(encoding="utf8")) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for module, group in by_module().items():
        for claim in group:
            if claim.refuted or (options.names and not {claim.name, module} & set(options.names)):
                continue
            seeds = [seed for seed in options.seeds if verdict(claim, seed) == "holds"]
            if not seeds:
                print(f"{claim.name} does not hold on these seeds, or not in {PATIENCE} s", file=sys.stderr)
                continue
            shares = noticed(claim, seeds)
            marks = {1: "✓", 0: "–", None: "·"}
            shown = [marks.get(size := shares.get(name), f"{100 * (size or 0):g} %") for name in MUTANTS]
            print(f"| `{claim.name}` | {' | '.join(shown)} |", flush=True)
            options.out.write_text(json.dumps(table | {claim.name: shares}, indent=1), encoding="utf8")
            table[claim.name] = shares


if __name__ == "__main__":
    main()
