"""How the heads of a layer lie in the matrices that an optimizer takes as one: `HeadLayout`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Row = tuple[str, ...]
Matrix = tuple[Row, ...]

BLOCK = re.compile(r"([KQW])(\d+)")


@dataclass(frozen=True)
class HeadLayout:
    """The matrices of an optimizer in block notation, their blocks the parameters of heads.

        [K_1 K_2], [Q_1 Q_2]        matrices = ((("K0", "K1"),), (("Q0", "Q1"),))        HeadLayout.fused(2)
        [K_1; K_2], [Q_1; Q_2]      matrices = ((("K0",), ("K1",)), (("Q0",), ("Q1",)))  HeadLayout.stacked(2)

    A matrix is a tuple of rows, a row a tuple of blocks: "K0" (d, r) and "Q0" (e, r) are the factors of the
    head W_0 = K Qᵀ, or "W0" (d, e) is the head itself. Rows on top of each other have blocks of one shape.
    `torch.nn.Linear` keeps the transpose: its fused projection (H r, d) is [K_1 … K_H] here.
    key_of: the key head that each query head reads, by default its own; grouped queries share one.
    Reference: docs/heads_proofs.md.
    """

    matrices: tuple[Matrix, ...]
    key_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        matrices = tuple(tuple(tuple(row) for row in matrix) for matrix in self.matrices)
        object.__setattr__(self, "matrices", matrices)
        names = sorted(self._names())
        if not self.key_of:
            object.__setattr__(self, "key_of", tuple(range(sum(name[0] in "QW" for name in names))))
        keys = sorted(set(self.key_of))
        factors = sorted([f"K{g}" for g in keys] + [f"Q{h}" for h in range(len(self.key_of))])
        heads = sorted(f"W{h}" for h in range(len(self.key_of)))
        wrong = keys != list(range(len(keys))) or not names
        if wrong or names not in ([factors, heads] if len(keys) == len(self.key_of) else [factors]):
            raise ValueError(
                f"the blocks are {', '.join(names) or 'none'}, and the key heads {self.key_of}. Pass every K "
                'and every Q once, such as ((("K0", "K1"),), (("Q0", "Q1"),)), or every W once.'
            )

    def _names(self) -> list[str]:
        names = [name for matrix in self.matrices for row in matrix for name in row]
        wrong = [name for name in names if not (isinstance(name, str) and BLOCK.fullmatch(name))]
        if wrong:
            raise ValueError(f"the block {wrong[0]!r} has no such name. Pass K0, Q0 or W0, with a number.")
        return names

    # ------------------------------------------------------------------ constructors

    @classmethod
    def fused(cls, heads: int) -> HeadLayout:
        """[K_1 … K_H] and [Q_1 … Q_H], each one matrix: the usual fused projections."""
        return cls.groups(heads, heads)

    @classmethod
    def apart(cls, heads: int) -> HeadLayout:
        """Every K_h and every Q_h is a matrix of its own."""
        return cls.groups(heads, 1)

    @classmethod
    def groups(cls, heads: int, size: int) -> HeadLayout:
        """[K_1 … K_g], [K_g+1 …] …: `size` heads side by side in a matrix, and the same for Q."""
        count = _positive("heads", heads)
        if _positive("size", size) > count:
            raise ValueError(f"size is {size} and there are {heads} heads. Pass at most {heads}.")
        parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
        return cls(tuple((_row(kind, part),) for kind in "KQ" for part in parts))

    @classmethod
    def stacked(cls, heads: int) -> HeadLayout:
        """[K_1; …; K_H] and [Q_1; …; Q_H]: heads on top of each other."""
        count = range(_positive("heads", heads))
        return cls(tuple(tuple(_row(kind, [h]) for h in count) for kind in "KQ"))

    @classmethod
    def keys_with_queries(cls, heads: int) -> HeadLayout:
        """[K_1 … K_H Q_1 … Q_H] is one matrix: keys and queries in one projection."""
        count = range(_positive("heads", heads))
        return cls(((_row("K", count) + _row("Q", count),),))

    @classmethod
    def grouped_queries(cls, keys: int, queries_per_key: int, *, queries: str = "fused") -> HeadLayout:
        """Every key head serves several queries: [K_1 … K_G], and [Q_1 … Q_H] fused or every Q_h apart."""
        count, share = _positive("keys", keys), _positive("queries_per_key", queries_per_key)
        if queries not in ("fused", "apart"):
            raise ValueError(f"queries is {queries!r}. Pass 'fused' or 'apart'.")
        heads = range(count * share)
        of_queries = (_row("Q", heads),) if queries == "fused" else tuple(_row("Q", [h]) for h in heads)
        matrices = ((_row("K", range(count)),), *((row,) for row in of_queries))
        return cls(matrices, tuple(h // share for h in heads))

    @classmethod
    def weights(cls, heads: int, *, stacked: bool = False) -> HeadLayout:
        """W itself is trained: [W_1 … W_H] side by side, or [W_1; …; W_H]."""
        count = range(_positive("heads", heads))
        return cls((tuple(_row("W", [h]) for h in count) if stacked else (_row("W", count),),))

    # ------------------------------------------------------------------ what it says

    @property
    def heads(self) -> int:
        """The number of (query) heads."""
        return len(self.key_of)

    @property
    def of_factors(self) -> bool:
        """Whether K and Q are trained, rather than W."""
        return self.matrices[0][0][0][0] != "W"

    @property
    def components(self) -> tuple[tuple[int, ...], ...]:
        """Heads that share a matrix, or share one with a third: these have one program."""
        remaining = [set(self._heads_of(matrix)) for matrix in self.matrices]
        joined: list[set[int]] = []
        for heads in remaining:
            touching = [part for part in joined if part & heads]
            joined = [part for part in joined if not part & heads] + [heads.union(*touching)]
        return tuple(sorted(tuple(sorted(part)) for part in joined))

    def part(self, heads: Sequence[int]) -> HeadLayout:
        """The layout of one component alone, its heads numbered from 0."""
        keys = sorted({self.key_of[h] for h in heads})
        number = {f"{kind}{h}": f"{kind}{k}" for kind in "QW" for k, h in enumerate(heads)}
        number |= {f"K{g}": f"K{k}" for k, g in enumerate(keys)}
        inside = [m for m in self.matrices if set(self._heads_of(m)) <= set(heads)]
        matrices = tuple(tuple(tuple(number[name] for name in row) for row in m) for m in inside)
        return HeadLayout(matrices, tuple(keys.index(self.key_of[h]) for h in heads))

    def _heads_of(self, matrix: Matrix) -> list[int]:
        """The heads that have a parameter in the matrix; of a key head all heads that read it."""
        pairs = [(name[0], int(name[1:])) for row in matrix for name in row]
        return [h for kind, k in pairs for h in (self._readers(k) if kind == "K" else [k])]

    def _readers(self, key: int) -> list[int]:
        return [h for h, g in enumerate(self.key_of) if g == key]

    def __str__(self) -> str:
        return ", ".join(
            "[" + "; ".join(" ".join(_short(row)) for row in matrix) + "]" for matrix in self.matrices
        )


def _row(kind: str, heads: Iterable[int]) -> Row:
    return tuple(f"{kind}{h}" for h in heads)


def _short(row: Row) -> list[str]:
    """The blocks of a row from 1 on, long runs of one kind shortened."""
    names = [f"{name[0]}{int(name[1:]) + 1}" for name in row]
    kinds = [[name for name in names if name[0] == kind] for kind in dict.fromkeys(n[0] for n in names)]
    return [word for run in kinds for word in (run if len(run) <= 3 else [run[0], "…", run[-1]])]


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}. Pass how many, an integer from 1 on.")
    return value
