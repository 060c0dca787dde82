"""Figures of next-token prediction: closed forms are met, and can be missed."""

import numpy as np
import pytest

from attsvm.figures.next_token import collapse, extended_order, soft_composition, two_stages


@pytest.fixture(scope="module")
def computed():
    return {
        collapse: collapse.experiment.compute("quick"),
        extended_order: extended_order.experiment(corpora=1, steps=20),
        soft_composition: soft_composition.experiment.compute("quick"),
        two_stages: ideal_stages(),
    }


def ideal_stages():
    """What the theorems say of both stages, without training."""
    arrays = {}
    for layer, length in two_stages.LENGTHS.items():
        steps = arrays[f"steps_{layer}"] = np.arange(0, 1_001, 10)
        for kind in two_stages.KINDS:
            away = 1 / (1 + steps) ** 2 * (0 if (layer, kind) == two_stages.EXACT else 1)
            arrays[f"away_{layer}_{kind}"] = away[None]
            arrays[f"gap_{layer}_{kind}"] = -0.01 * steps[None]
            arrays[f"norm_{layer}_{kind}"] = length * steps[None]
    return arrays


def agreements(module, arrays):
    return {check.agreement for check in module.experiment.checks(arrays)}


MODULES = (collapse, extended_order, soft_composition, two_stages)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.experiment.name)
def test_every_number_agrees_or_is_explained(module, computed):
    assert "differs, not explained" not in agreements(module, computed[module])


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.experiment.name)
def test_every_axis_is_named(module, computed):
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in module.experiment.draw(computed[module]).axes)


def test_a_chain_without_feedback_does_not_collapse(computed):
    flat = computed[collapse] | {"exponent_0.7": np.array(1.0)}
    assert "differs, not explained" in agreements(collapse, flat)


def test_logits_in_reversed_order_are_a_disagreement(computed):
    wrong = 1 - computed[extended_order]["share_orthonormal"]
    assert "differs, not explained" in agreements(
        extended_order, computed[extended_order] | {"share_orthonormal": wrong}
    )


def test_other_odds_than_two_are_a_disagreement(computed):
    wrong = computed[soft_composition] | {"finite_odds": np.array(np.log(3))}
    assert "differs, not explained" in agreements(soft_composition, wrong)


def test_logarithmic_growth_is_not_taken_for_linear(computed):
    slow = np.log1p(computed[two_stages]["steps_kq"])[None]
    assert "differs, not explained" in agreements(
        two_stages, computed[two_stages] | {"norm_kq_orthonormal": slow}
    )
