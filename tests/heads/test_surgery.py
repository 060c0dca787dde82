"""Surgery: the same weight changes nothing, another one does, and a fitted scale is the best one."""

import numpy as np
import pytest

import attsvm as att
from attsvm.heads import replace_head
from attsvm.heads.surgery import change, divergence, fitted, layer_of, output, separating, truncated
from tests.heads.conftest import TEXTS


@pytest.fixture(params=["bert", "llama"])
def patient(request):
    reader = request.getfixturevalue(request.param)
    texts = reader.tokenise(TEXTS)
    return reader, texts, layer_of(reader, texts, 1), output(reader, texts)


def test_a_head_with_its_own_weight_leaves_the_model_alone(patient):
    reader, texts, layer, said = patient
    same = change(reader, texts, layer, 2, layer.head(2).W, said)
    assert same.kept == 1 and abs(same.divergence) < 1e-6 and abs(same.output) < 1e-6


def test_a_head_without_its_weight_changes_the_model(patient):
    reader, texts, layer, said = patient
    gone = change(reader, texts, layer, 2, 0 * layer.head(2).W, said)
    assert gone.kept < 1 and gone.divergence > 1e-3 and gone.output > 1e-6


def test_the_full_rank_is_the_head_and_less_is_not(bert):
    head = layer_of(bert, bert.tokenise(TEXTS), 0).head(0)
    assert np.allclose(truncated(head, 8), head.W)  # heads are 8 wide
    assert np.linalg.norm(truncated(head, 2) - head.W) > 0.1 * np.linalg.norm(head.W)


def test_the_fitted_scale_of_the_heads_own_weight_is_one(bert):
    head = layer_of(bert, bert.tokenise(TEXTS), 0).head(0)
    assert np.allclose(fitted(head, 7 * head.W), head.W, rtol=1e-3)
    assert not np.allclose(7 * head.W, head.W, rtol=1e-3)


def test_the_max_margin_weight_makes_the_selections_it_was_given(bert):
    layer = layer_of(bert, bert.tokenise(TEXTS), 0)
    head = layer.head(0, layer.at(0)[:, :6])
    W = separating(head, att.frobenius)
    logits = np.einsum("ntd,de,ne->nt", head.tokens.keys, W, head.tokens.queries)
    assert np.array_equal(np.where(head.tokens.mask, logits, -np.inf).argmax(-1), head.selected)


def test_divergence_is_zero_only_for_equal_attention():
    s = np.array([0.7, 0.3, 0.0])
    assert divergence(s, s) == 0 < divergence(s, np.array([0.3, 0.7, 0.0]))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_one_call_replaces_a_head_and_says_what_changes(name, request):
    reader = request.getfixturevalue(name)
    texts = reader.tokenise(TEXTS)
    own, said = layer_of(reader, texts, 1).head(2).W, output(reader, texts)
    same = replace_head(reader, TEXTS, (1, 2), own)
    assert same.change.kept == 1 and abs(same.change.output) < 1e-6 and same.held_out is None
    gone = replace_head(reader, TEXTS, (1, 2), 0 * own, held_out=["another text , not seen"])
    assert gone.change.output > 1e-6 < gone.held_out.output
    with gone.applied():
        assert not np.allclose(output(reader, texts), said)
    assert np.array_equal(output(reader, texts), said) and "1·2, rank 0" in repr(gone)


def test_a_head_is_replaced_by_a_rank_or_by_the_margin_of_a_norm(bert):
    whole, low = (replace_head(bert, TEXTS, (0, 0), rank).change for rank in (8, 1))  # heads are 8 wide
    assert whole.kept == 1 and abs(whole.divergence) < 1e-5 < low.divergence
    wide = replace_head(bert, TEXTS, (0, 0), att.frobenius, queries=6)
    assert wide.W.shape == (49, 49) and 0 < wide.change.kept <= 1


def test_a_weight_that_is_none_is_refused(bert):
    for weight, said in (
        (50, "Pass 1 to 49"),
        (np.eye(3), r"shape \(3, 3\), but heads in hidden space need"),
    ):
        with pytest.raises(ValueError, match=said):
            replace_head(bert, TEXTS, (0, 0), weight)
    with pytest.raises(ValueError, match=r"no norm 'nuclaer'\. Did you mean nuclear\?"):
        replace_head(bert, TEXTS, (0, 0), "nuclaer")
    with pytest.raises(ValueError, match="heads 0 to 5"):
        replace_head(bert, TEXTS, (0, 6), 1)
