"""The tables of docs/law_of_halves.md, by name (factors, diagonals; both by default):

    python lab/benchmarks/law_of_halves.py factors

100 draws from seed 3000 on, which chose no setting, with the settings of claims/law_of_halves.py. Each
cell is the least and the median share of the certified best margin, in percent. A few minutes each, one core.
"""

from __future__ import annotations

import math
import sys

import numpy as np

import attsvm as att
from attsvm_lab.claims.law_of_halves import DIAGONALS, FACTORS, SIZE, WIDE, trained_diagonals

SEEDS = range(3000, 3100)
BETWEEN = (0.01, 10_000)
ROWS: tuple[int | None, float, int] = (16, 0.002, 20_000)
"""Rank, step and steps in the longest row: the max-norm may need factors as wide as d + e."""


def factors() -> None:
    """Steps in Schatten(p) and in the longest row on K and Q, apart, against all programs that they imply."""
    tokens, v = att.datasets.sphere(*SIZE, seed=SEEDS)
    programs = [*(att.Schatten(p) for p in (1, 1.5, 2, 3, 4, math.inf)), att.MaxNorm()]
    _head("steps of K and Q", [str(norm) for norm in programs])
    for own in [*(att.Schatten(p) for p in (2.0, 3.0, 4.0, 6.0, 8.0, math.inf)), att.LongestRow()]:
        rank, lr, steps = ROWS
        if isinstance(own, att.Schatten):
            rank, (lr, steps) = None, BETWEEN if own.p in (3, 6, 8) else FACTORS[own.p]
        rule = att.steepest(own, lr)
        weight = att.KeyQuery(rank, separate=True)
        path = att.train(tokens, att.Linear(v), weight=weight, optimizer=rule, steps=steps, record=[steps])
        _row(str(own), [_share(path, norm) for norm in programs])


def diagonals() -> None:
    """Steps in lp on k and q together against the lq programs of the diagonal."""
    tokens, v = att.datasets.sphere(*WIDE, seed=SEEDS)
    norms = [att.Entrywise(q) for q in (1, 1.25, 1.5, 2, 2.5, 3, 4, 6, math.inf)]
    _head("steps of k and q", [f"l{norm.p:g}" for norm in norms])
    for p in DIAGONALS:
        flat = trained_diagonals(tokens, v, p)
        _row(f"l{p:g}", [_share(flat, norm) for norm in norms])


def _share(path: att.Path, norm: att.Norm) -> np.ndarray:
    solution = att.max_margin(path.tokens, path.selected, norm)
    assert np.all(solution.certified), str(norm)
    return 100 * att.margin_ratio(path, solution)[:, -1]


def _head(first: str, names: list[str]) -> None:
    print(f"\n| {first} | {' | '.join(names)} |\n{'|---' * (1 + len(names))}|", flush=True)


def _row(name: str, shares: list[np.ndarray]) -> None:
    cells = [f"{share.min():.1f} / {np.median(share):.1f}" for share in shares]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["factors", "diagonals"]:
        {"factors": factors, "diagonals": diagonals}[name]()
