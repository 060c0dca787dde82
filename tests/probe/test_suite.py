"""Many probes over one read of the tokens."""

import re

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.metrics import roc_auc_score

from attsvm.probe import AttentionProbe, ProbeSuite
from tests.probe.cases import everywhere, needle


def test_a_suite_fits_every_concept_as_a_probe_would():
    X, y = needle(120, 0)
    Y = np.column_stack([y, X[:, :, 2].mean(1) > 0])
    fixed = {"head_ridge": 0.02, "prompt_ridge": 0.02}
    suite = ProbeSuite(**fixed).fit({"a": X, "b": X[:, ::-1]}, Y, names=["needle", "mean"])
    for column, name in enumerate(["needle", "mean"]):
        alone = AttentionProbe(**fixed).fit(X, Y[:, column])
        np.testing.assert_allclose(suite.probes_["a"][name].coef_, alone.coef_, atol=1e-4)
        np.testing.assert_allclose(
            suite.decision_function({"a": X})["a"][:, column], alone.decision_function(X), atol=1e-4
        )
    assert np.abs(suite.probes_["a"]["needle"].coef_ - suite.probes_["a"]["mean"].coef_).max() > 1e-2


def test_a_suite_refuses_one_sequence_in_the_place_of_several():
    X, y = needle(40, 0)
    suite = ProbeSuite(head_ridge=0.02, prompt_ridge=0.02).fit(X, y[:, None])
    for answer in (suite.decision_function, suite.probes_[0][0].decision_function):
        with pytest.raises(ValueError, match=r"Pass \[X\] for one sequence"):
            answer(X[0])
    of_tokens = ProbeSuite(head_ridge=0.02, prompt_ridge=0.02).fit(X[:, 0], y[:, None])
    assert of_tokens.decision_function(X[0])[0].shape == (X.shape[1], 1)


def test_soft_targets_between_two_labels_end_between_them():
    X, y = everywhere(80, 4)
    soft = np.column_stack([y, 0.5 + 0.2 * (2 * y - 1), 1 - y])
    scores = ProbeSuite(head_ridge=0.1, prompt_ridge=1.0).fit(X, soft).decision_function(X)[0]
    sure, unsure, turned = np.abs(scores).mean(0)
    assert unsure < 0.6 * sure and turned == pytest.approx(sure, rel=1e-3)
    with pytest.raises(ValueError, match="from 0 to 1"):
        ProbeSuite().fit(X, 2 * soft)


def test_layers_join_where_the_mean_of_their_scores_holds_out_better():
    (X, y), (test, truth) = everywhere(160, 0), everywhere(400, 1)
    rng = np.random.default_rng(2)
    halves = [rng.standard_normal(x.shape) for x in (X, test)]  # two layers, each with noise of its own
    noisy = [({1: x + e, 2: x - e, 3: e}) for x, e in zip((X, test), halves, strict=True)]
    suite = ProbeSuite().fit(noisy[0], y[:, None], names=["class"])
    assert sorted(suite.layers_["class"]) == [1, 2]  # not the layer of noise
    alone = suite.auc(noisy[1], truth[:, None]).auc[:, 0]
    together = roc_auc_score(truth, suite.combined(noisy[1])[:, 0])
    assert together > alone.max()
    copies = ProbeSuite().fit({1: X, 2: X}, y[:, None])  # a copy adds nothing
    assert copies.layers_[0] == [1]
    np.testing.assert_array_equal(copies.combined({1: test}), copies.decision_function({1: test})[1])


def test_given_ridges_hold_nothing_out_and_average_all_layers():
    X, y = everywhere(60, 0)
    layers = {1: X, 2: np.random.default_rng(0).standard_normal(X.shape)}
    suite = ProbeSuite(head_ridge=0.1, prompt_ridge=0.1).fit(layers, y[:, None])
    assert suite.layers_ == {0: [1, 2]}
    scores = suite.decision_function(layers)
    np.testing.assert_allclose(suite.combined(layers), (scores[1] + scores[2]) / 2)
    with pytest.raises(ValueError, match="X has no layer 2"):
        suite.combined({1: X})
    with pytest.raises(ValueError, match="same sequences in every layer"):
        suite.combined({1: X, 2: X[:5]})


