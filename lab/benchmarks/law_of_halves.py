"""Tables and a picture of docs/law_of_halves.md and of the paper, by name:

    python lab/benchmarks/law_of_halves.py factors          measures, records, prints the table
    python lab/benchmarks/law_of_halves.py tables           prints all tables from the record
    python lab/benchmarks/law_of_halves.py drawing          draws docs/images/waiting.svg from the record

What is measured goes to lab/records/law_of_halves.json, which the page and paper/build.py read. All seeds
are held out. A few minutes each, one core:

factors, diagonals: 100 draws from seed 3000 on with the settings of claims/law_of_halves.py. Each cell is the
least and the median share of the certified best margin, in percent.
exponents: of which Schatten norm does a run have the largest share, on a fine grid? Starts of their own and
shrinking steps, from seed 6000 on. An hour; --workers 15 divides it among processes.
pairs: a norm for K and another for Q, from seed 6100 on.
stops: the predicted and the observed power of 64 runs of gradient descent from near rank one, seed 7000.
picture: gradient descent at one stop beside Schatten-4 steps and Muon. Half a minute.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import attsvm as att
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, ORANGE, label, plain_powers, write_svg
from attsvm_lab.claims.law_of_halves import DIAGONALS, FACTORS, SIZE, WIDE, steps_on_diagonals
from attsvm_lab.claims.waiting import BESIDE, from_rank_one, length, spare
from attsvm_lab.programs import MaxNorm, leaving_exponent, steps_to_leave

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "lab" / "records" / "law_of_halves.json"
INFINITE = "inf"
"""An infinite exponent in the record, which JSON has no number for."""

SEEDS = range(3000, 3100)
BETWEEN = (0.01, 10_000)
ROWS: tuple[int | None, float, int] = (16, 0.002, 20_000)
"""Rank, step and steps in the longest row: the max-norm may need factors as wide as d + e."""

GRID = (
    *(1, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75, 1.9, 2, 2.1, 2.25, 2.5, 2.75),
    *(3, 3.5, 3.75, 4, 4.25, 4.5, 5, 6, 8, 12, 24),
)
"""Exponents r of the programs, beside ∞."""
SHRINKING = (0.2, 0.55)
"""c and a of the steps c (k + 1)^−a: their sum is infinite and that of squares finite, as Theorem 8 asks."""
SIZES = {
    (4, 4, 8): (32, 30_000),
    (8, 6, 16): (12, 10_000),
    (8, 6, 32): (6, 10_000),
    (8, 6, 64): (4, 10_000),
}
"""(n, T, d) → draws and steps."""

PAIRS: tuple[tuple[float, float], ...] = (
    *((3, 3 / 2), (4, 4 / 3), (2, 4), (6, 2), (math.inf, 2), (6, 3), (8, 8 / 3)),
    *((math.inf, 3), (math.inf, 4)),
)
"""Exponents (p_K, p_Q), by the r that they imply."""
PAIRED_PROGRAMS = (1, 4 / 3, 1.5, 2, 3, 4, math.inf)
PAIRED_SEEDS = range(6100, 6132)

PICTURED, TRAINED, PREDICTED_AT = 410, 20_000, 5_000
"""Seed, steps, and the step at which the power of gradient descent is read off its multipliers."""
STOPS = (7_000, 64, 1e-7, 20_000)
"""Seed, draws, noise of the start and steps."""


def factors() -> dict[str, Any]:
    """Steps in Schatten(p) and in the longest row on K and Q, apart, against all programs that they imply."""
    tokens, v = att.datasets.sphere(*SIZE, seed=SEEDS)
    programs = [*(att.Schatten(p) for p in (1, 1.5, 2, 3, 4, math.inf)), MaxNorm()]
    rows = []
    for norm_of_steps in [*(att.Schatten(p) for p in (2.0, 3.0, 4.0, 6.0, 8.0, math.inf)), att.LongestRow()]:
        rank, lr, steps = ROWS
        p: float | None = None
        if isinstance(norm_of_steps, att.Schatten):
            p = norm_of_steps.p
            rank, (lr, steps) = None, BETWEEN if p in (3, 6, 8) else FACTORS[p]
        rule = att.steepest(norm_of_steps, lr)
        weight = att.KeyQuery(rank, separate=True)
        path = att.train(tokens, att.Linear(v), weight=weight, optimizer=rule, steps=steps, record=[steps])
        rows.append({"p": _written(p), "shares": [_summary(_share(path, norm)) for norm in programs]})
    return {"size": SIZE, "draws": len(SEEDS), "programs": [str(norm) for norm in programs], "rows": rows}


def diagonals() -> dict[str, Any]:
    """Steps in lp on k and q together against the lq programs of the diagonal."""
    tokens, v = att.datasets.sphere(*WIDE, seed=SEEDS)
    norms = [att.Entrywise(q) for q in (1, 1.25, 1.5, 2, 2.5, 3, 4, 6, math.inf)]
    rows = []
    for p in DIAGONALS:
        flat = steps_on_diagonals(tokens, v, p).path
        rows.append({"p": _written(p), "shares": [_summary(_share(flat, norm)) for norm in norms]})
    programs = [_lp(norm.p) for norm in norms]
    return {"size": WIDE, "draws": len(SEEDS), "programs": programs, "rows": rows}


def exponents(workers: int = 1) -> dict[str, Any]:
    """Of all Schatten(r) on a grid, the one of which a run has the largest share."""
    cells = [(size, p) for size in SIZES for p in (2.0, 3.0, 4.0, 8.0, math.inf)]
    if workers == 1:
        return {"grid": GRID, "rows": [_leading(*cell) for cell in cells]}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return {"grid": GRID, "rows": list(pool.map(_leading, *zip(*cells, strict=True)))}


def _leading(size: tuple[int, int, int], p: float) -> dict[str, Any]:
    """How often the predicted exponent leads after Schatten(p) steps at one size."""
    (scale, power), (draws, steps) = SHRINKING, SIZES[size]
    exponents_r, seeds = np.array([*GRID, math.inf]), range(6000, 6000 + draws)
    tokens, v = att.datasets.sphere(*size, seed=seeds)
    rng = np.random.default_rng(seeds.start)
    start = {name: 0.1 * rng.standard_normal((draws, size[2], size[2])) for name in "KQ"}
    rule = att.steepest(att.Schatten(p), lambda k: scale * (k + 1.0) ** -power)
    options: Any = {"weight": att.KeyQuery(), "optimizer": rule, "init": start, "record": [steps]}
    path = att.train(tokens, att.Linear(v), steps=steps, **options)
    shares = np.array([_share(path, att.Schatten(r)) for r in exponents_r])
    leader, predicted = shares.argmax(0), int(np.flatnonzero(exponents_r == p / 2)[0])
    return {
        "size": size,
        "draws": draws,
        "steps": steps,
        "p": _written(p),
        "leads": int((leader == predicted).sum()),
        "neighbour": int((np.abs(leader - predicted) == 1).sum()),
        "leader": _written(float(np.median(exponents_r[leader]))),
        "share": _summary(shares[predicted]),
    }


def pairs() -> dict[str, Any]:
    """Steps in Schatten(p_K) on K and in Schatten(p_Q) on Q, against the programs of Schatten(r)."""
    tokens, v = att.datasets.sphere(*SIZE, seed=PAIRED_SEEDS)
    rows = []
    for pair in PAIRS:
        steps = 10_000 if 1 / pair[0] + 1 / pair[1] == 1 else 5_000
        rule = att.steepest((att.Schatten(pair[0]), att.Schatten(pair[1])), 0.01)
        options: Any = {"weight": att.KeyQuery(), "optimizer": rule, "record": [steps]}
        path = att.train(tokens, att.Linear(v), steps=steps, **options)
        shares = [_summary(_share(path, att.Schatten(r))) for r in PAIRED_PROGRAMS]
        rows.append({"p": [_written(p) for p in pair], "steps": steps, "shares": shares})
    programs = [_written(r) for r in PAIRED_PROGRAMS]
    return {"size": SIZE, "draws": len(PAIRED_SEEDS), "lr": 0.01, "programs": programs, "rows": rows}


def stops() -> dict[str, Any]:
    """Draws that gradient descent begins near rank one: where they stand, predicted and observed powers.

    The power is predicted by the multipliers at half of the steps, and fitted over those after it.
    """
    seed, draws, noise, steps = STOPS
    runs = from_rank_one(seed, draws, noise, 2.0, steps)
    path, v = runs.path, runs.v
    statuses, powers = [], []
    for run in range(draws):
        whole = path.run(run)
        early = whole.index <= steps / 2
        parts = {"W": whole.W, "K": whole.K, "Q": whole.Q, "index": whole.index}
        point = att.kkt_point(whole.changed(**{name: part[early] for name, part in parts.items()}), v[run])
        statuses.append(point.status)
        beside = spare(whole) < BESIDE
        if point.status == "stop" and beside[-1]:
            late = whole.index >= steps / 2
            slope = np.polyfit(np.log(length(whole)[late]), np.log(spare(whole)[late]), 1)[0]
            predicted = (leaving_exponent(point), slope, point.share, point.pull)
            powers.append([round(float(x), 4) for x in predicted])
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    return {"draws": draws, "noise": noise, "steps": steps, "at_half": counts, "powers": powers}


def picture() -> dict[str, Any]:
    """One draw from near rank one, three kinds of steps: the second singular value of W over the first."""
    curves, forecast = {}, {}
    for p in (2.0, 4.0, math.inf):
        run, v = _from_near_rank_one(p)
        ratio = spare(run)
        curves[str(_written(p))] = [
            [int(k), float(f"{x:.4g}")] for k, x in zip(run.index, ratio, strict=True)
        ]
        if p > 2:
            continue
        early = run.index <= PREDICTED_AT
        parts = {"W": run.W, "K": run.K, "Q": run.Q, "index": run.index}
        before = run.changed(**{name: part[early] for name, part in parts.items()})
        stop = att.kkt_point(before, v)
        forecast = {
            "at": PREDICTED_AT,
            "ratio": float(f"{ratio[early][-1]:.4g}"),
            "exponent": round(leaving_exponent(stop), 4),
            "steps_to_leave": round(steps_to_leave(before, stop)),
        }
    return {"seed": PICTURED, "lr": 0.003, "steps": TRAINED, "curves": curves, "predicted": forecast}


def _from_near_rank_one(p: float) -> tuple[att.Path, np.ndarray]:
    """A run of Schatten(p) steps from one column of K and of Q and noise of 1e-7, and its head."""
    tokens, v = att.datasets.sphere(*SIZE, seed=PICTURED)
    rng, start = np.random.default_rng(PICTURED), {}
    for name in "KQ":
        column = rng.standard_normal(8)
        start[name] = 1e-7 * rng.standard_normal((8, 8))
        start[name][:, 0] += 0.3 * column / np.linalg.norm(column)
    options: Any = {
        "weight": att.KeyQuery(),
        "optimizer": att.steepest(att.Schatten(p), 0.003),
        "init": start,
        "record": np.unique(np.append(np.geomspace(1, TRAINED, 160).astype(int), PREDICTED_AT)),
    }
    return att.train(tokens, att.Linear(v), steps=TRAINED, **options), v


def _share(path: att.Path, norm: att.Norm) -> np.ndarray:
    solution = att.max_margin(path.tokens, path.selected, norm)
    assert np.all(solution.certified), str(norm)
    return 100 * att.margin_ratio(path, solution)[:, -1]


def _summary(shares: np.ndarray) -> list[float]:
    """Least and median, in percent."""
    return [round(float(shares.min()), 3), round(float(np.median(shares)), 3)]


def _written(p: float | None) -> float | str | None:
    return INFINITE if p == math.inf else p


def _read(p: float | str | None) -> float | None:
    return math.inf if p == INFINITE else p  # type: ignore[return-value]


def _lp(p: float) -> str:
    return "l∞" if p == math.inf else f"l{p:g}"


def _number(p: float) -> str:
    """∞, a short decimal, or a fraction such as 4/3."""
    short = "∞" if p == math.inf else f"{p:g}"
    return short if len(short) < 6 else str(Fraction(p).limit_denominator(12))


NAMED = {2.0: " (GD)", math.inf: " (Muon)"}


def tables(record: dict[str, Any]) -> dict[str, list[str]]:
    """The lines of each table of the page."""
    return {name: rendered(record[name]) for name, rendered in RENDERED.items() if name in record}


def _factor_table(part: dict[str, Any]) -> list[str]:
    lines = _head("steps of K and Q", part["programs"])
    for row in part["rows"]:
        p = _read(row["p"])
        name = "longest row" if p is None else f"Schatten {_number(p)}{NAMED.get(p, '')}"
        predicted = "max-norm" if p is None else str(att.Schatten(p / 2))
        lines.append(_row(name, _cells(row["shares"], part["programs"].index(predicted))))
    return lines


def _diagonal_table(part: dict[str, Any]) -> list[str]:
    lines = _head("steps of k and q", part["programs"])
    for row in part["rows"]:
        p = _read(row["p"])
        assert p is not None
        name = _lp(p) + (" (sign)" if p == math.inf else "")
        lines.append(_row(name, _cells(row["shares"], part["programs"].index(_lp(p / 2)))))
    return lines


def _exponent_table(part: dict[str, Any]) -> list[str]:
    names = ["steps of K and Q", "r predicted", "it leads", "a neighbour leads", "median r that leads"]
    lines = _head("(n, T, d)", [*names, "its share, least / median"])
    for row in part["rows"]:
        p, leader = _read(row["p"]), _read(row["leader"])
        assert p is not None and leader is not None
        steps = f"Schatten {_number(p)}{' (Muon)' if p == math.inf else ''}"
        counts = [f"{row['leads']} of {row['draws']}", str(row["neighbour"]), _number(leader)]
        cells = [steps, _number(p / 2), *counts, *_cells([row["share"]])]
        lines.append(_row(str(tuple(row["size"])), cells))
    return lines


def _pair_table(part: dict[str, Any]) -> list[str]:
    programs = [_read(r) for r in part["programs"]]
    names = {1: "nuclear", 2: "Frobenius", math.inf: "spectral"}
    columns = [names.get(r, f"Schatten {_number(r)}") for r in programs if r is not None]
    lines = _head("(p_K, p_Q)", ["r", *columns])
    for row in part["rows"]:
        one, two = (_read(p) for p in row["p"])
        assert one is not None and two is not None
        r = 1 / (1 / one + 1 / two)
        predicted = int(np.argmin([abs(1 / r - 1 / program) for program in programs if program]))
        lines.append(
            _row(f"({_number(one)}, {_number(two)})", [_number(r), *_cells(row["shares"], predicted)])
        )
    return lines


def _head(first: str, names: list[str]) -> list[str]:
    return [f"| {first} | {' | '.join(names)} |", f"{'|---' * (1 + len(names))}|"]


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _cells(shares: list[list[float]], bold: int | None = None) -> list[str]:
    """Least / median of each, the one that the law predicts in bold."""
    texts = [f"{least:.1f} / {median:.1f}" for least, median in shares]
    return [f"**{text}**" if k == bold else text for k, text in enumerate(texts)]


def drawing(part: dict[str, Any], width: float = 6.4, height: float = 3.2, explained: bool = True) -> Figure:
    """The curves of `picture`, and the power that was predicted; explained: with a sentence on it."""
    figure, ((ax,),) = grid(1, 1, height, width=width)
    near, kinds = {"textcoords": "offset points"}, {"2.0": ORANGE, "4.0": GREEN, INFINITE: BLUE}
    for p, color in kinds.items():
        steps, ratio = np.array(part["curves"][p]).T
        ax.loglog(steps, ratio, color=color)
        if p != "2.0":
            name, down = ("Schatten 4", -8) if p == "4.0" else ("Muon", 2)
            label(ax, steps[-1], ratio[-1], name, color, xytext=(6, down), **near)
            continue
        first = 30 if explained else 1
        label(ax, first, ratio[steps >= first][0], "gradient descent", color, xytext=(0, 6), **near)
        predicted = part["predicted"]
        begins, exponent = predicted["at"], predicted["exponent"]
        leaves = begins + predicted["steps_to_leave"]
        rise = (leaves / begins) ** exponent
        ax.loglog([begins, leaves], [predicted["ratio"], predicted["ratio"] * rise], "--", color=color)
        if explained:
            power = f"predicted at step {begins:,}: power {exponent:.2f}"
            text = f"{power},\nit leaves after {leaves:.1g} steps"
            label(ax, leaves, 1e-11, text, color, xytext=(0, 0), ha="right", **near)
    describe(ax, "", f"steps of {part['lr']} on K and Q", "second singular value of W\nover the first")
    plain_powers(ax)
    return figure


RENDERED: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "factors": _factor_table,
    "diagonals": _diagonal_table,
    "exponents": _exponent_table,
    "pairs": _pair_table,
}
MEASURED: dict[str, Callable[[], dict[str, Any]]] = {
    "factors": factors,
    "diagonals": diagonals,
    "exponents": exponents,
    "pairs": pairs,
    "stops": stops,
    "picture": picture,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure what is named and record it; print tables; draw."""
    parser = ArgumentParser(description="Tables and a picture of the law of halves.")
    parser.add_argument(
        "names", nargs="*", default=["tables"], help=", ".join([*MEASURED, "tables, drawing"])
    )
    parser.add_argument("--workers", type=int, default=1, help="processes for the rows of exponents")
    options = parser.parse_args(arguments)
    measured = MEASURED | {"exponents": partial(exponents, options.workers)}
    for name in options.names:
        if name in measured:
            part = json.loads(json.dumps(measured[name]()))
            record = {**recorded(), name: part}  # read now: another process may have written meanwhile
            ordered = {known: record[known] for known in MEASURED if known in record}
            RECORD.write_text(json.dumps(ordered, ensure_ascii=False) + "\n", encoding="utf8")
            print("\n".join(tables(record).get(name, [])), flush=True)
        elif name == "drawing":
            write_svg(drawing(recorded()["picture"]), ROOT / "docs" / "images" / "waiting.svg")
        else:
            print("\n\n".join("\n".join(lines) for lines in tables(recorded()).values()))


def recorded() -> dict[str, Any]:
    """The record, empty where there is none."""
    return json.loads(RECORD.read_text(encoding="utf8")) if RECORD.exists() else {}


if __name__ == "__main__":
    main()
