"""What a norm says of itself is true, and a class that changes a rule inherits nothing of it."""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attsvm import NotCertified, best_tokens, datasets, max_margin
from attsvm.norms import (
    Capabilities,
    Entrywise,
    LongestRow,
    RowWise,
    Schatten,
    capabilities_of,
    frobenius,
    linf,
    spectral,
)
from attsvm.norms.names import from_saved, saved_words
from attsvm.norms.norms import NORMS, SAVED
from attsvm.program.solve import ROUTES, route_of

pytestmark = pytest.mark.quick

EXPONENTS = (1, 1.5, 2, 3, math.inf)
OF_AN_EXPONENT = [kind(p) for kind in (Entrywise, Schatten, RowWise) for p in EXPONENTS]
ALL_NORMS = OF_AN_EXPONENT
BRACKET = 1e-9
"""Relative error of values, which are exact to 1e-14."""

every_norm = pytest.mark.parametrize("norm", ALL_NORMS, ids=repr)


def unit_matrices(count, shape):
    W = np.random.default_rng(0).standard_normal((count, *shape))
    return W / np.linalg.norm(W, axis=(1, 2), keepdims=True)


@every_norm
def test_the_stretch_bounds_the_norm_of_matrices_of_frobenius_norm_one(norm):
    first = np.eye(4)[:, :1] * np.eye(3)[:1]
    extremes = [first, np.eye(4)[:, :3] / 3**0.5, np.ones((4, 3)) / 12**0.5]
    largest = max(float(norm.value(W)) for W in [*extremes, *unit_matrices(50, (4, 3))])
    stretch = capabilities_of(norm).stretch(4, 3)
    assert stretch * (1 - BRACKET) <= largest <= stretch * (1 + BRACKET)  # no smaller bound is true


@every_norm
def test_it_is_euclidean_where_its_value_is_the_frobenius_norm(norm):
    values = [float(norm.value(W)) for W in unit_matrices(5, (3, 4))]
    assert capabilities_of(norm).euclidean == np.allclose(values, 1.0, rtol=BRACKET)


@every_norm
def test_a_ball_that_has_a_segment_on_its_boundary_is_not_strictly_convex(norm):
    pairs = [(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])), (np.eye(2), np.diag([1.0, 0.0]))]
    middles = [(A / norm.value(A) + B / norm.value(B)) / 2 for A, B in pairs]
    flat = max(float(norm.value(W)) for W in middles) > 1 - BRACKET
    assert capabilities_of(norm).strictly_convex == (not flat)


@every_norm
@pytest.mark.parametrize("shape", [(5, 1), (1, 5)], ids=["column", "row"])
def test_on_one_column_or_row_it_is_the_norm_it_says(norm, shape):
    traits = capabilities_of(norm)
    equal = (traits.on_column if shape[1] == 1 else traits.on_row) or norm
    W = np.random.default_rng(1).standard_normal(shape)
    assert float(equal.value(W)) == pytest.approx(float(norm.value(W)), rel=BRACKET)
    assert float(Entrywise(1.3).value(W)) != pytest.approx(float(norm.value(W)), rel=1e-3)


@pytest.mark.parametrize("norm", [n for n in OF_AN_EXPONENT if not isinstance(n, Schatten)], ids=repr)
def test_the_rounding_of_a_value_is_below_its_bound(norm):
    W, p = np.random.default_rng(2).standard_normal((40, 30)), np.longdouble(norm.p)
    x = np.abs(W.astype(np.longdouble))
    x = np.sqrt((x * x).sum(1)) if isinstance(norm, RowWise) else x.ravel()
    exact = x.max() if math.isinf(norm.p) else (x**p).sum() ** (1 / p)
    error = abs(np.longdouble(float(norm.value(W))) / exact - 1)
    assert error <= capabilities_of(norm).rounding(40, 30) * 2.0**-53


@pytest.mark.parametrize("norm", [*OF_AN_EXPONENT, *NORMS.values()], ids=repr)
def test_a_file_keeps_a_norm_in_words(norm):
    assert from_saved(saved_words(norm)) == norm
    with pytest.raises(ValueError, match="no words for files"):
        saved_words(Plain())
    for words in ([], ["Euclid", "2"], ["Schatten"], ["Schatten", "2", "3"]):
        with pytest.raises(ValueError, match=f"unknown norm.*{', '.join(SAVED)}"):
            from_saved(words)


