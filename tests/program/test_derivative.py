"""The derivative of solutions, against central differences of the solver."""

import numpy as np
import pytest

import attsvm as att
from attsvm.program.derivative.polish import at_vertices
from attsvm.program.derivative.pull_back import Derivative

STEP = 1e-5
"""Central differences err by STEP² of the third derivative, and by 1e-13 / STEP of rounding."""
CLOSE = 1e-6
"""Relative error against central differences; ten times the largest of a thousand regular programs."""
FAR = 1e-2
"""What a wrong formula misses at least."""

NAMES = ("keys", "queries", "required", "price")
SHAPES = [(3, 4, 5, 1), (2, 3, 4, 3), (4, 5, 2, 2), (1, 2, 3, 1), (3, 2, 1, 4), (5, 3, 1, 1)]


def program(shape, seed, soft=False):
    """Random tokens, selection and margins; with several selected tokens in a third of all programs."""
    rng, (n, T, d, e) = np.random.default_rng(seed), shape
    selected = np.arange(T) == rng.integers(0, T, n)[:, None]
    if seed % 3 == 0 and T > 2:
        selected[0] = np.arange(T) != rng.integers(T)
    data = {"keys": rng.normal(size=(n, T, d)), "queries": rng.normal(size=(n, e))}
    data |= {"required": rng.uniform(0.5, 2, n)}
    return data | ({"price": rng.uniform(0.1, 2, n)} if soft else {}), selected


def solved(data, selected, norm=att.frobenius):
    tokens = att.Tokens(data["keys"], data["queries"])
    return att.max_margin(tokens, selected, norm, required=data["required"], slack=data.get("price"))


def slope(value, data, seed):
    """The central difference of value(data) along a random direction, and the direction."""
    rng = np.random.default_rng(seed)
    direction = {name: x * rng.normal(size=x.shape) for name, x in data.items()}
    ends = [value({k: x + t * STEP * direction[k] for k, x in data.items()}) for t in (1, -1)]
    return (ends[0] - ends[1]) / (2 * STEP), direction


def along(cotangents, direction):
    return sum(float((getattr(cotangents, name)[0] * x).sum()) for name, x in direction.items())


def errors(data, selected, seed, norm=att.frobenius):
    """The relative error of the derivative of a random function of the results, and the `Derivative`."""
    solution = at_vertices(solved(data, selected, norm))
    derivative, rng = Derivative.of(solution), np.random.default_rng(seed)
    bars = {name: rng.normal(size=(1, *np.shape(x))) for name, x in parts(solution).items()}

    def value(data):
        results = parts(at_vertices(solved(data, selected, norm)))
        return sum(float(np.sum(bar[0] * results[name])) for name, bar in bars.items())

    expected, direction = slope(value, data, seed + 1)
    return abs(along(derivative.pull_back(**bars), direction) - expected) / max(1, abs(expected)), derivative


def parts(solution):
    size = float(solution.norm.value(solution.W))
    margin = 1 / size if size > 0 else 0.0
    named = {"W": solution.W, "norm": size, "margin": margin, "multipliers": solution.token_multipliers}
    return named | ({} if solution.slack is None else {"shortfall": solution.shortfall})


def separable_programs(soft):
    for seed in range(4):
        for shape in SHAPES:
            data, selected = program(shape, seed, soft)
            if soft or att.separable(att.Tokens(data["keys"], data["queries"]), selected):
                yield data, selected, seed


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_the_derivative_is_that_of_central_differences(soft):
    worst = [errors(data, selected, seed) for data, selected, seed in separable_programs(soft)]
    regular = [error for error, derivative in worst if derivative.regular[0]]
    assert len(regular) > 10
    assert max(regular) < (1e3 if soft else 1) * CLOSE  # soft margins are solved to 1e-8, not to rounding


def test_an_example_of_equal_tokens_falls_short_with_a_derivative():
    data, selected = program((2, 2, 4, 3), 1, soft=True)
    data["keys"][0, 1] = data["keys"][0, 0]
    error, derivative = errors(data, selected, 0)
    assert derivative.regular[0] and derivative.rows.shortfall[0, 0] == data["required"][0]
    assert error < CLOSE


