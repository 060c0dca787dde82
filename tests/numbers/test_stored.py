"""Keys that stay where they are are read as NumPy would read them, and checked in the first pass."""

import numpy as np
import pytest

from attsvm import Path, Solution, Tokens, finite_part, max_margin, selections
from attsvm.data import tokens
from attsvm.numbers.stored import COPY_LIMIT, Stored
from tests.archives import arrays_of


class Sliced:
    """As h5py and Zarr: shape, dtype, and slices of examples, nothing else."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, 0

    def __getitem__(self, examples):
        assert isinstance(examples, slice)
        self.read += len(self.array[examples])
        return self.array[examples]


def mapped(tmp_path, array, name="keys"):
    np.save(tmp_path / f"{name}.npy", array)
    return np.load(tmp_path / f"{name}.npy", mmap_mode="r")


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def test_examples_are_read_in_units_of_their_own(tmp_path):
    array, exponent = numbers(4, 3, 2, dtype="float64"), np.array([0, 3, -2, 50])
    stored = Stored(mapped(tmp_path, array), exponent=exponent)
    expected = np.ldexp(array, -exponent[:, None, None])
    assert np.array_equal(stored[:], expected)
    assert np.array_equal(stored[np.array([3, 1]), np.array([0, 2])], expected[[3, 1], [0, 2]])


def test_bfloat16_is_read_by_its_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = numbers(5, 3, 4).astype(ml_dtypes.bfloat16)
    tokens = Tokens(array)
    assert isinstance(tokens.keys, Stored)
    assert np.array_equal(tokens.keys[:], array.astype(float))


def test_large_single_precision_is_not_widened_and_small_is():
    large, small = np.ones((2, 8, COPY_LIMIT // 16 + 1), np.float32), np.ones((2, 8, 4), np.float32)
    assert isinstance(Tokens(large).keys, Stored)
    assert np.shares_memory(Tokens(large).keys.array, large)
    assert Tokens(small).keys.dtype == np.float64
    assert Tokens(large, dtype=np.float32).keys.dtype == np.float32


def test_the_sizes_are_found_in_one_pass(tmp_path):
    array = numbers(40, 4, 3, dtype="float16")
    sliced = Sliced(array)
    assert np.array_equal(Tokens(sliced).key_size, np.abs(array.astype(float)).max((1, 2)))
    assert sliced.read == 40
    assert "stored as float16" in repr(Tokens(sliced))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_bad_number_is_named(tmp_path, bad, dtype):
    array = numbers(30, 4, 3, dtype=dtype)
    array[17, 2, 1] = bad
    keys = mapped(tmp_path, array)
    with pytest.raises(ValueError, match=r"keys\[17, 2, 1\] is not finite"):
        Tokens(keys)
    mask = np.ones((30, 4), bool)
    mask[17, 2] = False
    assert Tokens(keys, mask=mask).key_size[17] == np.abs(array[17, [0, 1, 3]].astype(float)).max()


def test_a_file_that_changes_is_refused(tmp_path):
    array = numbers(6, 4, 3)
    keys = mapped(tmp_path, array)
    tokens = Tokens(keys)
    np.save(tmp_path / "keys.npy", array[:, :, :2])
    with pytest.raises(ValueError, match="the file of keys changed while it was read"):
        tokens.keys[0:1]


def test_what_cannot_be_read_names_its_place():
    class Broken(Sliced):
        def __getitem__(self, examples):
            if examples.start >= 3:
                raise OSError("connection lost")
            return super().__getitem__(examples)

    with pytest.raises(ValueError, match="keys, examples 3 to 3, could not be read: connection lost"):
        Stored(Broken(numbers(6, 4, 3)))[np.array([3])]


def test_what_numpy_can_read_whole_is_read_if_it_is_small(monkeypatch):
    class Whole(Sliced):
        def __array__(self, dtype=None, copy=None):
            return self.array.astype(dtype)

    assert Tokens(Whole(numbers(4, 3, 2))).keys.dtype == np.float64
    assert Tokens(Whole(numbers(2, 4, 3, 2))).runs == 2
    monkeypatch.setattr("attsvm.numbers.stored.COPY_LIMIT", 10)
    assert isinstance(Tokens(Whole(numbers(4, 3, 2))).keys, Stored)


def test_what_is_stored_stays_so(tmp_path):
    tokens = Tokens(mapped(tmp_path, numbers(6, 4, 3)))
    assert Tokens(tokens.keys).keys is tokens.keys


def test_many_runs_need_memory(tmp_path):
    tokens = Tokens(mapped(tmp_path, numbers(6, 4, 3)))
    with pytest.raises(ValueError, match="many runs need keys in memory"):
        tokens.repeated(3)


# ---------------------------------------------------------------------- all else works in memory


def stored_and_read(tmp_path, *shape):
    """The same tokens twice: on the disk, and in memory."""
    array = numbers(*shape)
    return Tokens(mapped(tmp_path, array)), Tokens(array.astype(float))


def test_what_is_in_memory_is_itself_and_what_is_stored_is_read(tmp_path):
    there, here = stored_and_read(tmp_path, 6, 4, 3)
    assert here.in_memory() is here and not here.elsewhere and there.elsewhere
    read = there.in_memory()
    assert np.array_equal(read.keys, here.keys) and read.values is read.keys


def test_what_does_not_fit_into_memory_is_said(tmp_path, monkeypatch):
    there, _ = stored_and_read(tmp_path, 6, 4, 3)
    monkeypatch.setattr(tokens, "memory", lambda: 1000)
    with pytest.raises(ValueError, match="more than half of the memory"):
        there.in_memory()


def test_training_reads_what_is_stored(tmp_path):
    from attsvm import Linear, gd, regularisation_path, train

    head = Linear(np.array([1.0, -2.0, 0.5]))
    for road in (
        lambda data: train(data, head, optimizer=gd(0.1), steps=20),
        lambda data: regularisation_path(data, head, radii=[1.0, 2.0], starts=2),
    ):
        there, here = map(road, stored_and_read(tmp_path, 6, 4, 3))
        assert np.array_equal(there.W, here.W)
        assert not there.tokens.elsewhere


def test_a_probe_reads_what_is_stored(tmp_path):
    pytest.importorskip("sklearn", reason="needs attsvm[sklearn]")
    from attsvm.probe import AttentionProbe

    labels = np.arange(12) % 2
    there, here = stored_and_read(tmp_path, 12, 4, 3)
    one, other, wrong = (
        AttentionProbe().fit(x, y) for x, y in ((there, labels), (here, labels), (here, 1 - labels))
    )
    single = 1e-4  # what is stored in half precision is multiplied in float32, and both end at slopes of 1e-6
    assert np.allclose(one.coef_, other.coef_, atol=single)
    assert not np.allclose(one.coef_, wrong.coef_, atol=single)


def test_every_other_verb_gives_the_same(tmp_path):
    there, here = stored_and_read(tmp_path, 4, 3, 5)
    W = np.random.default_rng(1).standard_normal((2, 5, 1))
    paths = [Path(x, np.arange(2), W, np.ones(2), np.ones(2), "steps") for x in (there, here)]
    assert np.array_equal(paths[0].attention, paths[1].attention)
    both = np.arange(3) < np.full((4, 1), 2)
    attention = np.tile([0.5, 0.3, 0.2], (4, 1))
    assert np.allclose(*(finite_part(x, attention, both) for x in (there, here)), rtol=1e-9)
    for one, other in zip(*map(selections, (there, here)), strict=True):
        assert np.array_equal(one.W, other.W)


@pytest.mark.parametrize("build", [Tokens.self_attention, Tokens.every_query])
def test_queries_are_taken_from_stored_keys(tmp_path, build):
    array = numbers(6, 4, 3)
    there, here = build(mapped(tmp_path, array)), build(array.astype(float))
    assert np.array_equal(there.queries, here.queries)
    assert np.array_equal(np.asarray(there.keys), here.keys)


# ---------------------------------------------------------------------- what is saved


def test_keys_in_a_file_are_not_copied_into_another(tmp_path):
    there, _ = stored_and_read(tmp_path, 6, 4, 30)
    with pytest.raises(ValueError, match=r"Keep that file, or use tokens\.in_memory"):
        there.save(tmp_path / "copy")
    solution = max_margin(there, np.zeros(6, int))
    file = solution.save(tmp_path / "solution")
    assert "keys" not in arrays_of(file)
    with pytest.raises(ValueError, match=r"Pass them: Solution.load\(file, tokens\)"):
        Solution.load(file)
    assert repr(Solution.load(file, there)) == repr(solution)
    assert not Solution.load(file, Tokens(np.asarray(there.keys) + there.keys[:1])).certified


def test_large_arrays_in_memory_are_saved_in_their_precision(tmp_path):
    large = np.ones((2, 8, COPY_LIMIT // 16 + 1), np.float32)
    assert arrays_of(Tokens(large).save(tmp_path / "large"))["keys"].dtype == np.float32
    assert np.array_equal(Tokens.load(tmp_path / "large").keys[:1], large[:1])
