"""AttentionProbe: scikit-learn's contract, the theory, and every form of input."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="AttentionProbe needs the extra 'sklearn'")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attsvm import Tokens, max_margin
from attsvm.comparison.verdict import cosine
from attsvm.probe import AttentionProbe, PerToken, as_sequences

WEAK = {"prompt_ridge": 1e-7, "head_ridge": 0.1, "tol": 1e-13, "max_iter": 20_000}
"""A prompt long enough to have nearly its limit direction; below 1e-8 the objective's rounding ends a fit."""


RIDGES = {"head_ridge": 0.03, "prompt_ridge": 0.1}
"""Fixed: the search would take ten times as long, and reads tokens in the same place."""


TIED = {"positive": True, "head_ridge": 0.03, "prompt_ridge": 0.03}


@parametrize_with_checks(
    [AttentionProbe(), AttentionProbe(features=["linear", "last"], **RIDGES), AttentionProbe(**TIED)]
)
def test_every_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


# ---------------------------------------------------------------------- independent computations


def test_on_single_tokens_the_probe_is_ridge_logistic_regression():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((60, 4)) * [1, 10, 100, 0.1] + 5, rng.integers(0, 2, 60)
    probe = AttentionProbe(head_ridge=0.05, tol=1e-9).fit(X, y)
    same, other = (
        make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=1e-10)).fit(X, y)
        for C in (1 / (60 * 0.05), 1 / (60 * 0.5))
    )
    np.testing.assert_allclose(probe.decision_function(X), same.decision_function(X), atol=1e-5)
    assert np.abs(probe.decision_function(X) - other.decision_function(X)).max() > 1e-2


def test_scores_are_the_head_on_the_pooled_vectors(planted):
    sequences, labels, _ = planted
    probe = AttentionProbe(features=["linear", "last"]).fit(sequences, labels)
    head = np.moveaxis(probe.coef_, 1, 0).reshape(-1)
    by_hand = probe.transform(sequences) @ head + probe.intercept_
    np.testing.assert_allclose(probe.decision_function(sequences), by_hand, atol=1e-10)
    pooled = np.einsum("hnt,nt->hn", probe.attention(sequences), Tokens.from_sequences(sequences).mask)
    np.testing.assert_allclose(pooled, 1.0)


# ---------------------------------------------------------------------- the theory


def test_a_long_prompt_points_along_the_max_margin_of_its_own_selection():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((6, 4, 20)), np.array([0, 1, 0, 1, 0, 1])
    X = (X - X.mean((0, 1))) / X.std((0, 1))  # the program in the probe's own units
    probes = [
        AttentionProbe(**WEAK | {"prompt_ridge": ridge}).fit(X, y) for ridge in (1e-1, 1e-3, 1e-5, 1e-7)
    ]
    gaps = [1 - probe.separation(X).alignment for probe in probes]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.005  # angles close like 1/log(head_ridge/prompt_ridge)
    elsewhere = (probes[-1].select(X) + 1) % 4
    assert cosine(probes[-1].prompt_[None], max_margin(Tokens(X), elsewhere).W)[0] < 0.9


def test_the_selection_carries_a_certificate_and_its_support():
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((6, 4, 20)), np.array([0, 1, 2, 0, 1, 2])
    probe = AttentionProbe(head_ridge=0.1, prompt_ridge=1e-4).fit(X, y)
    found = probe.separation(X)
    assert found.certificate.worst < 1e-8
    assert found.margin > 0
    example, token = found.support.T
    assert set(example) <= set(range(6))
    assert not (probe.select(X)[example] == token).any()


def test_a_selection_that_no_prompt_separates_gives_a_reason_instead():
    X = np.array([[[0.0, 0], [1, 1]], [[0.0, 0], [0, 0]]])
    found = AttentionProbe(head_ridge=0.1, prompt_ridge=1).fit(X, [0, 1]).separation(X)
    assert found.certificate is None
    assert found.margin is None
    assert "not separable" in found.reason


# ---------------------------------------------------------------------- what it is for


def test_the_probe_finds_the_token_that_carries_the_class(planted):
    sequences, labels, place = planted
    probe, noise = (  # given ridges: from mean pooling alone, which knows nothing of loud tokens
        AttentionProbe(head_ridge=0.01, prompt_ridge=1e-3).fit(sequences[:80], told)
        for told in (labels[:80], np.random.default_rng(0).permutation(labels[:80]))
    )
    assert (probe.select(sequences[80:]) == place[80:]).mean() > 0.95
    assert (noise.select(sequences[80:]) == place[80:]).mean() < 0.6
    assert probe.score(sequences[80:], labels[80:]) > 0.95


