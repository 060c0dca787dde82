"""Hostile programs by their structure: rows that are zero or alike, crowds of them, and batches that mix.

`hostile.FAMILIES` has these too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.norms import Entrywise
from tests.program.cases import ALL_TOKENS, Array, Case, Random, anchors, choice, planted, powers, tied

SOME = (0.3, 0.6, 0.9)


def zero_rows(r: Random) -> Case:
    """Over a hundred rows, many of them zero: zero queries, and tokens equal to the selected one."""
    case = together(r)
    queries = np.ones((len(case.keys), 1)) if case.queries is None else case.queries.copy()
    asked, silent = np.ones(len(queries)), r.random(len(queries)) < r.choice(SOME)
    queries[silent], asked[silent] = 0.0, 0.0
    return replace(case, queries=queries, required=asked)


def together(r: Random) -> Case:
    """Tokens equal to the selected one, selected together with it, in up to sixty examples."""
    case = planted(r, sizes=(60, 6, 5, 4))
    equal = (r.random(case.selected.shape) < r.choice(SOME)) & ~case.selected
    keys = np.where(equal[..., None], anchors(case), case.keys)
    return replace(case, keys=keys, selected=case.selected | equal)


def repeated(r: Random) -> Case:
    """Every example up to a hundred times, now and then one of them with another winner."""
    case, times = planted(r), int(10 ** r.uniform(0.5, 2))
    times = min(times, max(2, ALL_TOKENS[-1] // case.selected.size))
    case = replace(case, norm=Entrywise(float(r.choice([1.001, 50]))) if r.random() < 0.2 else case.norm)
    queries = None if case.queries is None else np.tile(case.queries, (times, 1))
    selected = np.tile(case.selected, (times, 1))
    if r.random() < 0.1:
        selected[-1] = np.roll(selected[-1], 1)
    return replace(case, keys=np.tile(case.keys, (times, 1, 1)), queries=queries, selected=selected)


def order_alone(r: Random) -> Case:
    """Most examples, or all, ask for the order alone: a required margin of zero."""
    case = planted(r, sizes=(40, 5, 5, 4))
    asked = np.where(r.random(len(case.keys)) < r.choice([0.5, 0.9, 1.0]), 0.0, 1.0)
    return tied(r, replace(case, required=asked), r.choice([0.0, 0.1]))


def extreme_exponents(r: Random) -> Case:
    """p = 1.0001 and 10,000, and what lies between them and the exponents of other families."""
    p = 1 + powers(r, -4, -2) if r.random() < 0.5 else powers(r, 2, 4)
    exponent = float(r.choice([1.0001, 1e4, p]))
    return tied(r, replace(planted(r), norm=Entrywise(exponent)), r.choice([0.0, 0.1]))


def planes(r: Random) -> Case:
    """Up to a hundred thousand rows in two dimensions."""
    n, shape = int(10 ** r.uniform(2, 5)), ((2, 1), (1, 2), (2, 2))[r.choice(3, p=[0.6, 0.2, 0.2])]
    n = n if shape[1] == 1 else min(n, 10_000)
    keys, queries = r.standard_normal((n, 2, shape[0])), r.standard_normal((n, shape[1]))
    above = np.einsum("ntd,nd->nt", keys, queries @ r.standard_normal(shape[::-1])).argmax(1)
    return Case(keys, queries, above[:, None] == np.arange(2), choice(r))


def mixed(r: Random) -> Case:
    """Batches whose runs are tame, contradictory, huge, tiny, tied, or nearly so, all of one shape."""
    base, runs = planted(r), int(r.integers(2, 7))
    parts = [_run(r, base) for _ in range(runs)]
    keys, queries, selected, asked = (np.stack(x) for x in zip(*parts, strict=True))
    return Case(keys, queries, selected, base.norm, required=asked)


def _run(r: Random, base: Case) -> tuple[Array, Array, Array, Array]:
    """Keys, queries, selection and required margins of one run of the shape of another program."""
    (n, T, d), e = base.keys.shape, 1 if base.queries is None else base.queries.shape[1]
    keys, queries, asked = r.standard_normal((n, T, d)), r.standard_normal((n, e)), np.ones(n)
    best = np.argmax(np.einsum("ntd,nd->nt", keys, queries @ r.standard_normal((e, d))), 1)
    selected, kind = best[:, None] == np.arange(T), r.integers(7)
    if kind == 1:
        selected = r.permuted(selected, axis=1)
    elif kind == 2:
        selected = selected | (r.random((n, T)) < 0.3)
    elif kind == 3:
        keys, queries = np.round(2 * keys), np.round(2 * queries)
    elif kind == 4:
        asked = np.where(r.random(n) < 0.5, 0.0, asked)
    elif kind == 5:
        first = keys[np.arange(n), best][:, None]
        keys = first + powers(r, -12, -4) * (keys - first)
    sizes = powers(r, -100, 100, 2) if kind == 6 else (1.0, 1.0)
    return keys * sizes[0], queries * sizes[1], selected, asked


FAMILIES = (zero_rows, together, repeated, order_alone, extreme_exponents, planes, mixed)
