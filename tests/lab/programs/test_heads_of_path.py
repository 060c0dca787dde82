"""A run of several heads against the joint program of all of them."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs

V = np.random.default_rng(5).standard_normal((2, 5))


def test_a_run_is_compared_with_the_joint_program_that_its_limit_names():
    layout = att.HeadLayout.fused(2)
    weight = att.MultiHead(2, att.KeyQuery(5), layout)
    rule = att.steepest(att.spectral, lambda t: 0.4 * (t + 1.0) ** -0.55)
    tokens, _ = att.datasets.sphere(3, 4, 5, seed=0)
    path = att.train(
        tokens,
        att.Linear(V),
        weight=weight,
        optimizer=rule,
        steps=4_000,
        init=att.gaussian(0, 0.3),
        record=[2_000, 4_000],
    )
    limit = att.limit_norm(weight, rule)
    joint, other = (programs.HeadsNorm(limit.layout, steps) for steps in (att.spectral, att.frobenius))
    assert str(joint) == limit.norm != str(other)
    solution = programs.max_margin_of_heads(path.tokens, path.selected, joint)
    assert programs.compare_heads(path, solution, tolerance=0.05).holds
    assert 0.9 < programs.ratio_of_heads(path, solution)[-1] <= 1
    wrong = programs.max_margin_of_heads(path.tokens, path.selected, other)
    assert not programs.compare_heads(path, wrong, tolerance=0.05).holds
    with pytest.raises(ValueError, match="has no heads"):
        programs.compare_heads(path.head(0), solution)
