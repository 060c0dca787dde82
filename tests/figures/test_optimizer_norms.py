"""The map of optimizers and norms: a diagonal is seen, and so is its absence."""

import numpy as np
import pytest

from attsvm.figures.ours.optimizer_norms import NORMS, OPTIMIZERS, experiment


@pytest.fixture
def arrays():
    names = tuple(OPTIMIZERS)
    own = np.array([[OPTIMIZERS[row][0] == norm for norm in NORMS] for row in names])
    return {
        "optimizers": np.array(names),
        "ratio": np.where(own, 0.99, 0.6)[..., None].repeat(3, -1),
        "chosen": np.ones((len(names), 3), bool),
        "certified": np.ones((len(NORMS), 3), bool),
    }


def test_a_diagonal_of_best_margins_agrees(arrays):
    assert {check.agreement for check in experiment.checks(arrays)} == {"agrees"}


def test_norms_dealt_out_in_another_order_disagree(arrays):
    shifted = arrays | {"ratio": np.roll(arrays["ratio"], 1, axis=1)}
    assert {check.agreement for check in experiment.checks(shifted)} == {"agrees", "differs, not explained"}


def test_the_map_writes_a_number_into_every_cell(arrays):
    axes = experiment.draw(arrays).axes[0]
    assert len(axes.texts) == arrays["ratio"][..., 0].size
    assert axes.get_xlabel() and axes.get_ylabel()


def test_sign_descent_comes_nearest_to_the_best_margin_in_its_own_norm():
    ratio = experiment(runs=2, steps=1_000, optimizers=("sign descent",))["ratio"][0]
    own = NORMS.index(OPTIMIZERS["sign descent"][0])
    assert (ratio.argmax(0) == own).all()
    assert ratio[own].min() > 0.98 > np.delete(ratio, own, axis=0).max()
