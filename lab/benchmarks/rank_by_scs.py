"""The ranks of nuclear solutions as the published script counts them, by the solver that it calls:

    python lab/benchmarks/rank_by_scs.py

cvxpy hands the program to SCS, whose default accuracy leaves singular values of 1e-7 to 1e-5; `matrix_rank`
with an absolute tolerance of 1e-7 counts them, and counts 1 where there is no solution (None). The 100 draws
of the authors in every cell of the figure `rank`, some minutes. Writes
src/attsvm_lab/figures/records/rank.json.
"""

from __future__ import annotations

import json
import platform
import subprocess
import warnings
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
import scs

import attsvm as att
from attsvm_lab.figures.transformers_as_svms.rank import ABSOLUTE, EXAMPLES, WIDTHS

RECORD = Path(__file__).parents[2] / "src" / "attsvm_lab" / "figures" / "records" / "rank.json"
DRAWS = 100


def main() -> None:
    ranks = {f"{n} {d}": [rank(n, d, seed) for seed in range(DRAWS)] for n in EXAMPLES for d in WIDTHS}
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True).stdout
    record = {
        "machine": f"{platform.machine()} CPU",
        "versions": {"cvxpy": cvxpy.__version__, "scs": scs.__version__, "numpy": np.__version__},
        "commit": commit.strip(),
        "command": "python lab/benchmarks/rank_by_scs.py",
    }
    RECORD.write_text(json.dumps({"made": record, "ranks": ranks}) + "\n", encoding="utf8")


def rank(n: int, d: int, seed: int) -> int:
    """Rank of one draw, counted as published."""
    tokens, v = att.datasets.published.sphere(n, 5, d, seed=seed)
    best = att.scores(tokens, v).argmax(-1)
    W = solved(rows(tokens, best), d)
    return 1 if W is None else int(np.linalg.matrix_rank(W, tol=ABSOLUTE))


def rows(tokens: att.Tokens, best: Any) -> Any:
    """One row vec((x_best − x_t) zᵀ) per losing token, (n (T − 1), d²)."""
    ranks = [
        np.outer(tokens.keys[i, best[i]] - tokens.keys[i, t], tokens.queries[i]).ravel()
        for i in range(tokens.n)
        for t in range(tokens.T)
        if t != best[i]
    ]
    return np.array(ranks)


def solved(rows: Any, d: int) -> Any:
    """What cvxpy and SCS give at their default settings; None where they say infeasible."""
    W = cvxpy.Variable((d, d))
    program = cvxpy.Problem(cvxpy.Minimize(cvxpy.normNuc(W)), [rows @ cvxpy.vec(W, order="C") >= 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "solution may be inaccurate": the published script takes it, too
        program.solve(solver=cvxpy.SCS)
    return W.value


if __name__ == "__main__":
    main()