def test_three_classes_share_one_attention(planted):
    sequences, labels, place = planted
    names = np.array(["a", "b", "c"])[labels + (np.arange(120) % 3 == 0)]
    for tokens, t, name in zip(sequences, place, names, strict=True):
        tokens[t, 1:4] = 3.0 * (np.array(["a", "b", "c"]) == name)
    probe = AttentionProbe(prompt_ridge=1e-3).fit(sequences[:80], names[:80])
    assert probe.score(sequences[80:], names[80:]) > 0.95
    assert probe.attention(sequences).shape == (120, 9)
    np.testing.assert_allclose(probe.predict_proba(sequences).sum(1), 1)


# ---------------------------------------------------------------------- input and scikit-learn


def test_all_forms_of_the_same_sequences_agree(planted):
    sequences, labels, _ = planted
    tokens = Tokens.from_sequences(sequences)
    reference = AttentionProbe().fit(sequences, labels)
    for form in ((tokens.keys, tokens.mask), tokens, as_sequences((tokens.keys, tokens.mask))):
        probe = AttentionProbe().fit(form, labels)
        np.testing.assert_array_equal(probe.attention(form), reference.attention(sequences))
    unmasked = reference.decision_function(np.asarray(tokens.keys))
    assert np.abs(unmasked - reference.decision_function(sequences)).max() > 1e-2


def as_objects(items):
    """A one-dimensional array of these objects."""
    out = np.empty(len(items), object)
    out[:] = items
    return out


SAME = 1e-5
"""Two fits of the same numbers: their rounding may differ, and L-BFGS ends at derivatives of 1e-6."""

OBJECTS = {
    "array of arrays": as_objects,
    "array of arrays of rows": lambda s: as_objects([as_objects(list(x)) for x in s]),
    "list of arrays of rows": lambda s: [as_objects(list(x)) for x in s],
    "pandas": lambda s: pandas().Series(s, index=np.arange(len(s)) + 7),
    "pandas lists": lambda s: pandas().Series([x.tolist() for x in s]),
}


def pandas():
    return pytest.importorskip("pandas", reason="needs pandas")


@pytest.mark.parametrize("form", OBJECTS)
def test_a_column_of_sequences_is_a_list_of_them(planted, form):
    sequences, labels, _ = planted
    column, probe = OBJECTS[form](sequences), AttentionProbe(**RIDGES)
    expected = clone(probe).fit(sequences, labels).predict_proba(sequences)
    np.testing.assert_allclose(clone(probe).fit(column, labels).predict_proba(column), expected, atol=SAME)
    turned = OBJECTS[form](sequences[::-1])
    assert np.abs(clone(probe).fit(turned, labels).predict_proba(column) - expected).max() > 1e-2


TENSORS = {
    "tensor": lambda torch, X: torch.tensor(X),
    "bfloat16": lambda torch, X: torch.tensor(X).bfloat16(),
    "half": lambda torch, X: torch.tensor(X).half(),
    "with gradient": lambda torch, X: torch.tensor(X, requires_grad=True),
    "list": lambda torch, X: [torch.tensor(x).bfloat16() for x in X],
    "pair": lambda torch, X: (torch.tensor(X), torch.ones(X.shape[:2], dtype=torch.bool)),
    "numbers as objects": lambda torch, X: X.astype(object),
    "jax": lambda torch, X: pytest.importorskip("jax.numpy").asarray(X),
}


@pytest.mark.parametrize("form", TENSORS)
def test_tensors_are_arrays(form):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    rng = np.random.default_rng(0)
    X = rng.integers(-8, 8, (20, 5, 3)) / np.float32(4)  # numbers that half and bfloat16 hold, too
    y = np.sign(X[:, 0, 0] + 0.1)
    probe = AttentionProbe(**RIDGES)
    given, expected = TENSORS[form](torch, X), clone(probe).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(clone(probe).fit(given, y).predict_proba(given), expected, atol=SAME)
    assert np.abs(clone(probe).fit(X[:, :3], y).predict_proba(given) - expected).max() > 1e-2


def polars():
    return pytest.importorskip("polars", reason="needs polars")


