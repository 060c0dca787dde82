"""The rows of the solver benchmark: a program, a size, the peers that can solve it, and the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, Schatten, frobenius, l1, linf, nuclear, spectral
from instances import contradiction, planted, random_selection

Build = Callable[..., tuple[Tokens, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """One row: n examples of T tokens of width d; prompts have e = 1, matrices e = d.

    peers: solvers to run beside ours; slow: those that take more than 30 s, left out by --quick.
    """

    program: str
    size: tuple[int, int, int]
    norm: Norm
    target: str = ""
    peers: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    build: Build = planted
    prompt: bool = False

    @property
    def name(self) -> str:
        return f"{self.program} {self.size}".replace(", ", ",")

    def instance(self, seed: int = 0) -> tuple[Tokens, np.ndarray]:
        width = {"e": 1} if self.prompt and self.build is not random_selection else {}
        return self.build(*self.size, seed=seed, **width)


def _prompt(size: tuple[int, int, int], target: str, *peers: str, slow: tuple[str, ...] = ()) -> Case:
    return Case("prompt l2", size, frobenius, target, peers, slow, prompt=True)


def _matrix(size: tuple[int, int, int], target: str, *peers: str, slow: tuple[str, ...] = ()) -> Case:
    return Case("matrix Frobenius", size, frobenius, target, peers, slow)


_QP = ("daqp", "quadprog", "cvxopt", "nnls")
_CONIC = ("Clarabel", "SCS")
_LINEAR = ("Clarabel", "SCS", "HiGHS")
_TINY, _SMALL = (6, 8, 10), (50, 16, 32)

CASES = [
    _prompt((1000, 32, 64), "≥ 12× daqp, ≥ 40× cvxopt", *_QP, *_CONIC, slow=("SCS",)),
    _prompt((5000, 64, 128), "≥ 60× best peer, ≤ 10 passes", "daqp", "quadprog", "cvxopt"),
    _prompt((20000, 64, 256), "≤ 10 passes"),
    _matrix(_SMALL, "≥ 8× daqp", *_QP, *_CONIC),
    _matrix((200, 32, 64), "≥ 120× daqp", "daqp", "nnls", "quadprog", slow=("nnls", "quadprog")),
    _matrix((500, 32, 128), "≤ 120 matvecs, < 0.3 GB"),
    _matrix((200, 32, 32), "certified", "daqp", slow=("daqp",)),
    _matrix((400, 32, 48), "< 8 s, stretch 3 s"),
    Case("nuclear", _TINY, nuclear, "", _CONIC),
    Case("nuclear", _SMALL, nuclear, "≥ 8× SCS, ≥ 50× Clarabel", _CONIC),
    Case("nuclear", (200, 32, 64), nuclear, "≤ 10 s, stretch 3 s"),
    Case("spectral", _TINY, spectral, "≥ 5× best peer", _CONIC),
    Case("spectral", _SMALL, spectral, "≥ 5× best peer", _CONIC),
    *(Case(f"Schatten {p:g}", _SMALL, Schatten(p), "≤ 3× nuclear") for p in (1.25, 1.5, 3, 4, 8)),
    Case("l1", _TINY, l1, "≥ 5× best peer", _LINEAR),
    Case("l1", _SMALL, l1, "≥ 5× best peer", _LINEAR, slow=("SCS",)),
    Case("l∞", _TINY, linf, "≥ 5× best peer", _LINEAR),
    Case("l∞", _SMALL, linf, "≥ 5× best peer", _LINEAR, slow=("SCS",)),
    Case("l1.1", _SMALL, Entrywise(1.1), "≥ 150× Clarabel", ("Clarabel",)),
    Case("l1.5", _SMALL, Entrywise(1.5), "≥ 150× Clarabel", ("Clarabel",)),
    Case("l1.75", _SMALL, Entrywise(1.75), "≥ 150× Clarabel", ("Clarabel",)),
    Case("l3", _SMALL, Entrywise(3), "≥ 150× Clarabel", ("Clarabel",)),
    Case("prompt l1.5", (1000, 32, 64), Entrywise(1.5), "", ("Clarabel",), prompt=True),
    Case(
        "infeasible prompt",
        (1000, 32, 64),
        frobenius,
        "≥ 40× daqp's flag",
        ("daqp", "quadprog", "nnls"),
        build=random_selection,
        prompt=True,
    ),
    Case(
        "hidden contradiction, prompt",
        (1000, 32, 64),
        frobenius,
        "two rows named",
        ("daqp",),
        build=contradiction,
        prompt=True,
    ),
    Case(
        "infeasible Frobenius",
        _SMALL,
        frobenius,
        "no slower than daqp's flag",
        ("daqp", "quadprog", "nnls", "Clarabel"),
        build=contradiction,
    ),
]
"""The programs that the package is measured on."""
