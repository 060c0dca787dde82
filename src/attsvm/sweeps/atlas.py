"""An atlas: which margin each training maximises, told by its share in every program. A record, and its page.

A study is one where `[show] atlas = true`; it measures `margin_ratio` in named norms, at the end and, by
`along`, at shares of the steps, and `arrival`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm import strict_json
from attsvm.pages import page as in_one_file
from attsvm.settings import Settings
from attsvm.sweeps.cell import ALWAYS, OPTIONAL
from attsvm.sweeps.intervals import mean
from attsvm.sweeps.measure import ARRIVED, parts
from attsvm.theory import NoTheorem, limit_norm
from attsvm.words import norm_of

if TYPE_CHECKING:
    from attsvm.numbers import Float
    from attsvm.sweeps.result import Sweep
    from attsvm.sweeps.store import Columns

DIGITS = 4
WAYS = ("weight", "optimizer", *ALWAYS, *OPTIONAL, "loss", "steps", "init")
"""What tells trainings apart; all other parameters are sizes of the data."""

WEIGHTS = {"full": "W", "kq": "K Qᵀ", "diagonal": "diagonal w", "diagonal_kq": "k ⊙ q"}
STEPS = {"frobenius": "gradient descent", "spectral": "Muon", "linf": "sign", "l1": "one coordinate"}
STEPS |= {"longest-row": "every row normalised"}


def record(done: Sweep) -> dict[str, Any]:
    """What the page shows, in plain numbers: medians, means with their intervals and least shares."""
    programs = [parts(name)[1] for name in done.facts["measures"] if _is_share(name)]
    along = sorted({parts(name)[2] for name in done.facts["measures"]} | {1.0})
    trainings: dict[str, dict[str, Any]] = {}
    edges = [*np.flatnonzero(np.diff(done.runs["cell"], prepend=-1)), len(done.runs["cell"])]
    for cell, start, stop in zip(done.cells, edges[:-1], edges[1:], strict=True):
        words = strict_json.plain(cell.words)
        way = {name: words[name] for name in WAYS if name in words}
        told = trainings.setdefault(
            name_of(way), {"words": way, "group": group_of(way), "theory": theory(way), "sizes": {}}
        )
        runs = {name: column[start:stop] for name, column in done.runs.items()}
        size = ", ".join(f"{k} = {v}" for k, v in words.items() if k not in WAYS and k != "model")
        kinds = {
            kind: _rounded(cell.quantities[kind].value) for kind in ("global", "local") if "kind" in runs
        }
        told["sizes"][size] = {
            "runs": cell.runs,
            **kinds,
            "shares": {program: _shares(runs, program, along) for program in programs},
        }
    facts = {name: done.facts[name] for name in ("title", "about", "scale", "name")}
    facts["again"] = f"attsvm sweep studies/{facts['name']}.toml --scale one"
    return {
        **facts,
        "programs": programs,
        "along": along,
        "runs": len(done.runs["cell"]),
        "trainings": trainings,
    }


def page(given: Mapping[str, Any]) -> str:
    """The record as one self-contained page: a table of colours, each cell of which opens its curves."""
    return in_one_file("attsvm.sweeps", "atlas.html", data=given)


def name_of(way: Mapping[str, Any]) -> str:
    """A training in the words of people who use it."""
    norm = str(way.get("norm", ""))
    family, _, p = norm.partition(":")
    steps = STEPS.get(norm) or (f"Schatten {p}" if family == "schatten" else f"l{p}")
    if way["optimizer"] == "mirror":
        steps = f"mirror descent, p = {p}"
    elif way["optimizer"] == "compositional":
        steps = f"compositional {steps}"
    elif way["optimizer"] != "steepest":
        steps = {"gd": "gradient descent, not normalised", "adam": "Adam"}.get(
            way["optimizer"], way["optimizer"]
        )
    if "b2" in way:
        steps += f", b2 {way['b2']:g}"
    if way.get("momentum"):
        steps = f"{'Signum' if norm == 'linf' else steps}, momentum {way['momentum']:g}"
    extra = [f"{name} {way[name]:g}" for name in ("decay", "batch") if way.get(name)]
    return ", ".join([f"{group_of(way)}: {steps}", *extra])


def group_of(way: Mapping[str, Any]) -> str:
    """What is trained."""
    name = WEIGHTS.get(way["weight"], way["weight"])
    if way.get("depth", 1) > 1:
        name = " ⊙ ".join(f"w{k}" for k in range(1, way["depth"] + 1))
    more = [f"rank {way['rank']}"] if way.get("rank") else []
    more += ["apart"] if way.get("separate") else []
    if way.get("heads"):
        more += [f"{way['heads']} heads {way.get('across', 'joint')}"]
    return ", ".join([name, *more])


def theory(way: Mapping[str, Any]) -> dict[str, str]:
    """The program that limit_norm names, and how well that is known; or why there is none."""
    known = {name: way[name] for name in Settings.__dataclass_fields__ if name in way}
    chosen = Settings(**known).arguments()
    try:
        limit = limit_norm(chosen["weight"], chosen["optimizer"])
    except NoTheorem as error:
        return {"why": str(error).split(". Nearest")[0]}
    needs = [*(["all inputs at every step"] if way.get("batch") else []), limit.hypotheses]
    return {"norm": str(limit.norm), "standing": limit.standing, "hypotheses": "; ".join(filter(None, needs))}


# ---------------------------------------------------------------------- details


def _is_share(name: str) -> bool:
    measure, norm, share = parts(name)
    return measure == "margin_ratio" and bool(norm) and share == 1


def _shares(runs: Columns, program: str, along: list[float]) -> dict[str, Any] | None:
    """Of the runs whose program was solved and certified; None where there is none."""
    ends: Float = runs[f"margin_ratio:{program}"].astype(float)
    known = np.isfinite(ends)
    if not known.any():
        return None
    ends, whole = ends[known], mean(ends)
    way = [ends if at == 1 else runs[f"margin_ratio:{program}@{at:g}"][known] for at in along]
    early = way[along.index(0.1)] if 0.1 in along else None
    steps = runs[f"arrival:{program}"][known] if f"arrival:{program}" in runs else np.zeros(0)
    there = steps[np.isfinite(steps)]
    return {
        "norm": str(norm_of(program)),
        "runs": int(known.sum()),
        "median": _rounded(np.median(ends)),
        "mean": [_rounded(x) for x in (whole.value, whole.low, whole.high)],
        "fifth": _rounded(np.quantile(ends, 0.05)),
        "least": _rounded(ends.min()),
        "curve": [[_rounded(np.quantile(at, q)) for q in (0.05, 0.5, 0.95)] for at in way],
        "arrived": _rounded((ends >= ARRIVED).mean()),
        "steps": float(np.median(there)) if len(there) else None,
        "rate": None if early is None else _rounded(_exponent(early, ends)),
    }


def _exponent(early: Float, ends: Float) -> float:
    """Median over runs of the exponent of 1 − share over the last decade of steps."""
    left = np.clip(1 - ends, 1e-12, None), np.clip(1 - early, 1e-12, None)
    return float(np.median(np.log10(left[0] / left[1])))


def _rounded(value: Any) -> float | None:
    return round(float(value), DIGITS) if np.isfinite(value) else None
