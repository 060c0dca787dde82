"""A path knows its attention, its selection and how to be saved."""

import io
from dataclasses import replace

import numpy as np
import pytest

from attsvm import (
    Linear,
    Tokens,
    best_tokens,
    classify,
    compare,
    datasets,
    frobenius,
    max_margin,
    steepest,
    train,
)
from attsvm.data.path import Path

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


# ---------------------------------------------------------------------- weights trained elsewhere


def forms(weights, torch, jnp):
    """One path of weights in every form that libraries keep it in."""
    return {
        "stack": weights,
        "list": [W.copy() for W in weights],
        "tuple": tuple(W.copy() for W in weights),
        "generator": (W.copy() for W in weights),
        "nested lists": weights.tolist(),
        "torch stack": torch.tensor(weights, requires_grad=True),
        "torch list": [torch.tensor(W) for W in weights],
        "bfloat16": torch.tensor(weights).bfloat16(),
        "JAX": jnp.asarray(weights),
        "JAX list": [jnp.asarray(W) for W in weights],
    }


def test_weights_of_every_library_and_form_are_one_path():
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    import jax.numpy as jnp

    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    weights = np.random.default_rng(0).integers(-8, 8, (4, 5, 5)) / 8.0  # exact in bfloat16, too
    for name, form in forms(weights, torch, jnp).items():
        path = Path.of(tokens, form, steps=[0, 1, 10, 100])
        np.testing.assert_array_equal(path.W, weights, err_msg=name)
        assert path.W.dtype == float and path.kind == "steps" and path.runs is None
    K, Q = np.random.default_rng(1).standard_normal((2, 4, 5, 3))
    pairs = {
        "stacks": (K, Q),
        "list of pairs": list(zip(K.copy(), Q.copy(), strict=True)),
        "torch": [(torch.tensor(k), torch.tensor(q)) for k, q in zip(K, Q, strict=True)],
    }
    for name, form in pairs.items():
        path = Path.of(tokens, form)
        np.testing.assert_allclose(path.W, np.einsum("kdr,ker->kde", K, Q), err_msg=name)
        np.testing.assert_array_equal(path.K, K)


def test_weights_from_elsewhere_are_judged_as_a_run_is(tmp_path):
    tokens, v = datasets.sphere(3, 4, 5, seed=0)
    run = train(tokens, Linear(v), optimizer=steepest(frobenius, 0.1), steps=300, record=[50, 150, 300])
    path = Path.of(tokens, [W.copy() for W in run.W], steps=run.index, loss=run.loss)
    solution = max_margin(tokens, path.selected)
    assert str(compare(path, solution, v)) == str(compare(run, solution, v))
    assert classify(path, v) == classify(run, v)
    assert repr(path) == repr(run)
    silent = Path.of(tokens, run.W)
    assert "loss" not in repr(silent) and silent.index.tolist() == [0, 1, 2, 3]
    silent.save(tmp_path / "path.npz")
    assert repr(Path.load(tmp_path / "path.npz")) == repr(silent)


@pytest.mark.filterwarnings("error")
def test_a_path_without_losses_is_drawn():
    tokens, v = datasets.sphere(3, 4, 5, seed=0)
    solution = max_margin(tokens, best_tokens(tokens, v))
    path = Path.of(tokens, solution.W * np.arange(5.0)[:, None, None])
    path.plot(solution).savefig(io.BytesIO())
    assert compare(path, solution).holds


def test_runs_and_prompts_from_elsewhere():
    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    weights = np.random.default_rng(0).standard_normal((2, 3, 5, 5))
    runs = Path.of(tokens, weights, loss=np.zeros((2, 3)))
    assert runs.runs == 2 and runs.stopped.tolist() == ["steps"] * 2
    np.testing.assert_array_equal(runs.run(1).W, weights[1])
    several = datasets.sphere(3, 4, 5, seed=range(2))[0]
    assert Path.of(several, weights).selected.shape == (2, 3, 4)
    prompt = Tokens(tokens.keys)
    assert Path.of(prompt, weights[0, :, 0]).W.shape == (3, 5, 1)
    assert Path.of(prompt, [p.copy() for p in weights[0, :, 0]]).W.shape == (3, 5, 1)
    assert Path.of(tokens, weights[0, 0]).W.shape == (1, 5, 5)
    with pytest.raises(ValueError, match="the tokens have 2 runs"):
        Path.of(several, weights[0])


