"""Training on corpora: the right loss, the right limits, past saturation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from attsvm import next_token as nt
from attsvm.comparison.verdict import cosine
from attsvm.norms import frobenius
from attsvm.training.losses import log_loss
from attsvm.training.optimizers import gd, steepest
from attsvm.training.prediction_heads import LogOdds

CORPUS = nt.random_corpus(30, 4, 8, seed=0)
RULES = (steepest(frobenius, 0.1), steepest(frobenius, 0.05))


@pytest.fixture(scope="module")
def stages():
    return nt.train_two_stages(CORPUS, steps=(300, 20_000), optimizers=RULES)


def cross_entropy(model, corpus):
    """−log of the next token's probability, from the model alone."""
    p = model.probabilities(corpus.ids, corpus.queries)
    return -np.log(p[np.arange(corpus.n), corpus.following]).mean()


def test_results_print_in_one_line(stages):
    assert repr(stages).startswith(f"TwoStages(V={CORPUS.V}, d={CORPUS.V}; W_ov 300 steps to loss ")
    recovery = repr(nt.recover(nt.log2_toy()))
    assert recovery.startswith("Recovery(4 of 16 logits in 3 components; residual ")
    assert all("\n" not in text and "array" not in text for text in (repr(stages), recovery))


def test_the_recorded_loss_is_the_models_cross_entropy(stages):
    for k in (0, 10, -1):
        model = nt.OneLayer(stages.embeddings, stages.feed_forward.final, stages.attention.W[k])
        assert stages.attention.loss[k] == pytest.approx(cross_entropy(model, CORPUS), rel=1e-10)


def test_the_first_stage_is_the_cross_entropy_of_the_collocations(stages):
    W = stages.feed_forward.W[5]
    expected = -np.mean([jax.nn.log_softmax(W[:, x])[CORPUS.collocation[x]] for x in range(8)])
    assert stages.feed_forward.loss[5] == pytest.approx(expected, rel=1e-6)


def test_both_stages_point_to_their_programs(stages):
    first = cosine(stages.feed_forward.W, nt.feed_forward_program(CORPUS).W)
    second = cosine(stages.attention.W, nt.attention_program(CORPUS).W)
    assert 1 - first[-1] < 1e-9
    assert 1 - second[-1] < 1e-3
    assert 1 - second[-1] < 0.2 * (1 - second[np.searchsorted(stages.attention.index, 2_000)])


def test_both_norms_grow_linearly(stages):
    for path in (stages.feed_forward, stages.attention):
        assert np.corrcoef(path.index, path.norm())[0, 1] ** 2 > 0.999


def test_the_trained_model_predicts_the_corpus(stages):
    assert (stages.model.predict(CORPUS.ids) == CORPUS.following).all()


def test_the_trained_order_extends_the_corpus(stages):
    logits = nt.token_logits(stages.model.W_kq, stages.embeddings)
    ranked, pairs = nt.extended_pairs(CORPUS, logits)
    assert (ranked == pairs).all() and pairs.any()
    assert not nt.extended_pairs(CORPUS, -logits)[0].any()


def test_unseen_sentences_are_predicted_by_the_extended_order(stages):
    """An optimal token beside non-comparable ones: no sentence said so, the model knows."""
    roles = nt.Priorities.of(CORPUS).roles
    sentences, expected = [], []
    for q in range(CORPUS.V):
        others = np.flatnonzero(roles[q] == nt.Role.non_comparable)
        for x in np.flatnonzero(roles[q] == nt.Role.optimal):
            sentences += [[x, y] for y in others if y != q]
            expected += [(q, CORPUS.collocation[x]) for y in others if y != q]
    queries, following = np.array(expected).T
    assert len(sentences) > 10
    assert (stages.model.predict(sentences, queries) == following).all()


def test_the_loss_gap_is_the_difference_while_that_is_visible(stages):
    gap = nt.log_excess(stages.attention, CORPUS)
    best = nt.OneLayer(stages.embeddings, stages.feed_forward.final, 1e6 * stages.attention.final)
    seen = stages.attention.loss - cross_entropy(best, CORPUS)
    visible = seen > 1e-6
    assert visible.sum() > 10
    np.testing.assert_allclose(np.exp(gap[visible]), seen[visible], rtol=1e-6)


def test_the_loss_gap_goes_on_falling_below_underflow(stages):
    far = nt.train_two_stages(CORPUS, steps=(300, 4_000), optimizers=(RULES[0], steepest(frobenius, 2.0)))
    gap = nt.log_excess(far.attention, CORPUS)
    assert gap[-1] < -800
    assert (np.diff(gap[far.attention.index > 400]) < 0).all()


