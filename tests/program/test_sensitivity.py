"""Slopes of the margin, distances to the next change of the support."""

import numpy as np
import pytest

import attsvm as att
from tests.program.test_derivative import copied_support, program, slope, solved

CURVED = [att.frobenius, att.Entrywise(1.5), att.Entrywise(3), att.Schatten(3)]
ALL_NORMS = [*CURVED, att.l1, att.linf, att.nuclear, att.spectral]

CLOSE = 1e-3
"""Relative error of central differences of values with a gap of 1e-9, at a step of 1e-5."""
BESIDE = 1e-3
"""How far before and behind a change the program is solved again, relative to the way to it."""


def support(data, selected, norm):
    """The losing tokens whose row is active."""
    solution = solved(data, selected, norm)
    return att.sensitivity(solution).support


def moved(data, sensitivity, change, share):
    """The data with a token moved by this share of the way to a change of the support."""
    place = change.example, change.token
    W = sensitivity._without.get(place, sensitivity.solution.W)
    direction = W @ data["queries"][change.example]
    direction *= (1 if change.change == "enters" else -1) / np.linalg.norm(direction)
    keys = data["keys"].copy()
    keys[place] += share * change.distance * direction
    return data | {"keys": keys}


@pytest.mark.parametrize("norm", ALL_NORMS, ids=str)
def test_the_slopes_are_central_differences(norm):
    data, selected = program((3, 3, 4, 3), 1)
    sensitivity = att.sensitivity(solved(data, selected, norm))
    slopes = {name: getattr(sensitivity, f"norm_by_{name}") for name in data}
    expected, direction = slope(lambda d: float(norm.value(solved(d, selected, norm).W)), data, 2)
    assert abs(sum((slopes[name] * direction[name]).sum() for name in data) - expected) < CLOSE * abs(
        expected
    )
    without_keys = sum((slopes[name] * direction[name]).sum() for name in ("queries", "required"))
    assert abs(without_keys - expected) > 10 * CLOSE * abs(expected)


def test_the_margin_changes_by_the_length_of_its_slope():
    data, selected = program((3, 3, 4, 3), 1)
    sensitivity, step = att.sensitivity(solved(data, selected)), 1e-5
    i, t = sensitivity.strongest(1)[0]
    direction = -sensitivity.norm_by_keys[i, t] / np.linalg.norm(sensitivity.norm_by_keys[i, t])
    keys = [data["keys"].copy() for _ in range(2)]
    keys[0][i, t], keys[1][i, t] = keys[0][i, t] + step * direction, keys[1][i, t] - step * direction
    above, below = (solved(data | {"keys": k}, selected).margin for k in keys)
    assert abs((above - below) / (2 * step) - sensitivity.margin_by_token[i, t]) < CLOSE


@pytest.mark.parametrize("norm", ALL_NORMS, ids=str)
def test_a_token_changes_the_support_at_its_distance_and_not_before(norm):
    data, selected = program((3, 4, 4, 2), 2)
    sensitivity = att.sensitivity(solved(data, selected, norm))
    assert sensitivity.regular
    changes = sensitivity.first_changes(100)
    for kind in ("enters", "leaves"):
        change = next(c for c in changes if c.change == kind)
        place = change.example, change.token
        before = support(moved(data, sensitivity, change, 1 - BESIDE), selected, norm)
        behind = support(moved(data, sensitivity, change, 1 + BESIDE), selected, norm)
        assert before[place] == (kind == "leaves")
        assert behind[place] == (kind == "enters")


def test_the_margin_without_a_token_is_that_of_the_program_without_it():
    data, selected = program((3, 4, 4, 2), 1)
    sensitivity = att.sensitivity(solved(data, selected))
    i, t = np.argwhere(sensitivity.support)[0]
    mask = np.ones(selected.shape, bool)
    mask[i, t] = False
    tokens = att.Tokens(data["keys"], data["queries"], mask=mask)
    fewer = att.max_margin(tokens, selected, required=data["required"])
    assert sensitivity.margin_without[i, t] == pytest.approx(fewer.margin, rel=1e-8)
    assert sensitivity.margin_without[i, t] > 1.001 * sensitivity.solution.margin


# ---------------------------------------------------------------------- where there is no answer


def test_a_copied_support_token_is_a_kink():
    sensitivity = att.sensitivity(solved(*copied_support(0)))
    assert not sensitivity.regular
    assert "kink" in str(sensitivity)
    assert min(change.distance for change in sensitivity.first_changes()) < 1e-9


def test_what_has_no_sensitivity_says_so():
    data, selected = program((3, 3, 4, 1), 1)
    with pytest.raises(NotImplementedError, match="soft margin"):
        att.sensitivity(solved(data | {"price": np.ones(3)}, selected))
    keys = np.stack([data["keys"], np.zeros_like(data["keys"])])
    runs = att.max_margin(att.Tokens(keys), selected)
    with pytest.raises(ValueError, match="ask one run"):
        att.sensitivity(runs)
    with pytest.raises(ValueError, match="not separable"):
        att.sensitivity(runs.run(1))


# ---------------------------------------------------------------------- hostile sizes


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_everything_scales_with_the_tokens(scale):
    data, selected = program((3, 3, 4, 2), 1)
    here, there = (att.sensitivity(solved(data | {"keys": s * data["keys"]}, selected)) for s in (1, scale))
    assert there.regular
    np.testing.assert_allclose(there.distance / scale, here.distance, rtol=1e-6)
    np.testing.assert_allclose(there.margin_by_token, here.margin_by_token, rtol=1e-6, atol=1e-12)


def test_one_row_leaves_never():
    sensitivity = att.sensitivity(att.max_margin(att.Tokens([[[2.0], [1.0]]]), [0]))
    assert sensitivity.distance[0, 1] == sensitivity.margin_without[0, 1] == np.inf


def test_without_losing_tokens_nothing_moves():
    sensitivity = att.sensitivity(att.max_margin(att.Tokens(np.ones((2, 1, 3))), [0, 0]))
    assert sensitivity.strongest() == sensitivity.first_changes() == []
    assert not sensitivity.norm_by_keys.any()
    assert str(sensitivity)


# ---------------------------------------------------------------------- words and picture


def test_the_table_begins_with_the_token_that_moves_the_margin_most():
    sensitivity = att.sensitivity(solved(*program((3, 3, 4, 2), 1)))
    place = np.unravel_index(sensitivity.margin_by_token.argmax(), (3, 3))
    assert str(sensitivity).splitlines()[2].split()[:2] == [str(k) for k in place]
    assert "kink" not in str(sensitivity)


@pytest.mark.parametrize("norm", [att.frobenius, att.nuclear], ids=str)
def test_the_figure_has_a_panel_for_each_table_of_tokens(norm):
    pytest.importorskip("matplotlib")
    figure = att.sensitivity(solved(*program((3, 3, 4, 2), 1), norm)).plot()
    assert len(figure.axes) == 2
    assert len(figure.axes[0].patches) > 2
