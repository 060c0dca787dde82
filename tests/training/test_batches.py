"""Mini-batches: which examples they hold, their gradients past saturation, and runs that are cut in two."""

import jax
import numpy as np
import pytest

from attsvm import Tokens, frobenius, linf
from attsvm.datasets import sphere
from attsvm.training import batches, streaming
from attsvm.training.batches import Batches, BatchForm
from attsvm.training.optimizers import adam, gd, polyak, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train

N, SIZE, STEPS = 5, 2, 6
CLOSE = 1e-9  # a few steps in float64 against mpmath's gradients; another batch shows at 1e-2
ROUNDING = 1e-11  # what 60 steps make of sums in another order
FORMS = {order: BatchForm(SIZE, order == "replacement") for order in batches.ORDERS}


@pytest.fixture(scope="module")
def problem():
    return sphere(N, 4, 5, seed=0)


def run(problem, rule, steps=STEPS, **options):
    tokens, v = problem
    return train(tokens, Linear(v), optimizer=rule, steps=steps, record=[steps], **options)


def some(problem, chosen):
    tokens, v = problem
    return Tokens(tokens.keys[chosen], tokens.queries[chosen], tokens.labels[chosen]), v


# ---------------------------------------------------------------------- which examples


def test_an_epoch_holds_every_example_once_and_each_has_its_own_order():
    def epoch(form, seed, number):
        return np.concatenate([batches.on_host(form, seed, N, 3 * number + k) for k in range(3)])

    epochs = np.array([[epoch(FORMS["shuffled"], seed, k) for k in range(40)] for seed in range(3)])
    assert (np.sort(epochs) == np.arange(N)).all()
    assert len(np.unique(epochs.reshape(-1, N), axis=0)) > 60  # of 120 that there are, and 120 draws
    drawn = np.array([epoch(FORMS["replacement"], 0, k) for k in range(40)])  # of six
    assert (np.sort(drawn)[:, :N] == np.arange(N)).all(1).mean() < 0.5


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_pair_of_examples_follows_each_other_equally_often(form):
    pairs = np.zeros((N, N))
    for step in range(0, 12_000, 3):  # the first batch of an epoch
        first, second = batches.on_host(form, 7, N, step)
        pairs[first, second] += 1
    wanted = np.full((N, N), 1 / N**2) if form.replacement else (1 - np.eye(N)) / (N * (N - 1))
    chi = ((pairs / 4_000 - wanted) ** 2 / np.where(wanted > 0, wanted, 1)).sum() * 4_000
    assert chi < 45  # 24 or 19 degrees of freedom: one seed in 200 or fewer is beyond
    assert pairs[wanted == 0].sum() == 0


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_compiled_loop_looks_at_the_same_examples(form):
    with jax.enable_x64(True):
        order = np.zeros(N, np.int64)
        for step in range(7):
            found, order, share = batches.drawn(form, np.uint64(3), order, batches.Place(1, step))
            if step >= 1:  # where the call began
                wanted = batches.on_host(form, 3, N, step)
                np.testing.assert_array_equal(found[: len(wanted)], wanted)
                full = np.full(SIZE, 1 / SIZE) if share is None else np.asarray(share)
                np.testing.assert_array_equal(
                    full, np.where(np.arange(SIZE) < len(wanted), 1 / len(wanted), 0)
                )


# ---------------------------------------------------------------------- their gradients


@pytest.mark.parametrize("order", FORMS)
@pytest.mark.parametrize("scale", [0.5, 1_000.0], ids=["soft", "saturated"])
def test_a_step_goes_along_the_exact_gradient_of_its_batch(order, scale, problem, exact_gradient):
    W = start = scale * np.random.default_rng(0).standard_normal((5, 5))
    for step in range(STEPS):
        chosen = batches.on_host(FORMS[order], 1, N, step)
        W = W - 0.1 * exact_gradient(*some(problem, chosen), W)[0]
    found = run(problem, steepest(frobenius, 0.1), init=start, batch=Batches(SIZE, 1, order)).final
    np.testing.assert_allclose(found - start, W - start, atol=CLOSE)
    for other in (None, Batches(SIZE, 2, order)):
        assert np.abs(run(problem, steepest(frobenius, 0.1), init=start, batch=other).final - W).max() > 1e-2


def test_past_saturation_the_usual_formula_tells_nothing_of_a_batch(problem):
    """The twin of the test above: in float64 the textbook gradient of those batches is zero or noise."""
    W = 1_000.0 * np.random.default_rng(0).standard_normal((5, 5))
    tokens, v = some(problem, batches.on_host(FORMS["shuffled"], 1, N, 0))
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    s = np.exp(logits - logits.max(1, keepdims=True))
    s /= s.sum(1, keepdims=True)
    gamma = tokens.labels[:, None] * (tokens.keys @ v)
    along = s * (gamma - (s * gamma).sum(1, keepdims=True))
    assert np.abs(np.einsum("nt,ntd,ne->de", along, tokens.keys, tokens.queries)).max() < 1e-30


def test_a_batch_of_all_examples_is_the_full_batch_to_the_bit(problem):
    rule = steepest(linf, 0.1, momentum=0.9)
    whole = run(problem, rule, 60)
    np.testing.assert_array_equal(run(problem, rule, 60, batch=Batches(N)).final, whole.final)
    drawn = run(problem, rule, 60, batch=Batches(N, 0, "replacement"))  # some twice, some never
    assert np.abs(drawn.final - whole.final).max() > 1e-2


