"""Files of arrays: what is accepted, what is refused and in which words, and where it is written."""

import io
import json
import zipfile

import numpy as np
import pytest

from attsvm import Path, Solution, Tokens, datasets, max_margin
from attsvm.numbers import files
from attsvm.numbers.files import BadFile, read_arrays, write_arrays
from tests.archives import arrays_of

pytestmark = pytest.mark.quick

KEYS = np.arange(24.0).reshape(2, 3, 4)


def write_safetensors(file, arrays, types=None):
    """The format by hand: length of the header, header, bytes."""
    header, data = {}, b""
    for name, array in arrays.items():
        kind = (types or {}).get(
            name, {"f": "F", "i": "I"}.get(array.dtype.kind, "?") + f"{8 * array.itemsize}"
        )
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": place}
        data += array.tobytes()
    words = json.dumps(header).encode()
    file.write_bytes(len(words).to_bytes(8, "little") + words + data)


def write_npz(file, arrays):
    with file.open("wb") as stream:
        np.savez(stream, **arrays)


@pytest.fixture(scope="module")
def solution():
    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    return max_margin(tokens, [0, 1, 2])


@pytest.fixture
def path():
    tokens, _ = datasets.sphere(3, 4, 5, seed=0)
    W = np.random.default_rng(0).standard_normal((2, 5, 5))
    return Path(tokens, np.array([0, 10]), W, np.ones(2), np.full(2, np.nan), "steps")


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
@pytest.mark.parametrize(
    ("wrong", "right"), [("query", "queries"), ("Labels", "labels"), ("path_w", "path_W")]
)
def test_an_unknown_array_is_told_the_name_it_may_mean(tmp_path, write, wrong, right):
    write(tmp_path / "file", {"keys": KEYS, wrong: np.ones((2, 2))})
    with pytest.raises(BadFile, match=f"file: unknown array '{wrong}'. Did you mean '{right}'?"):
        Tokens.load(tmp_path / "file")


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_known_arrays_are_read(tmp_path, write):
    write(tmp_path / "file.npz", {"keys": KEYS, "queries": np.ones((2, 2)), "v": np.ones(4)})
    assert Tokens.load(tmp_path / "file.npz").e == 2


def test_tokens_are_read_from_saved_paths_and_solutions_too(tmp_path, path, solution):
    for thing in (path, solution):
        thing.save(tmp_path / "file.npz")
        np.testing.assert_array_equal(Tokens.load(tmp_path / "file.npz").keys, thing.tokens.keys)


# ---------------------------------------------------------------------- where it is written


def test_what_is_saved_under_a_name_is_loaded_under_that_name(tmp_path, path, solution):
    for thing in (path.tokens, path, solution):
        for name in ("x", "x.npz", "run.0.1"):
            assert thing.save(tmp_path / name).name == f"{name.removesuffix('.npz')}.npz"
            assert repr(type(thing).load(tmp_path / name)) == repr(thing)


def test_a_save_that_fails_leaves_the_old_file(tmp_path, path, monkeypatch):
    file = path.save(tmp_path / "path")
    kept = file.read_bytes()
    with pytest.raises(ValueError, match="no room"):
        write_arrays(file, {"keys": Unwritable()})
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (kept, [file])


class Unwritable:
    def __array__(self, *_, **__):
        raise ValueError("no room")


# ---------------------------------------------------------------------- types and shapes


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path):
    numbers = np.array([1.0, -2.5, 3.0e38, 1e-30], np.float32).reshape(1, 2, 2)
    upper = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(tmp_path / "half.safetensors", {"keys": upper}, {"keys": "BF16"})
    read = read_arrays(tmp_path / "half.safetensors")["keys"]
    np.testing.assert_allclose(read, numbers, rtol=2.0**-7)
    assert (read.dtype, read[0, 0].tolist()) == (np.float32, [1.0, -2.5])


def test_another_byte_order_and_odd_booleans_become_our_own(tmp_path):
    odd = np.array([[3, 0, 255]], np.uint8).view(bool)
    np.savez(tmp_path / "far.npz", keys=KEYS[:1].astype(">f8"), mask=odd)
    far = read_arrays(tmp_path / "far.npz")
    assert far["keys"].dtype.isnative and (far["keys"] == KEYS[:1]).all()
    assert far["mask"].view(np.uint8).tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"keys": np.array([{}], object)}, "keys has dtype object. Save it as an array of real numbers"),
        ({"keys": KEYS.astype(complex)}, "keys has dtype complex128"),
        ({"keys": KEYS.astype(str)}, "keys has dtype"),
        ({"keys": KEYS[0]}, r"keys has shape \(3, 4\). Pass \(n, T, d\)"),
        ({"queries": KEYS}, r"no array 'keys', only \['queries'\]"),
        ({"keys": np.full((1, 2, 2), np.nan)}, r"keys\[0, 0, 0\] is nan"),
    ],
)
def test_bad_tokens_are_named_with_their_file(tmp_path, arrays, said):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(BadFile, match=rf"bad\.npz: {said}"):
        Tokens.load(tmp_path / "bad.npz")