def test_a_derivative_without_the_multipliers_change_is_seen():
    data, selected = program((3, 4, 5, 1), 1)
    derivative = Derivative.of(solved(data, selected))
    bar = np.random.default_rng(0).normal(size=(1, 5, 1))
    expected, direction = slope(lambda d: float((bar[0] * solved(d, selected).W).sum()), data, 1)
    right = derivative.pull_back(bar)
    wrong = right._replace(keys=0.5 * right.keys)
    assert abs(along(right, direction) - expected) < CLOSE * abs(expected)
    assert abs(along(wrong, direction) - expected) > FAR * abs(expected)


def test_all_runs_at_once_give_the_derivatives_of_each():
    rng = np.random.default_rng(0)
    keys, queries, selected = rng.normal(size=(5, 3, 4, 6)), rng.normal(size=(5, 3, 2)), np.zeros(3, int)
    solution = att.max_margin(att.Tokens(keys, queries), selected)
    bar = rng.normal(size=solution.W.shape)
    together = Derivative.of(solution).pull_back(bar)
    for k in range(5):
        alone = Derivative.of(att.max_margin(att.Tokens(keys[k], queries[k]), selected)).pull_back(
            bar[k][None]
        )
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[k], b[0], rtol=1e-8, atol=1e-8 * np.abs(a).max())


VALUES = [att.nuclear, att.spectral]
SMOOTH = [att.Entrywise(1.5), att.Entrywise(3), att.Schatten(1.5), att.Schatten(3)]
VERTICES = [att.l1, att.linf]


@pytest.mark.parametrize("norm", VALUES, ids=str)
def test_the_value_has_a_derivative_in_every_norm(norm):
    data, selected = program((3, 3, 4, 3), 1)
    derivative = Derivative.of(solved(data, selected, norm))
    expected, direction = slope(lambda d: float(norm.value(solved(d, selected, norm).W)), data, 2)
    # These engines end at a gap of 1e-9: the difference of two of their values has an error of 1e-9 / STEP.
    assert abs(along(derivative.pull_back(norm=np.ones(1)), direction) - expected) < 1e-3 * abs(expected)
    with pytest.raises(NotImplementedError, match="Use that of the norm"):
        derivative.pull_back(W=np.ones((1, 4, 3)))


@pytest.mark.parametrize("norm", [*SMOOTH, *VERTICES], ids=str)
def test_solutions_have_a_derivative_in_these_norms(norm):
    for seed in range(3):
        data, selected = program((3, 3, 4, 3), seed)
        error, derivative = errors(data, selected, seed, norm)
        assert derivative.regular[0]
        assert error < CLOSE


ROUNDED = 1e-11
"""Relative error of W and of margins: a gap of 1e-10, where engines end, would leave 1e-5."""


@pytest.mark.parametrize("norm", SMOOTH, ids=str)
def test_solutions_are_those_of_their_active_rows_up_to_rounding(norm):
    data, selected = program((3, 3, 4, 3), 1)
    solution = att.max_margin(att.Tokens(data["keys"], data["queries"]), selected, norm)
    derivative = Derivative.of(solution)
    active, W = derivative.active(0), derivative.local[0].at.W
    np.testing.assert_allclose(W, solution.W, atol=ROUNDED * np.abs(W).max())
    np.testing.assert_allclose(active.margins(W), active.bound, atol=ROUNDED)


@pytest.mark.parametrize("norm", VERTICES, ids=str)
def test_vertices_are_exact_up_to_rounding(norm):
    errors = []
    for seed in range(8):
        data, selected = program((4, 4, 5, 5), 3 * seed + 1)
        solution = solved(data, selected, norm)
        better = at_vertices(solution)
        assert better.certified
        if Derivative.of(better).regular[0]:  # elsewhere there is no vertex, or no rows of one
            actives = [Derivative.of(x).active(0) for x in (solution, better)]
            errors.append([abs(x.margins(x.W) - x.bound).max() for x in actives])
    before, after = np.max(errors, axis=0)
    assert after < ROUNDED < before  # the engines end at a gap of 1e-10


@pytest.mark.parametrize("norm", [*SMOOTH, *VERTICES], ids=str)
def test_a_copied_support_token_is_flagged_in_every_norm(norm):
    assert not Derivative.of(solved(*copied_support(0), norm)).regular[0]