def test_the_table_names_layers_and_concepts_and_is_drawn():
    (X, y), (test, truth) = needle(80, 0), needle(80, 1)
    noise = np.random.default_rng(0).standard_normal(X.shape)
    suite = ProbeSuite(head_ridge=0.02, prompt_ridge=0.02).fit({3: noise, 7: X}, y[:, None], names=["class"])
    table = suite.auc({3: noise, 7: test}, truth[:, None])
    assert table.auc[1, 0] > 0.95 and "class" in str(table) and "    7 |" in str(table)
    assert len(table.plot().axes[0].texts) == 2
    with pytest.raises(ValueError, match="layer 5 was not fitted"):
        suite.auc({5: test}, truth[:, None])


def test_what_does_not_fit_a_suite_is_refused():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((30, 4, 3)), rng.integers(2, size=(30, 2))
    suite = ProbeSuite(head_ridge=0.1, prompt_ridge=0.1).fit(X, Y)
    for call, said in (
        (lambda: suite.fit(X, Y, names=["lie", "lie"]), "all different"),  # one would stand for both
        (lambda: suite.fit({}, Y), "no layers"),
        (lambda: suite.decision_function(X[..., :2]), "layer 0 has tokens 2 wide, its probes read 3"),
        (lambda: suite.auc(X, Y[:, :1]), "a column per concept"),
        (lambda: suite.auc(X, Y[:3]), "a row per sequence"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_a_table_is_sequences_of_one_token_as_for_a_probe():
    X, y = everywhere(60, 0)
    fixed = {"head_ridge": 0.1, "prompt_ridge": 0.1}
    suite, alone = ProbeSuite(**fixed).fit(X[:, 0], y[:, None]), AttentionProbe(**fixed).fit(X[:, 0], y)
    np.testing.assert_allclose(suite.decision_function(X[:, 0])[0][:, 0], alone.decision_function(X[:, 0]))
    with pytest.raises(ValueError, match="NaN"):
        ProbeSuite(**fixed).fit(np.full((60, 2), np.nan), y[:, None])


NUMBERS = "Pass (n, concepts) with numbers from 0 to 1"


@pytest.mark.parametrize(
    ("Y", "said"),
    [
        (np.eye(2)[[0, 1] * 5][:, :1] * 2 - 1, f"Y has the entry -1. {NUMBERS}"),
        (np.full((10, 1), np.nan), f"Y has the entry nan. {NUMBERS}"),
        (np.array([["yes"], ["no"]] * 5), f"Y holds no numbers. {NUMBERS}"),
        (np.arange(10) % 2, "Y[:, None] is one concept"),
        (np.ones((10, 1)), "concept 0 is 1 in all 10 rows of Y. Leave it out"),
        (np.eye(2)[[0, 1] * 4], "layer 6 has 10 sequences, Y has 8 rows"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_targets_of_a_suite_are_refused_by_what_is_wrong_with_them(Y, said):
    sequences = list(np.random.default_rng(0).standard_normal((10, 3, 2)))
    with pytest.raises(ValueError, match=re.escape(said)):
        ProbeSuite().fit({6: sequences}, Y)


def test_errors_about_sequences_name_their_layer():
    X, Y = np.random.default_rng(0).standard_normal((10, 3, 2)), np.eye(2)[[0, 1] * 5]
    suite, broken = ProbeSuite(head_ridge=1, prompt_ridge=1).fit({"a": X, "b": X}, Y), np.full_like(X, np.nan)
    for use in (lambda layers: ProbeSuite().fit(layers, Y), suite.decision_function, suite.combined):
        with pytest.raises(ValueError, match="layer 'b': sequence 0 has an entry"):
            use({"a": X, "b": list(broken)})
    with pytest.raises(ValueError, match="holds lists of sequences"):
        ProbeSuite().fit([list(X), list(X)], Y)
    with pytest.raises(ValueError, match="concept 0 has one class in Y"):
        suite.auc({"a": X}, np.ones_like(Y))