POLARS = {
    "lists": lambda s: polars().Series([x.tolist() for x in s]),
    "arrays of numbers": lambda s: polars().Series(
        [x.tolist() for x in s], dtype=polars().List(polars().Array(polars().Float64, s[0].shape[1]))
    ),
    "a table of one column": lambda s: polars().DataFrame({"states": [x.tolist() for x in s]}),
    "a list of tables": lambda s: [polars().DataFrame(x) for x in s],
}


@pytest.mark.parametrize("form", POLARS)
def test_a_column_of_polars_is_a_list_of_sequences(planted, form):
    sequences, labels, _ = planted
    column, probe = POLARS[form](sequences), AttentionProbe(**RIDGES)
    expected = clone(probe).fit(sequences, labels).predict_proba(sequences)
    found = clone(probe).fit(column, polars().Series(labels)).predict_proba(column)
    np.testing.assert_allclose(found, expected, atol=SAME)
    turned = POLARS[form](sequences[::-1])
    assert np.abs(clone(probe).fit(turned, labels).predict_proba(column) - expected).max() > 1e-2


def test_tables_of_polars_are_tables_and_two_columns_of_sequences_are_refused():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.arange(40) % 2
    table = polars().DataFrame(X, schema=["a", "b", "c"])
    probe = AttentionProbe(**RIDGES)
    expected = clone(probe).fit(X, y).decision_function(X)
    np.testing.assert_allclose(clone(probe).fit(table, y).decision_function(table), expected, atol=SAME)
    with pytest.raises(ValueError, match="sequence 0 has tokens of different widths"):
        clone(probe).fit(polars().Series([[[1.0, 2.0], [3.0]]] * 40), y)
    mixed = table.with_columns(d=polars().Series([[[1.0, 2.0]]] * 40))
    with pytest.raises(ValueError, match="column 'd' of X holds arrays"):
        clone(probe).fit(mixed, y)
    found = GridSearchCV(probe, {"prompt_ridge": [0.1]}, cv=2).fit(table, y)
    assert found.best_estimator_.n_features_in_ == 3


def test_one_sequence_in_the_place_of_several_is_refused_and_the_remedies_work(planted, tmp_path):
    sequences, labels, _ = planted
    probe, x = AttentionProbe(**RIDGES).fit(sequences, labels), sequences[0]
    loaded = AttentionProbe.load(probe.save(tmp_path / "probe.safetensors"))
    said = rf"X has shape \({len(x)}, 8\).*Pass \[X\] for one sequence"
    for told in (probe, loaded, pickle.loads(pickle.dumps(probe))):
        for answer in (told.predict, told.decision_function, told.attention, told.transform, told.explain):
            with pytest.raises(ValueError, match=said):
                answer(x)
        assert told.decision_function([x]).shape == (1,)
        assert told.decision_function(x[:, None]).shape == (len(x),)


@pytest.mark.parametrize("form", [lambda table: table, lambda table: table[:, None], list])
def test_a_probe_fitted_on_single_tokens_takes_tables(form):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.arange(40) % 2
    probe = AttentionProbe(**RIDGES).fit(form(X), y)
    assert np.array_equal(probe.decision_function(X), probe.decision_function(X[:, None]))


UNSEARCHED = "head_ridge=0.1 and prompt_ridge=1 were taken unsearched: 2 sequences"