# ---------------------------------------------------------------------- norms of a user


class Plain:
    """A norm of which only the four rules are known."""

    p = 2.0
    dual, value, steepest = frobenius, frobenius.value, frobenius.steepest


def test_of_a_norm_that_says_nothing_nothing_is_assumed():
    assert capabilities_of(Plain()) == Capabilities()
    assert capabilities_of(Plain()).rounding(2, 2) == math.inf


@pytest.mark.parametrize("base", [frobenius, linf, spectral, LongestRow()], ids=repr)
@pytest.mark.parametrize("rule", ["value", "dual", "steepest", "p"])
def test_a_class_that_changes_a_rule_inherits_no_capability_and_no_route(base, rule):
    renamed = type("Renamed", (type(base),), {"__str__": lambda self: "renamed"})
    changed = type("Changed", (renamed,), {rule: property(lambda self: None)})
    assert capabilities_of(renamed(base.p)) == capabilities_of(base)
    if rule == "p":
        return  # a dataclass cannot set a property
    assert capabilities_of(changed(base.p)) == Capabilities()
    if type(base) in ROUTES:
        assert route_of(renamed(base.p)) is route_of(base)
        with pytest.raises(ValueError, match="no program for the norm"):
            route_of(changed(base.p))


def test_a_class_that_states_its_capabilities_again_has_them():
    stated = Capabilities(acts_on="entries", euclidean=True)
    mine = type("Mine", (Entrywise,), {"value": Plain.value, "capabilities": stated})
    assert capabilities_of(mine(1)) is stated


class Twice:
    """2 ‖W‖_F, a norm with a program of its own."""

    p = 2.0

    def __init__(self, factor=2.0):
        self.factor = factor

    dual = property(lambda self: type(self)(1 / self.factor))

    def value(self, W):
        return self.factor * frobenius.value(W)

    def steepest(self, G):
        return frobenius.steepest(G) / self.factor


class StatedTwice(Twice):
    @property
    def capabilities(self):
        inner = capabilities_of(frobenius)
        return replace(inner, euclidean=False, stretch=lambda d, e: self.factor)


def solve_twice(program, norm, first):
    answer = first()
    return replace(answer, multipliers=answer.multipliers * norm.factor)


def test_a_program_of_a_users_norm_is_certified_if_the_norm_bounds_its_rounding(monkeypatch):
    tokens, v = datasets.sphere(3, 4, 5, seed=0)
    monkeypatch.setitem(ROUTES, Twice, solve_twice)
    solution = max_margin(tokens, best_tokens(tokens, v), StatedTwice())
    assert solution.certified
    assert solution.margin == pytest.approx(max_margin(tokens, best_tokens(tokens, v)).margin / 2)
    with pytest.warns(NotCertified):
        assert not max_margin(tokens, best_tokens(tokens, v), Twice()).certified


# ---------------------------------------------------------------------- nobody asks for a class

ROOT = Path(__file__).parents[2] / "src"
CLASSES = {"Entrywise", "Schatten", "RowWise", "LongestRow"}


def asks_for_the_class(source):
    """Lines that ask for the class of a norm: isinstance, `case`, or `type(…) is`."""
    if not any(name in source for name in CLASSES):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                asked = ast.walk(kinds)
            case ast.MatchClass(cls=kinds):
                asked = ast.walk(kinds)
            case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.Eq()], comparators=[*kinds]):
                asked = [kind for kind in kinds if isinstance(kind, ast.Name)]
            case _:
                continue
        names = {getattr(part, "id", getattr(part, "attr", None)) for part in asked}
        if names & CLASSES:
            yield node.lineno


def test_no_module_asks_for_the_class_of_a_norm():
    lines = {
        path.name: list(asks_for_the_class(path.read_text(encoding="utf8"))) for path in ROOT.rglob("*.py")
    }
    assert {name: found for name, found in lines.items() if found} == {}


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(norm, (Norm, att.Schatten))",
        "isinstance(norm, Entrywise | RowWise)",
        "type(norm) is RowWise",
        "match norm:\n    case Schatten() | RowWise():\n        pass",
    ],
)
def test_a_question_for_the_class_is_seen(source):
    assert list(asks_for_the_class(source))
    assert not list(asks_for_the_class("norm = Schatten(2)\nnorm == LongestRow()\nisinstance(norm, Norm)"))
