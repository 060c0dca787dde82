"""TokenStore: every source gives the same numbers, and nothing is read before it is needed."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from sklearn.model_selection import GridSearchCV, train_test_split

from attsvm import Tokens
from attsvm.numbers.files import BadFile
from attsvm.probe import AttentionProbe, TokenStore, as_sequences
from attsvm.probe.data.sequences import as_store

OFFSETS = np.array([0, 3, 4, 9, 12])


@pytest.fixture
def flat():
    return np.random.default_rng(0).standard_normal((12, 5)).astype(np.float16)


def write(folder, name, **arrays):
    numpy = pytest.importorskip("safetensors.numpy", reason="needs safetensors")
    folder.mkdir(exist_ok=True)
    numpy.save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, folder / name)
    return folder


def shards(folder, flat):
    write(folder / "s", "b-1.safetensors", tokens=flat[4:], offsets=OFFSETS[2:] - 4)
    return write(folder / "s", "a-0.safetensors", tokens=flat[:4], offsets=OFFSETS[:3])


def arrays(folder, flat):
    np.save(folder / "tokens.npy", flat)
    np.save(folder / "offsets.npy", OFFSETS)
    return folder


def group(folder, flat):
    zarr = pytest.importorskip("zarr", reason="needs the package zarr")
    written = zarr.open_group(folder / "z", mode="w")
    written.create_array("tokens", data=flat, chunks=(5, 5))
    written.create_array("offsets", data=OFFSETS)
    return folder / "z"


@pytest.mark.parametrize("layout", [shards, arrays, group])
def test_a_folder_is_mapped_and_holds_the_same_sequences(tmp_path, flat, layout):
    store = TokenStore.open(layout(tmp_path, flat))
    assert len(store) == 4 and store.width == 5 and "float16" in repr(store)
    for found, expected in zip(store, np.split(flat, OFFSETS[1:-1]), strict=True):
        np.testing.assert_array_equal(found, expected)
    array = getattr(store.rows, "parts", [store.rows.array])[0]
    assert isinstance(array, np.memmap) or type(array).__module__.startswith("zarr")
    assert not np.array_equal(store[0], flat[1:4])


def test_a_zarr_group_without_offsets_is_refused(tmp_path, flat):
    zarr = pytest.importorskip("zarr", reason="needs the package zarr")
    zarr.open_group(tmp_path / "z", mode="w").create_array("tokens", data=flat)
    with pytest.raises(BadFile, match="`offsets`"):
        TokenStore.open(tmp_path / "z")


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_a_column_of_hugging_face_is_a_list_of_sequences(flat, form):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    sequences = np.split(flat.astype(np.float32), OFFSETS[1:-1])
    table = datasets.Dataset.from_dict({"states": [x.tolist() for x in sequences]}).with_format(form)
    for found, expected in zip(as_sequences(table["states"]), sequences, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(as_sequences(table["states"])) == 4


def test_a_padded_file_is_a_store(tmp_path):
    keys = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float16)
    np.save(tmp_path / "keys.npy", keys)
    np.testing.assert_array_equal(TokenStore.open(tmp_path / "keys.npy")[2], keys[2])


def test_parts_of_a_store_read_the_rows_they_name(flat):
    store = TokenStore.from_flat(flat, OFFSETS)
    part = store[np.array([3, 0, 2])]
    expected = np.concatenate([flat[9:12], flat[:3], flat[4:9]])
    np.testing.assert_array_equal(part.read(slice(0, 3)), expected)
    np.testing.assert_array_equal(store[[False, True, False, True]][1], flat[9:12])
    assert [span.stop - span.start for span in store.spans(20)] == [2, 1, 1]


def test_a_store_has_one_axis_and_may_be_empty_but_nothing_is_learnt_of_none(flat, probe):
    store = TokenStore.from_flat(flat, OFFSETS)
    for key in ([[0, 1], [1, 2]], (0, 1), True, "a", [0.5]):
        with pytest.raises(IndexError, match="a store has one axis"):
            store[key]
    for none in (store[[]], store[0:0], store[np.zeros(len(store), bool)]):
        assert len(none) == 0 and none.mask.shape == (0, 0) and list(none) == []
        for use in (probe.predict, probe.attention, lambda X: probe.fit(X, [])):
            with pytest.raises(ValueError, match="X has no sequences"):
                use(none)


def test_splitters_and_searches_index_a_store():
    rng = np.random.default_rng(0)
    flat, labels = rng.standard_normal((160, 4)).astype(np.float32), np.arange(40) % 2
    flat[::4, 0] += 3 * (2 * labels - 1)
    store = TokenStore.from_flat(flat, np.arange(41) * 4)
    train, test, y, _ = train_test_split(store, labels, random_state=0)
    assert isinstance(train, TokenStore) and len(train) + len(test) == 40
    grid = {"head_ridge": [1e-2, 1e3], "prompt_ridge": [0.1]}
    assert GridSearchCV(AttentionProbe(), grid, cv=2).fit(train, y).best_params_["head_ridge"] == 1e-2


def test_a_padded_array_is_not_copied_where_tokens_come_first(flat):
    keys = np.zeros((2, 6, 5), np.float16)
    mask = np.arange(6) < [[4], [2]]
    assert np.shares_memory(as_store((keys, mask)).rows.array, keys)
    assert not np.shares_memory(as_store((keys, mask[:, ::-1])).rows.array, keys)
    np.testing.assert_array_equal(as_store(Tokens(keys, mask=mask)).lengths, [4, 2])


def test_nested_tensors_of_torch_are_sequences(flat):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    parts = [torch.tensor(x) for x in np.split(flat, OFFSETS[1:-1])]
    found = as_sequences(torch.nested.nested_tensor(parts))
    for one, other in zip(found, parts, strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize(
    ("x", "offsets", "message"),
    [
        (np.ones((3, 2)), [0, 2], "x has 3 rows"),
        (np.ones((3, 2)), [0, 2, 2, 3], "increasing"),
        (np.ones((3, 2)), [0.0, 3.0], "integers"),
        (np.ones(3), [0, 3], r"\(N, d\)"),
        (np.full((3, 2), "a"), [0, 3], "real numbers"),
    ],
)
def test_a_wrong_layout_is_named(x, offsets, message):
    with pytest.raises(ValueError, match=message):
        TokenStore.from_flat(x, offsets)


def test_a_file_without_tokens_says_what_it_holds(tmp_path):
    write(tmp_path / "f", "a.safetensors", weights=np.ones((2, 2)))
    with pytest.raises(BadFile, match="it holds weights"):
        TokenStore.open(tmp_path / "f")
    with pytest.raises(BadFile, match="folder of shards"):
        TokenStore.open(tmp_path)
