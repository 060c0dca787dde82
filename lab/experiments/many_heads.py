"""Trained heads against the certified joint program of their layout: the tables of docs/lab/many_heads.md.

    python lab/experiments/many_heads.py shares         # layouts under exact Muon and GD
    python lab/experiments/many_heads.py large          # eight heads, d = 32, bounded from below
    python lab/experiments/many_heads.py polynomials    # Muon by Newton–Schulz, several polynomials
    python lab/experiments/many_heads.py starving       # steps until a head with a small gradient attends
    python lab/experiments/many_heads.py print

Every cell goes to lab/records/many_heads.json as soon as it is done, and is not repeated. Draws were first
run when these settings were fixed.
"""

from __future__ import annotations

import json
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import attsvm as att
from attsvm_lab import programs
from attsvm_lab.claims.instances import falling, limit_by_length, settled

RECORD = Path(__file__).parents[1] / "records" / "many_heads.json"
Layout = att.HeadLayout
FIRST, N, T, START = 7100, 4, 4, 0.3
rate = falling(0.4)

QUINTIC = (3.4445, -4.7750, 2.0315)
CUBIC = (1.5, -0.5, 0.0)
EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
"""Polar Express (Amsel et al. 2025), arguments divided by 1.01 but in the last step."""

POLYNOMIALS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "quintic × 5": (QUINTIC,) * 5,
    "quintic × 5, cubic × 4": (QUINTIC,) * 5 + (CUBIC,) * 4,
    "Polar Express × 5": (
        *((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in EXPRESS[:-1]),
        EXPRESS[-1],
    ),
    "cubic × 10": (CUBIC,) * 10,
}

SIZES = {(2, 8): (12, 8_000), (3, 8): (12, 8_000), (4, 16): (6, 5_000)}
"""(H, d) → draws and steps; every head is N wide."""

LARGE, LARGE_RUNS = (8, 32), (4, 8_000)
"""Fused heads whose norm is bounded by that of their factors: its own program has 8,192 multipliers."""


