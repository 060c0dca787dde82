"""Hostile programs: numbers of absurd size, near-ties, tiny margins, ties, copies, contradictions.

`FAMILIES` maps a name to a function that draws one program from a random generator. `tests/program/exact.py`
checks the answers in exact arithmetic; 100,000 of them run by `python lab/benchmarks/hostile.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.norms import Entrywise, Schatten, frobenius
from tests.program import degenerate
from tests.program.cases import Case, Random, anchors, choice, grown, planted, powers, tied


def draw(family: str, seed: int, scale: int = 0) -> Case:
    """The program number `seed` of a family; scale: 0 small, 1 medium, 2 large."""
    number = [list(FAMILIES).index(family), seed]
    return FAMILIES[family](Random([*number, scale] if scale else number, scale))


# ---------------------------------------------------------------------- the families


def near_ties(r: Random) -> Case:
    """Some tokens differ from the selected one by 1e-4 … 1e-14 of their distance."""
    case = planted(r)
    origin = anchors(case)
    factor = np.where(r.random(case.selected.shape) < 0.4, powers(r, -14, -4, case.selected.shape), 1.0)
    moved = factor[..., None] * (case.keys - origin)
    return replace(case, keys=moved if r.random() < 0.5 else origin + moved)


def near_parallel_queries(r: Random) -> Case:
    """The same tokens under queries that differ by 1e-3 … 1e-8 want different winners."""
    case = planted(r, sizes=(4, 4, 5, 4))
    queries = r.standard_normal((len(case.keys), int(r.integers(2, 5))))
    keys, selected = case.keys.copy(), case.selected.copy()
    if len(keys) > 1:
        keys[1], selected[1] = keys[0], np.roll(selected[0], 1)
        queries[1] = queries[0] + powers(r, -8, -3) * r.standard_normal(queries.shape[1])
    return replace(case, keys=keys, queries=queries, selected=selected)


def tiny_margins(r: Random) -> Case:
    """Rows around a plane: the best margin is 1e-6 … 1e-10 of their length."""
    d, e = int(r.integers(2, 6)), int(r.choice([1, 1, 2, 3]))
    n, T = grown(r, int(r.integers(2, 6)), int(r.integers(2, 6)))
    W, queries = r.standard_normal((d, e)), np.ones((n, 1)) if e == 1 else r.standard_normal((n, e))
    direction = queries @ W.T
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    keys = r.standard_normal((n, T, d))
    along = np.einsum("ntd,nd->nt", keys, direction) + powers(r, -10, -6) * r.uniform(1, 3, (n, T))
    keys -= along[..., None] * direction[:, None]
    keys[:, 0] = 0.0
    return Case(keys, None if e == 1 else queries, np.arange(T) == np.zeros((n, 1)), choice(r))


def scales(r: Random) -> Case:
    """Every example in units of its own, 1e±2 … 1e±60, keys and queries apart."""
    case, size = planted(r), r.uniform(2, 60)
    keys = case.keys * powers(r, -size, size, (len(case.keys), 1, 1))
    queries = np.ones((len(keys), 1)) if case.queries is None else case.queries
    return replace(case, keys=keys, queries=queries * powers(r, -size, size, (len(keys), 1)))


def tied_scales(r: Random) -> Case:
    """Ties, and examples that ask for the order alone, beside examples 1e±4 … 1e±12 times as large."""
    size = r.uniform(4, 12)
    case = tied(r, planted(r), r.choice([0.0, 0.15, 0.3]))
    asked = np.where(r.random(len(case.keys)) < r.choice([0.0, 0.3]), 0.0, 1.0)
    return replace(case, keys=case.keys * powers(r, -size, size, (len(asked), 1, 1)), required=asked)


def uneven_tokens(r: Random) -> Case:
    """Tokens, examples or entries at scales of their own, with ties and required margins of 1e±6, or none."""
    case, size, kind = planted(r), r.uniform(2, 12), r.integers(3)
    n, T = case.selected.shape
    keys, own = case.keys - anchors(case), powers(r, -size, size, (n, 1, 1))
    if kind == 0:
        keys = powers(r, -size, size, (n, T, 1)) * keys
    elif kind == 1:
        keys = own * powers(r, -size / 2, size / 2, case.keys.shape[2]) * case.keys
    else:
        keys = own * (case.keys + powers(r, 0, 7, (n, 1, 1)) * r.standard_normal((n, 1, keys.shape[2])))
    asked = np.where(r.random(n) < r.choice([0.0, 0.4]), 0.0, powers(r, -size / 2, size / 2, n))
    case = tied(r, replace(case, keys=keys, required=asked), r.choice([0.0, 0.15, 0.3]))
    return case if r.random() < 0.8 else replace(case, norm=frobenius, slack=powers(r, -8, 8, n))


def soft_tied_scales(r: Random) -> Case:
    """The same with a price for falling short."""
    return replace(tied_scales(r), norm=frobenius, slack=powers(r, -6, 6))


def soft(r: Random) -> Case:
    """Soft margins of any selection, C = 1e-6 … 1e6, often of whole numbers."""
    case = planted(r)
    selected = case.selected if r.random() < 0.5 else r.permuted(case.selected, axis=1)
    keys = np.round(30 * case.keys) if r.random() < 0.5 else case.keys
    price = powers(r, -6, 6, () if r.random() < 0.7 else len(keys))
    return replace(case, keys=keys, selected=selected, norm=frobenius, slack=price)


def soft_absurd(r: Random) -> Case:
    """Soft margins with keys of size 1e±100 and C = 1e±100."""
    case = soft(r)
    return replace(case, keys=case.keys * powers(r, -100, 100), slack=powers(r, -100, 100))


def subnormal(r: Random) -> Case:
    """Keys below the smallest normal number."""
    case = planted(r)
    return replace(case, keys=case.keys * powers(r, -315, -306))


def huge(r: Random) -> Case:
    """All keys and queries of size 1e±300."""
    case = planted(r)
    queries = np.ones((len(case.keys), 1)) if case.queries is None else case.queries
    return replace(case, keys=case.keys * powers(r, -300, 300), queries=queries * powers(r, -140, 140))


def crowds(r: Random) -> Case:
    """Thousands of rows for two to four unknowns, hundreds for more."""
    d, e = (2, 2) if r.random() < 0.5 else (int(r.integers(2, 5)), 1)
    n, T = int(10 ** r.uniform(2, 3.3)), int(r.integers(2, 5))
    keys, queries = r.standard_normal((n, T, d)), r.standard_normal((n, e))
    best = np.argmax(np.einsum("ntd,nd->nt", keys, queries @ r.standard_normal((e, d))), axis=1)
    return Case(keys, queries, best[:, None] == np.arange(T), choice(r))


def one_hot(r: Random) -> Case:
    """Unit vectors as tokens, several of them selected."""
    case = planted(r)
    keys = np.eye(case.keys.shape[2])[r.integers(case.keys.shape[2], size=case.selected.shape)]
    return tied(r, replace(case, keys=keys * r.choice([-1, 1], keys.shape[:2])[..., None]))


def whole_numbers(r: Random) -> Case:
    """Keys and queries of small whole numbers: ties, degenerate vertices, copies."""
    case = planted(r)
    queries = None if case.queries is None else np.round(2 * case.queries)
    return tied(r, replace(case, keys=np.round(2 * case.keys), queries=queries), 0.15)


def ties(r: Random) -> Case:
    """Several selected tokens in a row."""
    return tied(r, planted(r))


def uneven_margins(r: Random) -> Case:
    """Required margins of 1e±8, and none."""
    case = planted(r)
    asked = powers(r, -8, 8, len(case.keys))
    return replace(case, required=np.where(r.random(len(asked)) < 0.3, 0.0, asked))


def copies(r: Random) -> Case:
    """Examples and tokens that occur several times."""
    case = planted(r)
    times, token = int(r.integers(2, 4)), int(r.integers(case.keys.shape[1]))
    keys = np.concatenate([case.keys, case.keys[:, [token]]], 1)
    chosen = np.concatenate([case.selected, case.selected[:, [token]]], 1)
    queries = None if case.queries is None else np.tile(case.queries, (times, 1))
    return replace(
        case, keys=np.tile(keys, (times, 1, 1)), queries=queries, selected=np.tile(chosen, (times, 1))
    )


def ragged(r: Random) -> Case:
    """Sequences of different lengths."""
    case = planted(r)
    return replace(case, mask=case.selected | (r.random(case.selected.shape) < 0.6))


def offset(r: Random) -> Case:
    """Keys that share a large offset, queries that do too."""
    case = planted(r)
    queries = case.queries if case.queries is None else case.queries + powers(r, 0, 6)
    return replace(case, keys=case.keys + powers(r, 0, 8), queries=queries)


def collinear(r: Random) -> Case:
    """The tokens of an example on one line."""
    case = planted(r)
    line = r.standard_normal((len(case.keys), 1, case.keys.shape[2])).astype(np.float32)
    return replace(case, keys=np.round(4 * r.standard_normal((*case.selected.shape, 1))) * line)


def vocabulary(r: Random) -> Case:
    """Tokens and queries from a vocabulary of three words."""
    case = planted(r)
    words = r.standard_normal((3, case.keys.shape[2]))
    queries = None if case.queries is None else words[r.integers(3, size=len(case.keys))]
    return replace(case, keys=words[r.integers(3, size=case.selected.shape)], queries=queries)


def orthogonal(r: Random) -> Case:
    """Orthogonal tokens and queries, and an exponent far from two."""
    case = planted(r, sizes=((4, 8, 16)[r.scale],) * 4, grow=False)  # n · T unknowns
    n, T = case.selected.shape
    keys = np.tile(np.eye(T), (n, 1, 1)) * powers(r, -2, 2)
    exponent = r.choice([1.001, 1.01, 1.05, 1.2, 1.8, 2.5, 6, 20, 50])
    return tied(r, Case(keys, np.eye(n) if r.random() < 0.5 else None, case.selected, Entrywise(exponent)))


def exponents(r: Random) -> Case:
    """Exponents near one and far above two, with ties."""
    case = planted(r)
    near = 1 + powers(r, -3, -0.1) if r.random() < 0.5 else 2 + powers(r, -1, 1.7)
    return tied(r, replace(case, norm=Entrywise(float(near))), 0.1)


def any_selection(r: Random) -> Case:
    """A random selection, often a contradiction."""
    case = planted(r)
    return replace(case, selected=r.permuted(case.selected, axis=1))


def opposite(r: Random) -> Case:
    """Two examples that want opposite orders of the same two tokens."""
    case = planted(r)
    keys, chosen = (
        np.concatenate([case.keys, case.keys[:1]]),
        np.concatenate([case.selected, ~case.selected[:1]]),
    )
    queries = None if case.queries is None else np.concatenate([case.queries, 2 * case.queries[:1]])
    return replace(case, keys=keys, queries=queries, selected=chosen & (chosen.cumsum(1) == 1))


def averages(r: Random) -> Case:
    """A selected token that is nearly, or exactly, an average of two others."""
    case = planted(r, sizes=(3, 5, 5, 3))
    keys, at = case.keys.copy(), case.selected.argmax(1)[0]
    if keys.shape[1] > 2:
        others = [t for t in range(keys.shape[1]) if t != at][:2]
        keys[0, others] = np.round(8 * keys[0, others])
        keys[0, at] = keys[0, others].mean(0)
        keys[0, at, 0] += r.choice([0.0, 1e-3, 1e-5, 1e-7])
    return replace(case, keys=keys)


def numbers_as_keys(r: Random) -> Case:
    """Keys, or queries, of one number."""
    case = planted(r, sizes=(5, 5, 1, 4) if r.random() < 0.5 else (5, 5, 5, 1))
    return replace(case, keys=case.keys * powers(r, -3, 3, (len(case.keys), 1, 1)))


def single_precision(r: Random) -> Case:
    """Keys rounded to float16, queries to float32."""
    case = planted(r)
    queries = None if case.queries is None else case.queries.astype(np.float32)
    return replace(case, keys=case.keys.astype(np.float16).astype(np.float32), queries=queries)


def sparse(r: Random) -> Case:
    """Most entries are zero, sometimes whole keys or queries."""
    case = planted(r)
    queries = None if case.queries is None else case.queries * (r.random(case.queries.shape) < 0.7)
    return replace(case, keys=case.keys * (r.random(case.keys.shape) < 0.5), queries=queries)


def uneven_entries(r: Random) -> Case:
    """Entries of a key that differ by ten orders of magnitude."""
    case = planted(r)
    return replace(case, keys=case.keys * powers(r, -10, 0, case.keys.shape[2]))


FAMILIES: dict[str, Callable[[Random], Case]] = {
    function.__name__: function
    for function in (
        near_ties,
        near_parallel_queries,
        tiny_margins,
        scales,
        soft,
        soft_absurd,
        subnormal,
        huge,
        crowds,
        one_hot,
        whole_numbers,
        ties,
        uneven_margins,
        copies,
        ragged,
        offset,
        collinear,
        vocabulary,
        orthogonal,
        exponents,
        any_selection,
        opposite,
        averages,
        numbers_as_keys,
        single_precision,
        sparse,
        uneven_entries,
        *degenerate.FAMILIES,
    )
}


def spectra(r: Random) -> Case:
    """A program of any other hard family in a Schatten norm between the nuclear and the spectral one."""
    names = [
        name for name in FAMILIES if "soft" not in name and name not in ("spectra", "planes", "far_apart")
    ]
    case = replace(FAMILIES[names[r.integers(len(names))]](r), slack=None)
    return replace(case, norm=Schatten(float(r.choice([1.01, 1.25, 1.5, 1.9, 2.5, 3, 4, 8, 50]))))


def far_apart(r: Random) -> Case:
    """Few examples, 1e-12 … 1e18 long: beside the margins of short rows those of long ones are rounding."""
    n, T, d = (2, 2, 2) if r.random() < 0.5 else (int(r.integers(2, 6)), 3, 4)
    keys = r.standard_normal((n, T, d)) * powers(r, -12, 18, (n, 1, 1))
    return Case(keys, None, r.integers(T, size=(n, 1)) == np.arange(T), choice(r))


def large(r: Random) -> Case:
    """Up to 5,000 inputs of plain tokens: rows by the tens of thousands for a few unknowns."""
    return _of_size(r, int(10 ** r.uniform(2.7, 3.7)), int(r.integers(2, 9)))


def long_sequences(r: Random) -> Case:
    """Up to 200 tokens, of which one is selected."""
    return _of_size(r, int(10 ** r.uniform(0, 2)), int(10 ** r.uniform(1.5, 2.3)))


def large_ties(r: Random) -> Case:
    """The same with ties, soft margins, required margins of zero, and any selection."""
    case, kind = _of_size(r, int(10 ** r.uniform(2, 3.3)), int(r.integers(2, 9))), r.integers(4)
    if kind == 0:
        return tied(r, case, 0.5 / case.selected.size)
    if kind == 1:
        return replace(case, norm=frobenius, slack=powers(r, -3, 3))
    if kind == 2:
        return replace(case, required=np.where(r.random(len(case.keys)) < 0.3, 0.0, 1.0))
    return replace(case, selected=r.permuted(case.selected, axis=1))


def _of_size(r: Random, n: int, T: int) -> Case:
    """n plain examples of T tokens; their selection is that of a random W."""
    d, e = int(r.integers(1, 5)), int(r.choice([1, 2, 3]))
    keys, queries = r.standard_normal((n, T, d)), r.standard_normal((n, e))
    best = np.argmax(np.einsum("ntd,nd->nt", keys, queries @ r.standard_normal((e, d))), axis=1)
    return Case(keys, queries, best[:, None] == np.arange(T), choice(r))


FAMILIES |= {
    function.__name__: function
    for function in (
        spectra,
        tied_scales,
        soft_tied_scales,
        large,
        long_sequences,
        large_ties,
        uneven_tokens,
        far_apart,
    )
}
