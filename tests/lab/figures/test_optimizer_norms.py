"""The map of optimizers and norms."""

import numpy as np

from attsvm_lab.figures.ours.optimizer_norms import NORMS, OPTIMIZERS, experiment
from tests.lab.figures.arrays import arrays


def test_the_map_writes_a_number_into_every_cell():
    found = arrays("optimizer-norms")
    assert len(experiment.draw(found).axes[0].texts) == found["ratio"][..., 0].size


def test_sign_descent_comes_nearest_to_the_best_margin_in_its_own_norm():
    ratio = experiment(runs=2, steps=1_000, optimizers=("sign descent",))["ratio"][0]
    own = NORMS.index(OPTIMIZERS["sign descent"][0])
    assert (ratio.argmax(0) == own).all()
    assert ratio[own].min() > 0.98 > np.delete(ratio, own, axis=0).max()
