"""A saved probe is the probe; a file that is none is refused in words."""

import numpy as np
import pytest

from attsvm.numbers.archives import BadFile
from tests.numbers.test_damaged_files import BYTES

pytest.importorskip("safetensors", reason="probes are saved as safetensors")


def test_a_saved_probe_comes_back_with_all_its_numbers(any_probe, X, tmp_path):
    from attsvm.probe import AttentionProbe

    file = any_probe.save(tmp_path / "probe")
    assert file.name == "probe.safetensors"
    back = AttentionProbe.load(file)
    for name in ("prompt_", "coef_", "intercept_", "mean_", "scale_"):
        assert np.array_equal(getattr(back, name), getattr(any_probe, name))
    assert np.array_equal(back.decision_function(X), any_probe.decision_function(X))
    assert (
        np.array_equal(back.predict(X), any_probe.predict(X))
        and back.predict(X).dtype == any_probe.classes_.dtype
    )
    assert back.get_params() == any_probe.get_params()
    assert np.array_equal(back.head_ridge_, any_probe.head_ridge_)
    assert np.allclose(back.transform(X), any_probe.transform(X), rtol=0, atol=1e-12)


def test_numbers_of_numpy_and_tuples_are_kept_as_pythons(X, y, tmp_path):
    from attsvm.probe import AttentionProbe

    given = {"head_ridge": np.float64(0.5), "prompt_ridge": np.float32(0.5), "max_iter": np.int64(200)}
    probe = AttentionProbe(**given, features=("linear",)).fit(X, y)
    back = AttentionProbe.load(probe.save(tmp_path / "probe")).get_params()
    assert {name: back[name] for name in given} == given and back["features"] == ["linear"]


def test_a_splitter_is_not_kept_and_not_replaced_by_another(X, y, tmp_path):
    from sklearn.base import clone
    from sklearn.model_selection import KFold

    from attsvm.probe import AttentionProbe

    probe = AttentionProbe(cv=KFold(4, shuffle=True, random_state=5))
    back = AttentionProbe.load(probe.fit(X, y).save(tmp_path / "probe"))
    back = AttentionProbe.load(back.save(tmp_path / "again"))
    assert np.array_equal(back.predict_proba(X), probe.predict_proba(X))
    told = r"cv was KFold\(n_splits=4, random_state=5, shuffle=True\), which the probe's file does not hold"
    with pytest.raises(ValueError, match=told):
        clone(back).fit(X, y)
    again = back.set_params(cv=probe.cv).fit(X, y)
    assert again.head_ridge_ == probe.head_ridge_ and np.array_equal(again.coef_, probe.coef_)


def test_the_file_is_plain_safetensors(probe, tmp_path):
    from safetensors.numpy import load_file

    arrays = load_file(probe.save(tmp_path / "probe.safetensors"))
    assert np.array_equal(arrays["prompt_"], probe.prompt_) and {f.name for f in tmp_path.iterdir()} == {
        "probe.safetensors"
    }


def test_files_that_hold_no_probe_are_refused(probe, tmp_path):
    from safetensors.numpy import load_file, save_file

    from attsvm.probe import AttentionProbe

    other, file = tmp_path / "other.safetensors", probe.save(tmp_path / "probe")
    save_file({"x": np.zeros(3)}, other)
    with pytest.raises(BadFile, match=r"not a probe. Pass a file written by probe.save"):
        AttentionProbe.load(other)
    other.write_bytes(file.read_bytes()[:200])
    with pytest.raises(BadFile, match="damaged"):
        AttentionProbe.load(other)
    from safetensors import safe_open

    with safe_open(file, "numpy") as stored:
        names = without_digest(stored.metadata())
    save_file(load_file(file) | {"mean_": np.zeros(3)}, other, names)
    with pytest.raises(BadFile, match="mean_ and coef_ do not fit"):
        AttentionProbe.load(other)


def without_digest(metadata):
    """The header of a file that an older version wrote."""
    return {name: text for name, text in metadata.items() if name != "sha256"}


def rewritten(file, about=None, **arrays):
    """The file with other entries of its header, None to leave one out, and other arrays."""
    import json

    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(file, "numpy") as stored:
        names = without_digest(stored.metadata())
    kept = json.loads(names["probe"]) | (about or {})
    kept = {name: value for name, value in kept.items() if value is not None}
    other = file.with_name("other.safetensors")
    save_file(load_file(file) | arrays, other, names | {"probe": json.dumps(kept)})
    return other