@pytest.mark.parametrize(
    ("count", "settings", "said"),
    [
        (2, {}, UNSEARCHED),
        (2, {"prompt_ridge": 0.1}, "prompt_ridge=0.1 were taken unsearched"),
        (2, {"features": "rbf"}, UNSEARCHED),
        (2, RIDGES, None),
        (8, {}, None),
    ],
    ids=str,
)
def test_a_search_without_folds_is_said(count, settings, said):
    X = np.random.default_rng(0).standard_normal((count, 3, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        AttentionProbe(**settings).fit(X, np.arange(count) % 2)
    texts = [str(warning.message) for warning in told if issubclass(warning.category, UserWarning)]
    assert not texts if said is None else len(texts) == 1 and said in texts[0]


def test_what_scikit_learn_says_of_sequences_is_what_the_docs_say(planted):
    sequences, labels, _ = planted
    tokens = Tokens.from_sequences(sequences)
    grid = GridSearchCV(AttentionProbe(), {"prompt_ridge": [0.1]}, cv=2)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[2, 120\]"):
        grid.fit((tokens.keys, tokens.mask), labels)
    with pytest.raises(ValueError, match="setting an array element with a sequence"):
        StandardScaler().fit(sequences)
    with pytest.raises(ValueError, match="Found array with dim 3"):
        StandardScaler().fit(np.asarray(tokens.keys))


def test_tensors_and_columns_can_be_searched_over(planted):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    sequences, labels, _ = planted
    grid = {"prompt_ridge": [1e-3, 1e3]}
    for form in ([torch.tensor(x) for x in sequences], as_objects(sequences)):
        found = GridSearchCV(AttentionProbe(head_ridge=0.03), grid, cv=3).fit(form, labels)
        assert found.best_params_ == {"prompt_ridge": 1e-3}


def test_a_mask_may_have_holes(planted):
    sequences, labels, _ = planted
    probe, tokens = AttentionProbe().fit(sequences, labels), Tokens.from_sequences(sequences)
    turned = np.roll(tokens.keys, 2, axis=1), np.roll(tokens.mask, 2, axis=1)
    np.testing.assert_allclose(probe.attention(turned), np.roll(probe.attention(sequences), 2, axis=1))
    np.testing.assert_array_equal(probe.select(turned), (probe.select(sequences) + 2) % 9)


def test_grid_search_pipeline_clone_and_pickle_work_on_sequences(planted):
    sequences, labels, _ = planted
    pipeline = make_pipeline(PerToken(StandardScaler()), AttentionProbe(head_ridge=0.03))
    grid = {"attentionprobe__prompt_ridge": [1e-3, 1e3]}
    found = GridSearchCV(pipeline, grid, cv=3).fit(sequences, labels)
    assert found.best_params_["attentionprobe__prompt_ridge"] == 1e-3
    back = pickle.loads(pickle.dumps(found.best_estimator_))
    np.testing.assert_array_equal(back.predict_proba(sequences), found.predict_proba(sequences))
    fresh = clone(back).fit(sequences, labels)
    np.testing.assert_array_equal(fresh.predict_proba(sequences), found.predict_proba(sequences))


def test_units_of_the_features_do_not_matter(planted):
    sequences, labels, _ = planted
    units = 10.0 ** np.array([-150, -50, -10, 0, 5, 50, 100, 150])
    far = [s * units for s in sequences]
    here = AttentionProbe().fit(sequences, labels).predict_proba(sequences)
    np.testing.assert_allclose(AttentionProbe().fit(far, labels).predict_proba(far), here, atol=1e-5)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([np.ones((2, 3)), np.ones((2, 4))], r"sequence 1 has shape \(2, 4\)"),
        ([np.ones((2, 3)), np.ones((0, 3))], "T_i ≥ 1"),
        ([np.ones((2, 3)), np.full((2, 3), np.nan)], "sequence 1 has an entry that is NaN"),
        ((np.ones((2, 3, 4)), np.zeros((2, 3), bool)), "example 0 has no token"),
        (np.full((2, 3, 4), np.inf), r"keys\[0, 0, 0\] is inf"),
        (np.ones((3, 2, 4)), "inconsistent numbers of samples"),
        (np.full((2, 3, 4), "x", object), "not an array of real numbers"),
        (as_objects([np.ones((2, 3)), None]), r"sequence 1 has shape \(\)"),
    ],
)
def test_bad_sequences_get_one_clear_error(X, message):
    with pytest.raises(ValueError, match=message):
        AttentionProbe().fit(X, [0, 1])


def test_a_fit_that_was_cut_short_says_so(planted):
    sequences, labels, _ = planted
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        AttentionProbe(max_iter=2).fit(sequences, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttentionProbe().fit(sequences, labels)


BAD = {
    "head_ridge": [0, True, [1.0]],
    "prompt_ridge": [np.nan, "none"],
    "tol": [-1, None, "auto"],
    "max_iter": [None, 2.5, 0, "2"],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in BAD.items() for bad in values])
def test_a_bad_parameter_is_named(name, bad):
    with pytest.raises(ValueError, match=f"{name} is"):
        AttentionProbe(**{name: bad}).fit(np.eye(2), [0, 1])


@pytest.mark.parametrize("missing", ["sklearn", "sklearn.utils.validation"])
def test_without_scikit_learn_the_remedy_is_named(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import attsvm.probe"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    remedy = done.stderr.partition("pip install")[2]
    assert done.returncode == 1 and ('"scikit-learn>=' in remedy or '".[sklearn]"' in remedy)
