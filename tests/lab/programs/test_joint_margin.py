"""The best margin of head and attention together, against all selections one by one."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import datasets, programs

SAME = 1e-8
"""Two certified programs of one selection."""


def by_enumeration(tokens):
    best = 0.0
    for chosen in product(*(np.flatnonzero(row) for row in tokens.mask)):
        try:
            best = max(best, float(att.label_svm(tokens, np.array(chosen)).margin))
        except att.NotSeparable:
            continue
    return best


@pytest.mark.parametrize("seed", range(4))
def test_no_selection_has_a_larger_label_margin(seed):
    tokens, _ = att.datasets.prompt_sphere(4, 3, 6, seed=seed)
    found = programs.joint_margin(tokens)
    assert found.certified
    assert found.margin == pytest.approx(by_enumeration(tokens), rel=SAME)
    assert found.programs < 3**4 * 2


def test_masked_tokens_are_never_selected_and_values_may_differ_from_keys():
    drawn, _ = att.datasets.prompt_sphere(4, 3, 6, seed=1)
    mask = np.array([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 1]], bool)
    tokens = att.Tokens(drawn.keys, labels=drawn.labels, mask=mask, values=drawn.keys[..., ::-1])
    found = programs.joint_margin(tokens)
    assert mask[np.arange(4), found.selected].all()
    assert found.margin == pytest.approx(by_enumeration(tokens), rel=SAME)


def test_another_selection_or_a_smaller_bound_is_not_certified():
    tokens, _ = att.datasets.prompt_sphere(4, 3, 6, seed=0)
    found = programs.joint_margin(tokens)
    other = replace(found, selected=(found.selected + 1) % 3)
    assert not other.certified
    assert not replace(found, bound=1.001 * found.bound).certified


def test_a_search_that_is_cut_short_says_so_and_its_bound_still_holds():
    tokens, _ = datasets.signal_beside_noise(8, 4, 500, 5.0, in_span=True)
    short = programs.joint_margin(tokens, most=100)
    assert not short.certified
    assert short.margin < short.bound
    assert by_sampling(tokens, 300) <= short.bound


def by_sampling(tokens, count):
    rng = np.random.default_rng(0)
    rows = tokens.labels[:, None, None] * tokens.values
    attention = rng.dirichlet(0.3 * np.ones(tokens.T), size=(count, tokens.n))
    best = 0.0
    for pooled in np.einsum("knt,ntd->knd", attention, rows):
        best = max(best, float(att.separate(pooled).margin))
    return best


def test_the_margin_is_approached_along_the_prompt_and_never_passed():
    tokens, _ = att.datasets.prompt_sphere(4, 3, 12, seed=0)
    found = programs.joint_margin(tokens)
    reached = [_pooled_margin(tokens, r * found.prompt.W) for r in (1, 3, 10, 30)]
    assert all(np.diff(reached) > 0)
    assert reached[-1] <= found.bound
    assert reached[-1] == pytest.approx(found.margin, rel=1e-10)  # 1 − s ≤ 2 e⁻³⁰


def _pooled_margin(tokens, W):
    logits = (tokens.keys @ W)[..., 0]
    s = np.exp(logits - logits.max(-1, keepdims=True))
    pooled = np.einsum("nt,ntd->nd", s / s.sum(-1, keepdims=True), tokens.values)
    return float(att.separate(tokens.labels[:, None] * pooled).margin)


def test_labels_that_no_head_separates_are_refused():
    tokens = att.Tokens(np.ones((2, 2, 3)), labels=[1.0, -1.0])
    with pytest.raises(ValueError, match="no head"):
        programs.joint_margin(tokens)
    with pytest.raises(ValueError, match="runs axis"):
        programs.joint_margin(att.datasets.prompt_sphere(2, 2, 3, seed=range(2))[0])