@pytest.mark.parametrize(
    "about",
    [
        {"parameters": None},
        {"parameters": [1]},
        {"classes": None},
        {"classes": 3},
        {"dtype": None},
        {"dtype": "no type"},
        {"dtype": "<U1000000000"},
        {"maps": ["none"]},
        {"maps": ["rbf"]},
        {"maps": 5},
        {"gammas": "text"},
        {"n_features_in_": None},
        {"n_features_in_": 7},
        {"n_features_in_": "many"},
        {"n_features_in_": 10**15},
        {"head_ridge_": {}},
    ],
    ids=str,
)
def test_a_crafted_header_is_refused_in_words(probe, tmp_path, about):
    from attsvm.probe import AttentionProbe

    file = probe.save(tmp_path / "probe")
    if about == {"gammas": "text"}:
        about |= {"maps": None}
    with pytest.raises(BadFile, match=r"^\S*other.safetensors: .*\. Write it again"):
        AttentionProbe.load(rewritten(file, about))
    assert AttentionProbe.load(rewritten(file, {"unknown": 1})).classes_.tolist() == ["no", "yes"]


def test_a_file_of_an_older_version_has_no_digest_and_a_wrong_one_is_damage(probe, X, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    from attsvm.probe import AttentionProbe

    file = probe.save(tmp_path / "probe")
    older = AttentionProbe.load(rewritten(file))
    assert np.array_equal(older.decision_function(X), probe.decision_function(X))
    with safe_open(file, "numpy") as stored:
        names = stored.metadata()
    save_file(load_file(file) | {"coef_": 1.001 * probe.coef_}, file, names)
    with pytest.raises(BadFile, match=r"probe.safetensors: the file is damaged \(its digest does not fit\)"):
        AttentionProbe.load(file)


@pytest.mark.parametrize("name", ["coef_", "scale_", "map 0 root"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(kernels, tmp_path, name, value):
    from safetensors.numpy import load_file

    from attsvm.probe import AttentionProbe

    file = kernels.save(tmp_path / "probe")
    array = load_file(file)[name]
    array.flat[0] = value
    with pytest.raises(BadFile, match=f"{name} has an entry that is NaN, infinite"):
        AttentionProbe.load(rewritten(file, **{name: array}))


@pytest.mark.parametrize("damage", BYTES, ids=lambda damage: damage.__name__)
def test_a_damaged_probe_is_the_same_probe_or_refused_in_words(three, X, tmp_path, damage):
    from attsvm.probe import AttentionProbe

    file, refused, scores = three.save(tmp_path / "probe"), 0, three.decision_function(X)
    whole = file.read_bytes()
    for seed in range(40):
        file.write_bytes(damage(np.random.default_rng(seed), whole))
        try:
            assert np.array_equal(AttentionProbe.load(file).decision_function(X), scores)
        except BadFile as error:
            assert str(error).startswith(str(file)) and "\n" not in str(error)
            refused += 1
    assert refused or damage.__name__ == "headless"
    with pytest.raises(FileNotFoundError):
        AttentionProbe.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "weights", [{"yes": 1.0, "no": 3.0}, {0: 1.0, 1: np.float64(3)}, "balanced", None], ids=str
)
def test_weights_of_classes_are_kept_with_their_names(X, y, tmp_path, weights):
    from attsvm.probe import AttentionProbe

    labels = (y == "yes").astype(int) if isinstance(weights, dict) and 0 in weights else y
    probe = AttentionProbe(head_ridge=0.5, prompt_ridge=0.5, class_weight=weights).fit(X, labels)
    back = AttentionProbe.load(probe.save(tmp_path / "probe"))
    assert back.class_weight == weights
    assert np.array_equal(back.fit(X, labels).coef_, probe.coef_)


def test_a_probe_that_is_not_there_names_what_makes_one(tmp_path):
    from attsvm.probe import AttentionProbe

    for name, reason in (("none.safetensors", "does not exist"), ("", "is a folder")):
        with pytest.raises(FileNotFoundError, match=rf"{reason}\. Pass a file that probe\.save"):
            AttentionProbe.load(tmp_path / name)
