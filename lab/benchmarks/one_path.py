"""One central path for every norm, beside the families' own engines: `python lab/benchmarks/one_path.py`.

The path of `program/extended_precision` knows no norm, and its balls know no path. Here it runs in float64,
over all rows, to a gap of 1e-8; the engines run to theirs. Prints steps, CPU time and their ratio.
"""

from __future__ import annotations

import time

import numpy as np

import attsvm as att
from attsvm.norms import Norm
from attsvm.numbers.threads import single_thread
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision import central_path
from attsvm.program.extended_precision.balls import unit_ball
from attsvm.program.rows import Rows
from attsvm.program.solve import by_engines
from measure import cpu_seconds

SIZES = ((6, 8, 10), (15, 8, 16), (25, 12, 20))
NORMS = (att.frobenius, att.Entrywise(1.5), att.linf, att.spectral, att.nuclear)
GOAL = 1e-8


def general(program: Constraints, norm: Norm) -> int:
    """Newton steps of the general path."""
    rows = Rows.of(program)
    A, ball = rows.dense, unit_ball(norm.dual, (program.d, program.e))
    multipliers = np.full(len(A), 0.3 / np.abs(A).sum())
    heights = ball.heights(A.T @ multipliers)
    (k, D), extra = A.shape, len(heights)
    X = np.zeros((D + extra, k + extra))
    X[:D, :k], X[D:, k:] = A.T, np.eye(extra)
    gain, L = np.append(rows.bound, np.zeros(extra)), np.eye(k, k + extra)
    path, count = central_path.Problem(gain, X, ball, L, np.zeros(k)), 0
    newton = central_path.Problem.newton

    def counted(self: central_path.Problem, *arguments: float) -> object:
        nonlocal count
        count += 1
        return newton(self, *arguments)

    central_path.Problem.newton = counted  # type: ignore[method-assign, assignment]
    try:
        central_path._descend(
            path, np.append(multipliers, heights), central_path.FIRST, GOAL, central_path.FIRST
        )
    finally:
        central_path.Problem.newton = newton  # type: ignore[method-assign]
    return count


def main() -> None:
    print("| (n, T, d) | norm | engine, ms | one path, ms | steps | ratio |\n|---|---|---|---|---|---|")
    for size in SIZES:
        tokens, v = att.datasets.sphere(*size, seed=0)
        program = Constraints.of(tokens, att.best_tokens(tokens, v))
        for norm in NORMS:
            if norm == att.nuclear and size[2] > 16:
                continue  # more than 400 heights: minutes
            with single_thread(), np.errstate(all="ignore"):
                by_engines(program, norm)
                path_seconds = cpu_seconds(lambda: by_engines(program, norm))  # noqa: B023
                start = time.process_time()
                steps = general(program, norm)
                separate_seconds = time.process_time() - start
            times = f"{1e3 * path_seconds:.2f} | {1e3 * separate_seconds:.0f}"
            quotient = separate_seconds / path_seconds
            print(f"| {size} | {norm} | {times} | {steps} | {quotient:.0f} |", flush=True)


if __name__ == "__main__":
    main()