def layouts(heads: int) -> dict[str, Layout]:
    pairs = Layout.grouped_queries(heads // 2, 2) if heads % 2 == 0 else Layout.fused(heads)
    return {
        "fused": Layout.fused(heads),
        "groups of 2": Layout.groups(heads, 2),
        "apart": Layout.apart(heads),
        "stacked": Layout.stacked(heads),
        "[K Q]": Layout.keys_with_queries(heads),
        "grouped queries": pairs,
        "grouped queries, narrow": pairs,
        "W": Layout.weights(heads),
    }


def newton_schulz(polynomials: tuple[tuple[float, float, float], ...]) -> Any:
    """Steps along a polynomial of the gradient over its Frobenius norm."""

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def update(grads: Any, count: Any, params: Any = None) -> Any:
        size = jnp.linalg.norm(grads)
        X = grads / jnp.where(size > 0, size, 1)
        X = X.T if X.shape[0] > X.shape[1] else X
        for a, b, c in polynomials:
            A = X @ X.T
            X = a * X + (b * A + c * A @ A) @ X
        X = X if X.shape == grads.shape else X.T
        return -rate(count) * X, count + 1

    return att.scale_free(optax.GradientTransformation(init, update))


def rule_of(name: str) -> Any:
    norms = {"Muon": att.spectral, "GD": att.frobenius}
    return att.steepest(norms[name], rate) if name in norms else newton_schulz(POLYNOMIALS[name])


def trained(layout: Layout, rule: Any, d: int, seeds: list[int], steps: int, **options: Any) -> att.Path:
    """Runs of all seeds at once; heads are N wide for each head whose rank their factors must hold."""
    H = layout.heads
    n, width, values = (options.get(name, other) for name, other in (("n", N), ("width", N), ("values", 1.0)))
    tokens, _ = att.datasets.sphere(n, T, d, seed=seeds)
    v = np.stack([np.random.default_rng([1, seed]).standard_normal((H, d)) for seed in seeds])
    v *= np.broadcast_to(values, (len(seeds), H))[..., None]
    if not options.get("narrow"):
        width *= _ranks(layout)
    weight = att.KeyQuery(width) if layout.of_factors else att.FullWeight()
    return att.train(
        tokens,
        att.Linear(v),
        weight=att.MultiHead(H, weight, layout),
        optimizer=rule,
        steps=steps,
        init=started(layout, weight, d, seeds),
        record=options.get("record", [steps // 2, steps]),
    )


def _ranks(layout: Layout) -> int:
    """How many heads' ranks the width must hold: all of stacked heads, those that share a key."""
    if any(len(matrix) > 1 for matrix in layout.matrices):
        return int(layout.heads)
    return max(layout.key_of.count(g) for g in layout.key_of)


def started(layout: Layout, weight: Any, d: int, seeds: list[int]) -> Any:
    """Gaussian factors, equal where heads share keys; zero for W itself."""
    if not layout.of_factors:
        return None
    H = layout.heads
    draws = [np.random.default_rng([2, seed]) for seed in seeds]
    K, Q = (np.stack([START * rng.standard_normal((H, d, weight.rank)) for rng in draws]) for _ in range(2))
    return K[:, [layout.key_of.index(g) for g in layout.key_of]], Q


def shares(run: att.Path, norms: dict[str, Any]) -> dict[str, float] | None:
    """Shares of the certified best margins, in percent; None where a selection changed in the last half.

    limit: that of the first share. lengths: how far the heads' lengths are from those of the first program,
    the largest over the smallest quotient less one.
    """
    if not settled(run):
        return None
    selected = run.attention[-1].argmax(-1)
    found: dict[str, float] = {}
    for name, norm in norms.items():
        try:
            solution = programs.max_margin_of_heads(run.tokens, selected, norm)
        except att.NotSeparable:
            return None
        if not found:
            before, share = (100 * float(x) for x in programs.ratio_of_heads(run, solution, [-2, -1]))
            sizes = [float(norm.value(W)) for W in run.W[-2:]]
            of_run, of_program = (np.linalg.norm(W, axis=(1, 2)) for W in (run.W[-1], solution.W))
            found["share"] = share
            found["limit"] = limit_by_length([before, share], sizes)
            found["lengths"] = 100 * float(np.expm1(np.ptp(np.log(of_run / of_program))))
            found["certified"] = float(solution.certified)
        else:
            found[name] = 100 * float(programs.ratio_of_heads(run, solution, [-1])[0])
    return found


def measured(
    layout: Layout, rule: str, size: tuple[int, int], norms: dict[str, Any], narrow: bool = False
) -> dict[str, Any]:
    draws, steps = SIZES[size]
    begun = time.process_time()
    seeds = list(range(FIRST, FIRST + draws))
    path = trained(layout, rule_of(rule), size[1], seeds, steps, narrow=narrow)
    spent = time.process_time() - begun
    runs = [shares(path.run(k), norms) for k in range(draws)]
    settled = [run for run in runs if run is not None]
    return {"steps": steps, "draws": draws, "runs": settled, "train s": round(spent, 1)}


class Record:
    """Cells by name in a file, which is written after each."""

    def __init__(self) -> None:
        self.cells: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}

    def keep(self, name: str, cell: Callable[[], dict[str, Any]]) -> None:
        if name in self.cells:
            return
        begun = time.process_time()
        self.cells[name] = cell()
        self.cells[name]["cpu s"] = round(time.process_time() - begun, 1)
        RECORD.write_text(json.dumps(self.cells, indent=1))
        print(f"{name}: {self.cells[name]['cpu s']} s  {line(self.cells[name])}", flush=True)


def quartiles(values: list[float]) -> str:
    return "{:.1f} ({:.1f} – {:.1f})".format(*np.quantile(values, [0.5, 0.25, 0.75])) if values else "–"


def line(cell: dict[str, Any]) -> str:
    if "attends" in cell:
        return ", ".join(f"{k} {v}" for k, v in cell["attends"].items())
    names = [name for name in cell["runs"][0] if name != "certified"] if cell["runs"] else []
    found = [f"{name} {quartiles([run[name] for run in cell['runs']])}" for name in names]
    return f"{len(cell['runs'])} of {cell['draws']} | " + " | ".join(found)


def run_shares(record: Record) -> None:
    for size in SIZES:
        H = size[0]
        for name, layout in layouts(H).items():
            few = name in ("groups of 2", "grouped queries", "grouped queries, narrow", "stacked")
            if few and H < 4 and (name, H) != ("stacked", 3):
                continue
            for rule in ("Muon", "GD") if name == "fused" else ("Muon",):
                steps = att.spectral if rule == "Muon" else att.frobenius
                norms = {"share": programs.HeadsNorm(layout, steps)}
                if rule == "Muon" and (H == 4 and name in ("fused", "groups of 2", "apart")):
                    norms |= {f"groups of {g}": programs.HeadsNorm(Layout.groups(H, g)) for g in (1, 2, 4)}
                elif rule == "Muon" and name in ("fused", "[K Q]"):
                    norms["groups of 1"] = programs.HeadsNorm(Layout.apart(H))
                record.keep(
                    f"shares {H} {size[1]} {rule} {name}",
                    lambda args=(layout, rule, size, norms, "narrow" in name): measured(*args),
                )


def run_large(record: Record) -> None:
    """Shares from below of many heads: F(W) ≤ ‖[K_1 … K_H]‖ ‖[Q_1 … Q_H]‖."""
    (H, d), (draws, steps) = LARGE, LARGE_RUNS

    def cell() -> dict[str, Any]:
        path = trained(Layout.fused(H), rule_of("Muon"), d, list(range(FIRST, FIRST + draws)), steps)
        runs = []
        for run in map(path.run, range(draws)):
            if not settled(run):
                continue
            chosen, norm = run.attention[-1].argmax(-1), programs.HeadsNorm(Layout.fused(H))
            best = programs.max_margin_of_heads(run.tokens, chosen, norm)
            sizes = [
                float(np.prod([np.linalg.norm(np.concatenate(list(X[k]), 1), 2) for X in (run.K, run.Q)]))
                for k in (-2, -1)
            ]
            least = [
                min(float(rows.margins(W).min()) for rows, W in zip(best.rows, run.W[k], strict=True))
                for k in (-2, -1)
            ]
            shares = [100 * m / size / best.margin for m, size in zip(least, sizes, strict=True)]
            limit = limit_by_length(shares, sizes)
            runs.append({"share": shares[1], "limit": limit, "certified": float(best.certified)})
        return {"steps": steps, "draws": draws, "runs": runs}

    record.keep(f"shares {H} {d} Muon fused, from below", cell)


def run_polynomials(record: Record) -> None:
    for size, names in (((2, 8), ("fused", "apart")), ((4, 16), ("fused",))):
        for name in names:
            layout = layouts(size[0])[name]
            for rule in POLYNOMIALS:
                norms = {"share": programs.HeadsNorm(layout)}
                record.keep(
                    f"polynomials {size[0]} {size[1]} {rule} {name}",
                    lambda args=(layout, rule, size, norms): measured(*args),
                )


STARVED = {"n": 32, "d": 16, "heads": 4, "draws": 5, "steps": 1500}
SMALL = (1.0, 1e-2, 1e-3)
"""The values of head 0, the others' are 1. It attends once its mean largest weight is 0.5; 0.25 is none."""


def run_starving(record: Record) -> None:
    H, d, steps, draws = (STARVED[name] for name in ("heads", "d", "steps", "draws"))
    seeds = [FIRST + 500 + k for k in range(draws)] * len(SMALL)
    values = np.ones((len(seeds), H))
    values[:, 0] = np.repeat(SMALL, draws)
    marks = sorted({int(x) for x in np.geomspace(1, steps, 60)})
    for width in (2, 4, 8):
        for rule, names in (("Muon", ("fused", "apart")), ("quintic × 5", ("fused", "apart"))):
            for name in names:

                def cell(name: str = name, rule: str = rule, width: int = width) -> Any:
                    options = {"n": STARVED["n"], "width": width, "values": values, "record": marks}
                    path = trained(layouts(H)[name], rule_of(rule), d, seeds, steps, **options)
                    top = path.attention[:, :, 0].max(-1).mean(-1)  # (runs, k)
                    index = path.index
                    first = [int(index[np.argmax(x >= 0.5)]) if x.max() >= 0.5 else steps for x in top]
                    by_value = np.quantile(np.reshape(first, (len(SMALL), draws)), [0.5, 0.25, 0.75], axis=1)
                    attends = {f"{s:g}": by_value[:, k].astype(int).tolist() for k, s in enumerate(SMALL)}
                    return {"attends": attends, "steps": steps, "draws": draws}

                record.keep(f"starving {H * width / d:g} {rule} {name}", cell)


def tables(cells: dict[str, Any]) -> list[str]:
    """The tables of the page."""
    lines = [
        "| H, d | trained | steps | runs | share | limit | judged by groups of 1 | 2 | 4 | lengths off by |"
    ]
    for name, cell in cells.items():
        kind, *words = name.split(" ", 3)
        if kind == "shares":
            rule, _, layout = words[2].partition(" ")
            columns = [_column(cell, key) for key in ("share", "limit", *GROUPED, "lengths")]
            size = f"{words[0]}, {words[1]}"
            row = [size, f"{rule}, {layout}", str(cell["steps"]), f"{len(cell['runs'])} of {cell['draws']}"]
            lines.append(f"| {' | '.join(row + columns)} |")
    lines += ["", "| H, d | trained | polynomials | runs | share | limit |"]
    for name, cell in cells.items():
        kind, *words = name.split(" ", 3)
        if kind == "polynomials":
            rule, _, layout = words[2].rpartition(" ")
            row = [f"{words[0]}, {words[1]}", layout, rule, f"{len(cell['runs'])} of {cell['draws']}"]
            lines.append(f"| {' | '.join([*row, *(_column(cell, key) for key in ('share', 'limit'))])} |")
    lines += ["", f"| heads · width / d | steps | {' | '.join(f'values of {s:g}' for s in SMALL)} |"]
    for name, cell in cells.items():
        if name.startswith("starving"):
            _, filled, rule = name.split(" ", 2)
            late = [
                "{}{} ({} – {})".format("≥ " * (a >= cell["steps"]), a, low, high)
                for a, low, high in cell["attends"].values()
            ]
            lines.append(f"| {' | '.join([filled, rule, *late])} |")
    return lines


GROUPED = ("groups of 1", "groups of 2", "groups of 4")


def _column(cell: dict[str, Any], key: str) -> str:
    return quartiles([run[key] for run in cell["runs"] if key in run])


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["shares", "large", "polynomials", "starving", "print"])
    what = parser.parse_args().what
    warnings.simplefilter("ignore", att.NotCertified)
    record = Record()
    if what == "print":
        print("\n".join(tables(record.cells)))
        return
    tables_of = {"shares": run_shares, "large": run_large}
    tables_of |= {"polynomials": run_polynomials, "starving": run_starving}
    tables_of[what](record)


if __name__ == "__main__":
    main()