@pytest.mark.parametrize("rule", [gd(1.0), polyak(0.1), adam(0.1)], ids=["gd", "polyak", "adam"])
def test_copies_of_one_example_make_a_batch_equal_to_all_of_them(rule, problem):
    """Batches of equal examples are the full batch in value; their sums have other lengths."""
    same = some(problem, np.zeros(N, int))
    other = some(problem, np.arange(N))
    whole, parts = (run(same, rule, 30, batch=batch) for batch in (None, Batches(SIZE)))
    np.testing.assert_allclose(parts.final, whole.final, atol=ROUNDING)
    assert np.abs(run(other, rule, 30, batch=Batches(SIZE)).final - run(other, rule, 30).final).max() > 1e-3


def test_a_batch_that_says_nothing_leaves_the_average_as_it_was():
    """A gradient of zeros comes at scale one: it must not wash out an average at e^(−5,000)."""
    with jax.enable_x64(True):
        for rule, part in (
            (steepest(frobenius, 0.1, momentum=0.9), "mantissa"),
            (adam(0.1, eps=0.0), "mean"),
        ):
            params = {"W": np.zeros(3)}
            grads = {"W": np.array([3.0, 0.0, 4.0])}
            update = jax.jit(rule.update)
            first, state = update(grads, rule.init(params), params, log_scale=np.float64(-5_000))
            zero = {"W": np.zeros(3)}
            then, state = update(zero, state, params, log_scale=np.float64(0))
            assert np.abs(then["W"]).max() > 0.01 and np.isfinite(then["W"]).all()
            np.testing.assert_array_equal(np.sign(then["W"]), np.sign(first["W"]))
            assert np.abs(jax.tree.leaves(getattr(state, part))[-2 if part == "mean" else 0]).max() > 0


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("order", FORMS)
@pytest.mark.parametrize("rule", [steepest(linf, 0.1, momentum=0.9), adam(0.1)], ids=["signum", "adam"])
def test_a_run_cut_in_two_is_the_whole_run_to_the_bit(order, rule, problem):
    given = {"batch": Batches(SIZE, range(3), order)}
    whole = run(problem, rule, 60, **given)
    half = run(problem, rule, 25, **given)  # in the middle of an epoch
    on = run(problem, rule, 60, resume=half, **given)
    np.testing.assert_array_equal(on.final, whole.final)
    assert np.abs(whole.final[0] - whole.final[1]).max() > 1e-2


def test_a_run_goes_on_with_its_own_batches_only(problem):
    half = run(problem, adam(0.1), 25, batch=Batches(SIZE, 4))
    for other in (None, Batches(SIZE, 5), Batches(3, 4), Batches(SIZE, 4, "replacement")):
        with pytest.raises(ValueError, match="another batch"):
            run(problem, adam(0.1), 60, batch=other, resume=half)
    with pytest.raises(ValueError, match="another batch"):
        run(problem, adam(0.1), 60, batch=Batches(SIZE), resume=run(problem, adam(0.1), 25))


def test_runs_share_one_seed_or_have_one_each(problem):
    rule, starts = steepest(frobenius, 0.1), np.random.default_rng(1).standard_normal((3, 5, 5))
    shared = run(problem, rule, 60, batch=Batches(SIZE, 1), init=starts)
    own = run(problem, rule, 60, batch=Batches(SIZE, (0, 1, 2)), init=starts)
    alone = run(problem, rule, 60, batch=Batches(SIZE, 1), init=starts[1])
    for path in (shared, own):
        np.testing.assert_allclose(path.final[1], alone.final, atol=ROUNDING)
    assert np.abs(shared.final[0] - own.final[0]).max() > 1e-2
    with pytest.raises(ValueError, match="runs axes differ"):
        run(problem, rule, batch=Batches(SIZE, (0, 1)), init=starts)


def test_the_records_tell_the_loss_of_all_examples(problem):
    path = run(problem, steepest(frobenius, 0.1), batch=Batches(SIZE))
    tokens, v = problem
    pooled = np.einsum("nt,ntd->nd", path.attention[-1], tokens.keys)
    assert np.isclose(path.loss[-1], np.log1p(np.exp(-tokens.labels * (pooled @ v))).mean())


# ---------------------------------------------------------------------- large data, and the door


def test_batches_of_a_file_are_read_alone_and_train_as_in_memory(tmp_path, monkeypatch, problem):
    tokens, v = problem
    file = np.memmap(tmp_path / "keys", np.float64, "w+", shape=tokens.keys.shape)
    file[:] = tokens.keys
    mapped = Tokens(
        np.memmap(tmp_path / "keys", np.float64, "r", shape=file.shape), tokens.queries, tokens.labels
    )
    monkeypatch.setattr("attsvm.training.inputs.COPY_LIMIT", 0)
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    before = mapped.keys.passes
    for batch in (Batches(SIZE), Batches(SIZE, 3, "replacement")):
        streamed = run((mapped, v), steepest(frobenius, 0.1), 8, batch=batch)
        np.testing.assert_allclose(
            streamed.final, run(problem, steepest(frobenius, 0.1), 8, batch=batch).final, atol=ROUNDING
        )
    assert mapped.keys.passes == before + 4  # for the two records of each
    with pytest.raises(ValueError, match="one seed for all"):
        run((mapped, v), steepest(frobenius, 0.1), batch=Batches(SIZE, (0, 1)))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (0, "positive integer"),
        (True, "positive integer"),
        (2.5, "positive integer"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(batch, said, problem):
    with pytest.raises(ValueError, match=said):
        Batches(batch)
    with pytest.raises(ValueError, match=f"Pass {N} at most"):
        run(problem, gd(0.1), batch=Batches(N + 1))
    with pytest.raises(TypeError, match=r"batch is 2\. Pass Batches\(size\)"):
        run(problem, gd(0.1), batch=2)
    with pytest.raises(ValueError, match="'shuffled' or 'replacement'"):
        Batches(2, order="sorted")
    with pytest.raises(ValueError, match="nonnegative"):
        Batches(2, seed=-1)