def test_log_odds_with_the_logistic_loss_is_cross_entropy():
    logits = np.array([2.0, -1.0, 0.5, 40.0])
    loss = jax.jit(lambda odds: jax.nn.softplus(-LogOdds().value(odds)))
    for label in range(4):
        odds = np.delete(logits - logits[label], label)
        expected = logsumexp(logits) - logits[label]
        assert float(loss(odds)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_gradient_of_log_odds_is_autodiffs():
    pooled = np.random.default_rng(0).standard_normal((3, 5))
    expected = jax.jit(jax.grad(lambda r: LogOdds().value(r).sum()))(pooled)
    np.testing.assert_allclose(jax.jit(LogOdds().gradient)(pooled), expected, rtol=1e-5)


@pytest.mark.parametrize("drop", [1e-3, 0.3, 0.59])
def test_log_loss_knows_its_increase(drop):
    with jax.enable_x64(True):
        f = jnp.asarray(0.6)
        found = jnp.exp(log_loss.log_increase(f, jnp.log(drop)))
        assert float(found) == pytest.approx(float(log_loss.value(f - drop) - log_loss.value(f)), rel=1e-12)
        assert float(log_loss.log_increase(f, jnp.asarray(-2000.0))) == pytest.approx(-2000 - np.log(0.6))


def test_the_toy_tends_to_log_two():
    path = nt.train_choice(nt.log2_toy(), steps=100_000, optimizer=gd(4.0))
    w = path.final[:, 3]
    assert w[0] - w[1] == pytest.approx(np.log(2), abs=1e-4)
    assert w[1] - w[2] > 10 and w[1] - w[3] > 10


def test_copies_count_in_training():
    """Twice the token, half the weight it needs: a sentence a b b → a/b equally often has odds 1 : 1."""
    corpus = nt.Corpus.of([[*"abba"], [*"abbb"]])
    w = nt.train_choice(corpus, steps=3_000, optimizer=gd(2.0)).final[:, 1]
    assert w[0] - w[1] == pytest.approx(np.log(2), abs=1e-9)


def test_bad_training_input_is_refused():
    with pytest.raises(ValueError, match=r"steps is 100\. Pass a pair"):
        nt.train_two_stages(CORPUS, steps=100)
    with pytest.raises(ValueError, match="W_ov has shape"):
        nt.prediction_tokens(CORPUS, np.eye(3))


def test_a_sentence_of_one_token_only_lowers_the_mean_gap(stages):
    """It loses nothing, so that the gap of n sentences is n/(n + 1) of it, below underflow too."""
    far = replace(stages.attention, W=100 * stages.attention.W)
    x = CORPUS.ids[0, 0]
    ids = np.vstack([CORPUS.ids, [x, -1, -1, -1]])
    following = np.append(CORPUS.following, CORPUS.collocation[x])
    more = nt.Corpus(ids, following, CORPUS.vocabulary, CORPUS.collocation)
    tokens = nt.prediction_tokens(more, stages.feed_forward.final, stages.embeddings)
    gap, own = nt.log_excess(replace(far, tokens=tokens), more), nt.log_excess(far, CORPUS)
    assert own[-1] < -800
    np.testing.assert_allclose(gap, own + np.log(CORPUS.n / more.n), rtol=1e-12)


def test_a_sure_output_layer_leaves_the_loss_gap_exact(stages):
    """Behind it wrong tokens have probability e^−1500, and e^Δ overflows before attention settles."""
    import mpmath

    def gap(values, logs, a):
        others = [t for t in range(len(values)) if t != a]
        odds = [mpmath.exp(value) for value in values[a]]
        moved = [sum(mpmath.exp(logs[t]) * (values[t, v] - values[a, v]) for t in others) for v in range(7)]
        rise = sum(o * mpmath.expm1(m) for o, m in zip(odds, moved, strict=True)) / (1 + sum(odds))
        return mpmath.log1p(rise)

    tokens = nt.prediction_tokens(CORPUS, 200 * stages.feed_forward.final, stages.embeddings)
    path = replace(stages.attention, tokens=tokens, W=20 * stages.attention.W)
    winner = np.argmax(CORPUS.ids == CORPUS.winners[:, None], axis=-1)
    found, logs = nt.log_excess(path, CORPUS), path.log_attention
    assert np.exp(found[0]) == pytest.approx(np.log(4)) and found[-1] < -1_000  # at W = 0 four tokens tie
    for k in (0, 20, -1):
        with mpmath.workdps(40):
            each = [gap(*example) for example in zip(tokens.values, logs[k], winner, strict=True)]
            assert found[k] == pytest.approx(float(mpmath.log(sum(each) / CORPUS.n)), rel=1e-11)


def test_the_loss_gap_of_another_corpus_or_stage_is_refused(stages):
    with pytest.raises(ValueError, match="and the same corpus"):
        nt.log_excess(stages.attention, nt.random_corpus(30, 4, 9, seed=0))
    with pytest.raises(ValueError, match="and the same corpus"):
        nt.log_excess(stages.feed_forward, CORPUS)


@pytest.mark.parametrize(
    "ids, queries, told",
    [
        ([[0, 1], [0, 99]], None, "unknown token 99"),
        ([[-1, -1]], None, "sentence 0 is empty"),
        ([[0, -1, 1]], None, "padding before its last token"),  # its last token is 1, not the padding
        ([[0, 1]], [-1], "unknown token -1"),
        ([[0, 1], [1, 0]], [0], "1 entries but there are 2 sentences"),
        ([[0, 1]], [0.0], "dtype float64"),
        (np.array([[0, 2**64 - 1]], np.uint64), None, "unknown token"),
    ],
)
def test_bad_sentences_are_refused_by_the_model(stages, ids, queries, told):
    for reader in (stages.model.probabilities, stages.model.attention):
        with pytest.raises(ValueError, match=told):
            reader(ids, queries)
