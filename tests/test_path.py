"""A path knows its attention, its selection and how to be saved."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm import Tokens, datasets
from attsvm.path import Path

pytestmark = pytest.mark.quick


@pytest.fixture
def path():
    tokens, _ = datasets.sphere(3, 4, 5, seed=range(2))
    W = np.random.default_rng(0).standard_normal((2, 3, 5, 5)) * np.array([0.0, 1.0, 1e5])[:, None, None]
    zeros = np.zeros((2, 3))
    return Path(tokens, np.array([0, 10, 100]), W, zeros, zeros, np.array(["steps", "diverged"]))


def test_attention_is_softmax_of_the_logits(path):
    t, W = path.tokens, path.W
    logits = np.einsum("rntd,rkde,rne->rknt", t.keys, W, t.queries)[:, 1]
    np.testing.assert_allclose(path.attention[:, 1], np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    assert (path.attention[:, 0] == 0.25).all()


@pytest.mark.parametrize("place", [2, -3, 1.0, slice(0, 2), None, True, [0]])
def test_what_is_no_single_run_or_head_is_refused(path, place):
    with pytest.raises(IndexError, match=r"run is .* from 0 to 1"):
        path.run(place)
    of_heads = replace(path, W=path.W[0][:, None].repeat(2, 1), stopped="steps", heads=2)
    with pytest.raises(IndexError, match=r"head is .* from 0 to 1"):
        of_heads.head(place)
    np.testing.assert_array_equal(path.run(-1).W, path.run(np.int64(1)).W)


def test_log_attention_survives_saturation(path):
    assert (path.attention[:, 2].min(-1) == 0).any()
    assert np.isfinite(path.log_attention).all()


def test_the_largest_finite_weight_has_the_attention_of_its_direction(path):
    tokens = Tokens(8 * path.tokens.keys, path.tokens.queries)
    weights = (size * np.sign(path.W) for size in (2.0**20, 2.0**1023))
    saturated, huge = (replace(path, tokens=tokens, W=W) for W in weights)
    np.testing.assert_array_equal(huge.attention[:, 2], saturated.attention[:, 2])
    np.testing.assert_array_equal(huge.selected, saturated.selected)


def test_the_selection_is_the_largest_logit_of_the_last_weight(path):
    np.testing.assert_array_equal(path.selected.argmax(-1), path.log_attention[:, -1].argmax(-1))
    assert (path.selected.sum(-1) == 1).all()


def test_an_undecided_path_selects_every_tied_token(path):
    start = Path(path.tokens, path.index[:1], path.W[:, :1], path.loss[:, :1], path.loss[:, :1], path.stopped)
    assert start.selected.all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-600, 0, 600])
def test_the_scale_of_the_keys_moves_to_the_weight_without_a_warning(path, power):
    tokens = Tokens(np.ldexp(path.tokens.keys, power), path.tokens.queries)
    moved = replace(path, tokens=tokens, W=np.ldexp(path.W, -power))
    np.testing.assert_array_equal(moved.log_attention, path.log_attention)


@pytest.mark.filterwarnings("error")
def test_logits_beyond_the_largest_number_still_have_a_winner(path):
    tokens = Tokens(path.tokens.keys * 1e200, path.tokens.queries * 1e100)
    far = replace(path, tokens=tokens, W=path.W * 1e150)
    np.testing.assert_array_equal(far.selected, path.selected)
    np.testing.assert_array_equal(far.attention[:, -1], path.selected)


def test_one_run_of_a_path_is_a_path(path):
    np.testing.assert_array_equal(path.run(1).attention, path.attention[1])
    assert path.run(1).stopped == "diverged"
    with pytest.raises(ValueError, match="no runs axis"):
        path.run(0).run(0)


def test_saved_paths_come_back(path, tmp_path):
    path.save(tmp_path / "path.npz")
    back = Path.load(tmp_path / "path.npz")
    np.testing.assert_array_equal(back.W, path.W)
    np.testing.assert_array_equal(back.stopped, path.stopped)
    assert back.kind == "steps"
    assert back.K is None


def test_tokens_alone_are_not_a_path(path, tmp_path):
    path.tokens.save(tmp_path / "tokens.npz")
    with pytest.raises(ValueError, match="not a saved Path"):
        Path.load(tmp_path / "tokens.npz")


def test_paths_print_their_end(path):
    assert "2 runs" in repr(path)
    assert "1 diverged, 1 steps" in repr(path)
    assert "stopped: steps" in repr(path.run(0))