def changed(thing, file, **arrays):
    """The saved thing with some of its arrays replaced; None leaves one out."""
    kept = arrays_of(thing.save(file)) | arrays
    np.savez(file, **{name: array for name, array in kept.items() if array is not None})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"W": np.ones((5, 4))}, r"W has shape \(5, 4\), expected \(d, e\) with d=5, e=5"),
        ({"multipliers": np.ones(3)}, r"multipliers has shape \(3,\), expected \(m\) with m=9"),
        ({"required": np.ones(2)}, r"required has shape \(2,\), expected \(n\) with n=3"),
        ({"selected": np.ones((3, 5), bool)}, r"selected has shape \(3, 5\)"),
        ({"norm": np.array(["Euclid", "2"])}, r"unknown norm \['Euclid', '2'\]"),
        ({"norm": np.array(["Schatten", "0.5"])}, "0.5"),
        ({"W": np.full((5, 5), np.inf)}, "is not finite"),
        ({"W": None, "norm": None}, "not a saved Solution: no array W, norm"),
    ],
)
def test_a_solution_with_a_wrong_array_is_refused(tmp_path, solution, arrays, said):
    file = tmp_path / "solution.npz"
    changed(solution, file)
    assert Solution.load(file).certified
    changed(solution, file, **arrays)
    with pytest.raises(BadFile, match=rf"solution\.npz: .*{said}"):
        Solution.load(file)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"path_W": np.ones((3, 5, 5))}, r"W has shape \(3, 5, 5\), expected \(k, d, e\) with k=2, d=5, e=5"),
        ({"path_loss": np.ones((2, 2))}, r"loss has shape \(2, 2\)"),
        ({"path_W": np.ones((2, 2, 5, 5))}, r"loss has shape \(2,\), expected \(runs, k\) with runs=2, k=2"),
        ({"path_index": np.ones((2, 1))}, r"index has shape \(2, 1\)"),
        ({"path_index": np.array([0, np.nan])}, "index is not finite"),
        ({"path_kind": np.array("metres")}, "path_kind is .*Known: steps, radius, ridge"),
        ({"path_stopped": np.array(3)}, "path_stopped has dtype int64"),
        ({"path_loss": None}, "not a saved Path: no array path_loss"),
    ],
)
def test_a_path_with_a_wrong_array_is_refused(tmp_path, path, arrays, said):
    file = tmp_path / "path.npz"
    changed(path, file)
    assert repr(Path.load(file)) == repr(path)
    changed(path, file, **arrays)
    with pytest.raises(BadFile, match=rf"path\.npz: .*{said}"):
        Path.load(file)


# ---------------------------------------------------------------------- sizes


def bomb(file, shape):
    """A file that declares an array of zeros of this shape and holds the first of its bytes."""
    array, info = io.BytesIO(), zipfile.ZipInfo("keys.npy")
    np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(info, array.getvalue() + bytes(1000))
        info.file_size = len(array.getvalue()) + 8 * int(np.prod(shape))


def test_a_small_file_that_expands_to_gigabytes_is_refused_unread(tmp_path):
    bomb(tmp_path / "bomb.npz", (500, 1000, 1000))
    with pytest.raises(BadFile, match="MiB expand to 3,815 MiB"):
        Tokens.load(tmp_path / "bomb.npz")


def test_an_honest_compressed_file_is_read(tmp_path):
    np.savez_compressed(tmp_path / "zeros.npz", keys=np.zeros((100, 100, 100)))
    assert Tokens.load(tmp_path / "zeros.npz").n == 100


def test_more_than_half_of_the_memory_is_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "large.npz", keys=np.ones((10, 10, 10)))
    monkeypatch.setattr(files, "memory", lambda: 16_000)
    assert Tokens.load(tmp_path / "large.npz").n == 10
    monkeypatch.setattr(files, "memory", lambda: 15_000)
    with pytest.raises(BadFile, match="half of the memory"):
        Tokens.load(tmp_path / "large.npz")
