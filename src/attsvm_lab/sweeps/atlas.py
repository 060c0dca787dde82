"""An atlas: which margin each training maximises, measured by its margin ratio in every program.

A study with `[show] atlas = true` has an atlas: a record, and its page. The study measures `margin_ratio` in
named norms, at the end and, by `along`, at shares of the steps, and `arrival`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm import NoTheorem, limit_norm
from attsvm._support import strict_json
from attsvm._support.pages import page as in_one_file
from attsvm.cli.settings import Settings
from attsvm.norms.names import norm_of
from attsvm_lab.sweeps.cell import ALWAYS, OPTIONAL
from attsvm_lab.sweeps.intervals import bounds, mean
from attsvm_lab.sweeps.measure import ARRIVED, parse_measure
from attsvm_lab.sweeps.table import Table

if TYPE_CHECKING:
    from attsvm.numbers import Float
    from attsvm_lab.sweeps.store import Columns

DIGITS = 4
TRAINING = ("weight", "optimizer", *ALWAYS, *OPTIONAL, "loss", "steps", "init")
"""The parameters of a training; all other parameters are sizes of the data."""

WEIGHTS = {"full": "W", "kq": "K Qᵀ", "diagonal": "diagonal w", "diagonal_kq": "k ⊙ q"}
STEPS = {"frobenius": "gradient descent", "spectral": "Muon", "linf": "sign", "l1": "one coordinate"}
STEPS |= {"longest-row": "every row normalised"}

JOINT = "joint program"
"""The column of heads that the optimizer takes together: all of them in the norm that this implies."""


def record(study: Table) -> dict[str, Any]:
    """The content of the page: medians, means with their intervals, and minima of margin ratios.

    shares: over the runs that are judged in every program, so that columns compare. of all runs: of programs
    that judge more, those at the end.
    """
    programs = [parse_measure(name)[1] for name in study.facts["measures"] if _is_final_ratio(name)]
    along = sorted({parse_measure(name)[2] for name in study.facts["measures"]} | {1.0})
    trainings: dict[str, dict[str, Any]] = {}
    for cell, rows in zip(study.cells, study.rows_of_cells, strict=True):
        parameters = strict_json.plain(cell.words)
        training = {name: parameters[name] for name in TRAINING if name in parameters}
        entry = trainings.setdefault(
            name_of(training),
            {"words": training, "group": group_of(training), "theory": theory(training), "sizes": {}},
        )
        runs = {name: column[rows] for name, column in study.runs.items()}
        size = ", ".join(f"{k} = {v}" for k, v in parameters.items() if k not in TRAINING and k != "model")
        kinds = {
            kind: _rounded(cell.quantities[kind].value) for kind in ("global", "local") if "kind" in runs
        }
        judged = {name: np.isfinite(runs[f"margin_ratio:{name}"].astype(float)) for name in programs}
        in_all = np.logical_and.reduce(
            [mask for mask in judged.values() if mask.any()], initial=cell.runs > 0
        )
        common = {name: column[in_all] for name, column in runs.items()}
        entry["sizes"][size] = {
            "runs": cell.runs,
            **kinds,
            "shares": {program: _shares(common, program, along) for program in programs},
            "of all runs": {
                name: _shares(runs, name, [1.0]) for name in programs if judged[name].sum() > in_all.sum()
            },
        }
    facts = {name: study.facts[name] for name in ("title", "about", "scale", "name")}
    facts["again"] = f"attsvm sweep studies/{facts['name']}.toml --scale one"
    return {
        **facts,
        "programs": programs,
        "along": along,
        "runs": len(study.runs["cell"]),
        "trainings": trainings,
    }


def page(record: Mapping[str, Any]) -> str:
    """The record as one self-contained page: a table of colours, each cell of which opens its curves."""
    return in_one_file("attsvm_lab.sweeps", "atlas.html", data=record)


def name_of(training: Mapping[str, Any]) -> str:
    """The usual name of a training."""
    norm = str(training.get("norm", ""))
    family, _, p = norm.partition(":")
    steps = STEPS.get(norm) or (f"Schatten {p}" if family == "schatten" else f"l{p}")
    optimizer = training["optimizer"]
    if optimizer == "mirror":
        steps = f"mirror descent, p = {p}"
    elif optimizer == "compositional":
        steps = f"compositional {steps}"
    elif optimizer != "steepest":
        steps = {"gd": "gradient descent, not normalised", "adam": "Adam"}.get(optimizer, optimizer)
    if "b2" in training:
        steps += f", b2 {training['b2']:g}"
    if training.get("momentum"):
        steps = f"{'Signum' if norm == 'linf' else steps}, momentum {training['momentum']:g}"
    extra = [f"{name} {training[name]:g}" for name in ("decay", "batch") if training.get(name)]
    return ", ".join([f"{group_of(training)}: {steps}", *extra])


def group_of(training: Mapping[str, Any]) -> str:
    """The name of the weight that is trained."""
    name = WEIGHTS.get(training["weight"], training["weight"])
    if training.get("depth", 1) > 1:
        name = " ⊙ ".join(f"w{k}" for k in range(1, training["depth"] + 1))
    options = [f"rank {training['rank']}"] if training.get("rank") else []
    options += ["apart"] if training.get("separate") else []
    if training.get("heads"):
        options += [f"{training['heads']} heads {training.get('across', 'joint')}"]
    return ", ".join([name, *options])


def theory(training: Mapping[str, Any]) -> dict[str, str]:
    """The program that limit_norm names, and how well that is known; or why there is none."""
    settings = {name: training[name] for name in Settings.__dataclass_fields__ if name in training}
    arguments = Settings(**settings).arguments()
    try:
        limit = limit_norm(arguments["weight"], arguments["optimizer"])
    except NoTheorem as error:
        return {"why": str(error).split(". Nearest")[0]}
    joint = limit.layout is not None
    hypotheses = [str(limit.norm)] * joint + ["all inputs at every step"] * bool(training.get("batch"))
    hypotheses += map(str, limit.hypotheses)
    return {
        "norm": JOINT if joint else str(limit.norm),
        "standing": limit.standing,
        "hypotheses": "; ".join(hypotheses),
    }


# ---------------------------------------------------------------------- details


def _is_final_ratio(name: str) -> bool:
    measure, norm, share = parse_measure(name)
    return measure == "margin_ratio" and bool(norm) and share == 1


def _shares(runs: Columns, program: str, along: list[float]) -> dict[str, Any] | None:
    """Statistics of the margin ratios of runs with a certified program; None without such a run."""
    ends: Float = runs[f"margin_ratio:{program}"].astype(float)
    solved = np.isfinite(ends)
    if not solved.any():
        return None
    ends = ends[solved]
    curve = [ends if share == 1 else runs[f"margin_ratio:{program}@{share:g}"][solved] for share in along]
    steps = runs[f"arrival:{program}"][solved] if f"arrival:{program}" in runs else np.zeros(0)
    return statistics(str(norm_of(program)), curve, along, steps[np.isfinite(steps)])


def statistics(norm: str, curve: list[Float], along: list[float], arrivals: Float) -> dict[str, Any]:
    """Statistics of margin ratios at shares of the steps, the last of which is the end."""
    ends, average = curve[-1], mean(curve[-1], bounds=bounds("margin_ratio"))
    early = curve[along.index(0.1)] if 0.1 in along else None
    return {
        "norm": norm,
        "runs": len(ends),
        "median": _rounded(np.median(ends)),
        "mean": [_rounded(x) for x in (average.value, average.low, average.high)],
        "fifth": _rounded(np.quantile(ends, 0.05)),
        "least": _rounded(ends.min()),
        "curve": [[_rounded(np.quantile(ratios, q)) for q in (0.05, 0.5, 0.95)] for ratios in curve],
        "arrived": _rounded((ends >= ARRIVED).mean()),
        "steps": float(np.median(arrivals)) if len(arrivals) else None,
        "rate": None if early is None else _rounded(_exponent(early, ends)),
    }


def _exponent(early: Float, ends: Float) -> float:
    """Median over runs of the exponent of 1 − margin ratio over the last decade of steps."""
    gaps = np.clip(1 - ends, 1e-12, None), np.clip(1 - early, 1e-12, None)
    return float(np.median(np.log10(gaps[0] / gaps[1])))


def _rounded(value: Any) -> float | None:
    return round(float(value), DIGITS) if np.isfinite(value) else None