@pytest.mark.parametrize(("p", "regular"), [(3, False), (1.5, True)])
def test_an_entry_that_is_zero_has_no_derivative_for_large_p(p, regular):
    keys = np.zeros((1, 2, 2, 2))  # W = (½, 0; 0, 0), and its zeros move by |dM|^(1/2) for p = 3
    keys[0, 0, :, 0] = [1.0, -1.0]
    tokens = att.Tokens(keys[0], np.array([[1.0, 0.0], [1.0, 0.0]]))
    solution = att.max_margin(tokens, np.array([[True, False], [True, True]]), att.Entrywise(p))
    assert (Derivative.of(solution).strictness[0] > 0) == regular


# ---------------------------------------------------------------------- kinks


def copied_support(seed):
    """A program of which a support token has a copy: both compete for the same multiplier."""
    data, selected = program((3, 4, 6, 2), 3 * seed + 1)
    solution = solved(data, selected)
    i, t = np.argwhere(solution.support)[0]
    free = next(k for k in range(4) if k != t and not selected[i, k])
    data["keys"][i, free] = data["keys"][i, t]
    return data, selected


def touching(seed):
    """A program in which one token has exactly the margin that it needs, without a multiplier."""
    data, selected = program((1, 3, 4, 1), 3 * seed + 1)
    selected[:] = [[True, False, False]]
    first, second, _ = data["keys"][0]
    delta = first - second
    sideways = np.random.default_rng(seed).normal(size=4)
    sideways -= delta * (sideways @ delta) / (delta @ delta)
    data["keys"][0, 2] = second - sideways
    return data, selected


@pytest.mark.parametrize("make", [copied_support, touching])
def test_a_kink_is_flagged(make):
    for seed in range(5):
        assert not Derivative.of(solved(*make(seed))).regular[0]


def test_a_kink_that_was_moved_away_is_not_flagged():
    for seed in range(5):
        data, selected = touching(seed)
        data["keys"][0, 2] -= 0.01 * (data["keys"][0, 0] - data["keys"][0, 1])
        assert Derivative.of(solved(data, selected)).regular[0]


@pytest.mark.parametrize(("half", "regular"), [(0.0, False), (0.5, True)])
def test_curvature_that_vanishes_for_small_p_is_flagged(half, regular):
    # Σ μ A = (0, 1): for p < 2 the first entry has no curvature there, and row (1, 0) has no other entry.
    keys = np.zeros((2, 2, 2))
    keys[:, 0] = [[half, 1.0], [1.0, half]]
    tokens = att.Tokens(keys)
    selected = np.array([[True, False], [True, True]])
    solution = att.max_margin(tokens, selected, att.Entrywise(1.5))
    assert Derivative.of(solution).regular[0] == regular


def test_rows_that_require_nothing_are_flagged_and_have_no_gradient():
    data, selected = program((3, 4, 5, 2), 1)
    derivative = Derivative.of(solved(data | {"required": np.zeros(3)}, selected))
    assert not derivative.regular[0]
    assert not any(x.any() for x in derivative.pull_back(np.ones((1, 5, 2)), np.ones(1)))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_derivative_scales_with_the_tokens(scale):
    data, selected = program((3, 4, 5, 2), 1)
    bar = np.ones((1, 5, 2))
    here = Derivative.of(solved(data, selected)).pull_back(bar)
    derivative = Derivative.of(solved(data | {"keys": scale * data["keys"]}, selected))
    there = derivative.pull_back(scale * bar)
    assert derivative.regular[0]
    np.testing.assert_allclose(scale * there.keys, here.keys, rtol=1e-7, atol=1e-7)


def test_without_losing_tokens_nothing_depends_on_the_data():
    solution = att.max_margin(att.Tokens(np.ones((2, 1, 3))), [0, 0])
    derivative = Derivative.of(solution)
    assert derivative.regular[0]
    assert not derivative.pull_back(np.ones((1, 3, 1)), np.ones(1)).keys.any()


def test_tied_copies_are_flagged():
    keys = np.random.default_rng(0).normal(size=(2, 4, 5))
    keys[0, 1] = keys[0, 0]
    selected = np.array([[True, True, False, False], [True, False, False, False]])
    derivative = Derivative.of(att.max_margin(att.Tokens(keys), selected))
    assert derivative.optimum.tied.sum() == 1
    assert not derivative.regular[0]
