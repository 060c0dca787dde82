"""What hostile programs are made of: a small random program, and ways to spoil it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Norm, frobenius, l1, linf, nuclear, spectral

Array = np.ndarray

EXAMPLES, TOKENS, ALL_TOKENS = (5, 200, 5_000), (5, 30, 200), (25, 1_000, 20_000)
"""Most examples, tokens of an example, and tokens of all examples of a program of each scale."""


class Random(np.random.Generator):
    """A source of draws; what is planted from it is small (scale 0), medium (1) or large (2)."""

    def __init__(self, seed: Any, scale: int = 0) -> None:
        super().__init__(np.random.PCG64(seed))
        self.scale = scale


NORMS: list[Norm] = [l1, linf, frobenius, nuclear, spectral, Entrywise(1.5), Entrywise(3)]


@dataclass(frozen=True, eq=False)
class Case:
    """The arguments of one `max_margin`: selected is bool (n, T), queries None in the prompt model.

    With a runs axis on keys, queries, selected and required it is a batch.
    """

    keys: Array
    queries: Array | None
    selected: Array
    norm: Norm
    required: Any = 1.0
    slack: Any = None
    mask: Array | None = None

    @property
    def runs(self) -> int | None:
        return len(self.keys) if self.keys.ndim == 4 else None

    def run(self, k: int) -> Case:
        """One program of a batch, whose arrays have a runs axis."""
        own = {name: getattr(self, name)[k] for name in ("keys", "queries", "selected")}
        return replace(self, required=np.asarray(self.required)[k], **own)


# ---------------------------------------------------------------------- a program to spoil


def ranked(n: int = 5, T: int = 5, d: int = 4, e: int = 3, seed: int = 0) -> tuple[Tokens, Array]:
    """Tokens, and of each example the one that a hidden W ranks first: separable by construction."""
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, e))
    hidden = rng.standard_normal((d, e))
    return Tokens(keys, queries), np.argmax(np.einsum("itd,de,ie->it", keys, hidden, queries), 1)


def planted(
    r: Random, shift: float = 0.2, sizes: tuple[int, int, int, int] = (5, 5, 5, 4), grow: bool = True
) -> Case:
    """Random tokens and the selection of a random W, which is moved further by `shift`.

    sizes: the largest n, T, d and e of a small program; grow: larger ones have more examples and tokens.
    """
    n, T, d, e = (int(r.integers(low, high + 1)) for low, high in zip((1, 2, 1, 1), sizes, strict=True))
    n, T = grown(r, n, T) if grow else (n, T)
    prompt = bool(r.random() < 0.4)
    keys = r.standard_normal((n, T, d))
    queries = np.ones((n, 1)) if prompt else r.standard_normal((n, e))
    directions = queries @ r.standard_normal((queries.shape[1], d))
    best = np.argmax(np.einsum("ntd,nd->nt", keys, directions), axis=1)
    keys[np.arange(n), best] += shift * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    norm = NORMS[r.integers(len(NORMS))]
    return Case(keys, None if prompt else queries, best[:, None] == np.arange(T), norm)


def grown(r: Random, n: int, T: int) -> tuple[int, int]:
    """The examples and tokens of a small program at the scale of the draws: many of one, or of both."""
    if not r.scale:
        return n, T
    most = ALL_TOKENS[r.scale]
    T = max(T, _between(r, TOKENS)) if r.random() < 0.5 else T
    n = max(n, min(_between(r, EXAMPLES), most // T)) if r.random() < 0.8 else n
    return n, T


def _between(r: Random, largest: tuple[int, ...]) -> int:
    low, high = np.log10(largest[r.scale - 1 : r.scale + 1])
    return round(float(powers(r, low, high)))


def powers(r: Random, low: float, high: float, shape: Any = ()) -> Array:
    """Powers of ten with exponents drawn from [low, high]."""
    return np.asarray(10.0 ** r.uniform(low, high, shape))


def anchors(case: Case) -> Array:
    """The keys of the first selected tokens (n, 1, d)."""
    return np.take_along_axis(case.keys, case.selected.argmax(1)[:, None, None], 1)


def tied(r: Random, case: Case, share: float = 0.3) -> Case:
    """Some further tokens selected; in a program that is not small as many as in a small one."""
    share *= min(1.0, ALL_TOKENS[0] / case.selected.size) if r.scale else 1.0
    return replace(case, selected=case.selected | (r.random(case.selected.shape) < share))


def choice(r: Random) -> Norm:
    return NORMS[r.integers(len(NORMS))]
