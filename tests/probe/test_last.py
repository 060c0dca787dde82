"""features="last": a head that reads the last token, alone and beside one that attends."""

import importlib.util
import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.linear_model import LogisticRegression

from attsvm.probe import AttentionProbe, TokenStore

BOTH = ["linear", "last"]


def sequences(n, seed, width=5):
    """Half of the label stands in the last token, half in one token anywhere."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((int(length), width)) for length in rng.integers(2, 9, n)]
    for x in X:
        x[rng.integers(len(x)), 1] += 6 * rng.integers(2)
    y = np.array([int(x[-1, 0] + 0.5 * x[:, 1].max() > 1.5) for x in X])
    return X, y


@pytest.fixture(scope="module")
def fitted():
    X, y = sequences(240, 0)
    return AttentionProbe(features=BOTH).fit(X, y), X, y


def test_the_last_token_is_read_as_logistic_regression_reads_it():
    """The oracle: scikit-learn on standardised last tokens with the same ridge."""
    X, y = sequences(200, 1)
    probe = AttentionProbe(features="last", head_ridge=0.01, prompt_ridge=1.0, tol=1e-9).fit(X, y)
    last = np.stack([x[-1] for x in X])
    standard = (last - last.mean(0)) / last.std(0)
    oracle = LogisticRegression(C=1 / (0.01 * len(y)), tol=1e-10, max_iter=10_000).fit(standard, y)
    expected = oracle.decision_function(standard)
    np.testing.assert_allclose(probe.decision_function(X), expected, atol=1e-5)
    first = [x[::-1] for x in X]  # the control: other tokens are last
    assert abs(probe.decision_function(first) - expected).max() > 0.1


def test_both_heads_are_the_mean_of_a_probe_each(fitted):
    probe, X, y = fitted
    apart = [AttentionProbe(features=kind).fit(X, y).decision_function(X) for kind in BOTH]
    np.testing.assert_allclose(probe.decision_function(X), np.mean(apart, 0), atol=1e-12)
    assert probe.kinds_ == BOTH and probe.last_.tolist() == [False, True]
    assert probe.features_ is None and probe.coef_.shape == (5, 2, 1)
    assert abs(apart[0] - apart[1]).max() > 0.1


def test_both_tell_more_than_either_where_both_places_tell(fitted):
    probe, X, y = fitted
    test, truth = sequences(400, 2)
    alone = [AttentionProbe(features=kind).fit(X, y).score(test, truth) for kind in BOTH]
    assert probe.score(test, truth) > max(alone) + 0.02


def test_attention_of_the_head_is_one_on_the_last_token_and_nothing_elsewhere(fitted):
    probe, X, _ = fitted
    _, of_last = probe.attention(X)
    places = np.array([len(x) - 1 for x in X])
    expected = np.arange(of_last.shape[1]) == places[:, None]
    np.testing.assert_array_equal(of_last, expected)
    assert np.array_equal(probe.select(X)[1], places)


@pytest.mark.parametrize("features", ["last", BOTH, ["last", "rbf"], ["rbf", "linear", "last"]])
def test_every_way_to_read_gives_the_same_scores(features, tmp_path):
    torch = pytest.importorskip("torch")
    X, y = sequences(80, 3)
    probe = AttentionProbe(features=features).fit(X, y)
    scores, width = probe.decision_function(X), max(map(len, X))
    in_turn, at_once = [], []
    for x in X:
        state = probe.start()
        for token in x:
            state, score = probe.step(state, token)
        in_turn.append(score)
        state, _ = probe.step(probe.start(), x[:2])
        at_once.append(score if len(x) == 2 else probe.step(state, x[2:])[1])
    np.testing.assert_allclose(in_turn, scores, atol=1e-9)
    np.testing.assert_allclose(at_once, scores, atol=1e-9)

    padded, mask = np.full((len(X), width, 5), np.nan), np.zeros((len(X), width), bool)
    for i, x in enumerate(X):  # padding on the left, too
        place = slice(0, len(x)) if i % 2 else slice(width - len(x), width)
        padded[i, place], mask[i, place] = x, True
    module, tokens, counts = probe.to_torch(), torch.tensor(padded).float(), torch.tensor(mask)
    with torch.no_grad():
        np.testing.assert_allclose(module(tokens, counts), scores, atol=1e-4)
        state = module.start(len(X))
        for part in (slice(0, 3), slice(3, width)):
            state, growing = module.step(state, tokens[:, part], counts[:, part])
        np.testing.assert_allclose(growing, scores, atol=1e-4)

    loaded = AttentionProbe.load(probe.save(tmp_path / "probe.safetensors"))
    assert np.array_equal(loaded.decision_function(X), scores)
    assert np.array_equal(pickle.loads(pickle.dumps(probe)).decision_function(X), scores)
    spec = importlib.util.spec_from_file_location("plugin", probe.export(tmp_path / "plugin.py", skip=0))
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    np.testing.assert_allclose([plugin.score(torch.tensor(x)) for x in X], scores, atol=1e-9)
    explained = probe.explain(X)
    np.testing.assert_allclose(np.ravel(explained.scores), scores, atol=1e-9)


def test_a_file_of_other_probes_has_no_place_for_the_last_token(tmp_path):
    from attsvm.numbers.files import archive_of

    X, y = sequences(40, 4)
    for features, expected in (("linear", False), ("last", True)):
        file = AttentionProbe(features=features).fit(X, y).save(tmp_path / "probe.safetensors")
        with archive_of(file) as (_, archive):
            assert ("last_" in archive.headers) == expected


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_large_tokens_do_not_reach_the_place(scale):
    """Logits of the other head may be of any size; the head on the last token has none of them."""
    X, y = sequences(60, 6)
    scaled = [scale * x for x in X]
    probe = AttentionProbe(features=BOTH, head_ridge=1e-3, prompt_ridge=1e-3).fit(scaled, y)
    assert not probe.prompt_[:, 1].any() and probe.prompt_[:, 0].any()
    _, of_last = probe.attention(scaled)
    assert set(np.unique(of_last)) == {0.0, 1.0} and np.isfinite(probe.decision_function(scaled)).all()


def test_sequences_of_one_token_three_classes_and_stores_on_disk(tmp_path):
    rng = np.random.default_rng(7)
    tokens, classes = rng.standard_normal((90, 4)), np.arange(90) % 3
    tokens[np.arange(90), classes] += 2
    probe = AttentionProbe(features=BOTH).fit(tokens[:, None], classes)
    assert probe.score(tokens[:, None], classes) > 0.6 and probe.intercept_.shape == (3,)
    np.save(tmp_path / "tokens.npy", tokens.astype(np.float16))
    mapped = TokenStore.from_flat(np.load(tmp_path / "tokens.npy", mmap_mode="r"), np.arange(0, 91, 3))
    labels = np.arange(30) % 2
    from_disk = AttentionProbe(features=BOTH).fit(mapped, labels).decision_function(mapped)
    in_memory = tokens.astype(np.float16).reshape(30, 3, 4)
    expected = AttentionProbe(features=BOTH).fit(in_memory, labels).decision_function(in_memory)
    np.testing.assert_allclose(from_disk, expected, atol=1e-5)


def test_what_has_no_meaning_is_refused_or_said():
    X, y = sequences(60, 8)
    with pytest.raises(ValueError, match='features "last" have no positive=True'):
        AttentionProbe(features="last", positive=True).fit(X, y)
    alone = AttentionProbe(features="last").fit(X, y).separation(X)
    assert alone.certificate is None and "reads the last token" in alone.reason
    assert "last" not in AttentionProbe(features="auto")._feature_kinds()


def test_a_stream_of_a_million_tokens_keeps_the_last_one():
    X, y = sequences(60, 9)
    probe = AttentionProbe(features="last").fit(X, y)
    state = probe.start()
    block = np.zeros((100_000, 5))
    for _ in range(10):
        state, _ = probe.step(state, block)
    score = probe.step(state, X[0][-1])[1]
    np.testing.assert_allclose(score, probe.decision_function([X[0][-1:]])[0], atol=1e-12)