WRONG = {
    "shape": (np.zeros((3, 5, 4)), {}, r"W has shape \(3, 5, 4\). Pass \(k, 5, 5\)"),
    "transposed": ((np.zeros((3, 2, 5)), np.zeros((3, 2, 5))), {}, "Transpose them"),
    "ranks": ((np.zeros((3, 5, 2)), np.zeros((3, 5, 3))), {}, r"W = K Qᵀ"),
    "ragged": ([np.zeros((5, 5)), np.zeros((4, 4))], {}, r"shapes \(5, 5\), \(4, 4\)"),
    "nothing": ([], {}, "shapes none"),
    "words": (["W"], {}, "not an array of real numbers"),
    "complex": (np.zeros((3, 5, 5), complex), {}, "not an array of real numbers"),
    "NaN": (np.full((3, 5, 5), np.nan), {}, "NaN"),
    "one memory": ([np.zeros((5, 5))] * 3, {}, "Append copies"),
    "too few steps": (np.zeros((3, 5, 5)), {"steps": [0, 1]}, "Pass 3 increasing numbers"),
    "steps that fall": (np.zeros((3, 5, 5)), {"steps": [0, 2, 1]}, "Pass 3 increasing numbers"),
    "too few losses": (np.zeros((3, 5, 5)), {"loss": [0.0]}, r"loss has shape \(1,\)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_that_fit_no_path_are_refused_in_words(what):
    weights, options, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        Path.of(datasets.sphere(3, 4, 5, seed=0)[0], weights, **options)


def test_a_parameter_of_torch_appended_again_and_again_is_noticed():
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        W = torch.zeros(5, 5, dtype=dtype, requires_grad=True)
        with pytest.raises(ValueError, match=r"detach\(\)\.clone\(\)"):
            Path.of(tokens, [W.detach() for _ in range(3)])
        assert len(Path.of(tokens, [W.detach().clone() for _ in range(3)]).index) == 3


# ---------------------------------------------------------------------- copies of the winner


@pytest.mark.parametrize("form", ["as given", "float32", "by columns", "in a file", "runs"])
@pytest.mark.parametrize("d", [1, 2, 7, 33])
def test_copies_of_the_winning_token_are_attended_to_alike_wherever_they_stand(form, d, tmp_path):
    # BLAS rounds equal keys apart by their place: of Gaussian keys with d > 1, one copy in twenty was lost.
    rng = np.random.default_rng(d)
    n, T = 60, 23
    keys, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, 3))
    W = rng.standard_normal((d, 3))
    keys = keys.astype(np.float32).astype(float)
    best = np.einsum("ntd,de,ne->nt", keys, W, queries).argmax(-1)
    copies = rng.random((n, T)) < 0.2
    copies[np.arange(n), best] = True
    keys = np.where(copies[..., None], keys[np.arange(n), best][:, None], keys)
    given = {"float32": keys.astype(np.float32), "by columns": np.asfortranarray(keys)}.get(form, keys)
    if form == "in a file":
        np.save(tmp_path / "keys.npy", keys)
        given = np.load(tmp_path / "keys.npy", mmap_mode="r")
    tokens = Tokens(given, queries, dtype=np.float32 if form == "float32" else np.float64)
    weights = np.stack([0 * W, W]) if form != "runs" else np.stack([[0 * W, W]] * 3)
    path = Path.of(tokens, weights)
    assert (path.selected == copies).all()
    assert not (replace(path, W=-path.W).selected & copies).any()
