"""Large keys and values stay in their file: the same answer as read, the same words for a bad file."""

import json
import tracemalloc

import numpy as np
import pytest

from attsvm import Solution, Tokens, max_margin
from attsvm.numbers import files
from attsvm.numbers.files import BadFile, read_arrays
from attsvm.numbers.stored import Stored, array
from tests.commands import run
from tests.numbers.test_damaged_files import BYTES, damaged, ends_in_words
from tests.numbers.test_files import write_npz, write_safetensors
from tests.program.test_working_set import SAME, problem

N, T, D = 200, 6, 10


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(files, "COPY_LIMIT", 0)


def write_npy(file, arrays):
    np.save(file.open("wb"), arrays["keys"])


def write_brain(file, arrays):
    """The keys rounded towards zero, as bfloat16."""
    bits = (arrays["keys"].astype("float32").view(np.uint32) >> 16).astype(np.uint16)
    write_safetensors(file, {"keys": bits}, {"keys": "BF16"})


def as_json(*words):
    done = run(*words, "--json")
    return json.loads(done.stdout), done.exit_code


FORMATS = [
    *(
        (write, dtype)
        for write in (write_npz, write_npy, write_safetensors)
        for dtype in ("<f8", "<f4", "<f2")
    ),
    (write_npz, ">f4"),
    (write_brain, "<f4"),
]


@pytest.mark.parametrize(("write", "dtype"), FORMATS)
def test_the_answer_is_the_one_of_the_arrays_that_are_read(tmp_path, monkeypatch, write, dtype):
    keys = problem(N, T, D, 1, dtype)[0]
    keys[:, 0] += 3  # the first token can win
    write(tmp_path / "file", {"keys": keys})
    there, code = as_json("solve", tmp_path / "file", "--select", "first")
    assert isinstance(Tokens.load(tmp_path / "file").keys, Stored)
    monkeypatch.setattr(files, "COPY_LIMIT", 10**9)
    assert not isinstance(Tokens.load(tmp_path / "file").keys, Stored)
    here, _ = as_json("solve", tmp_path / "file", "--select", "first")
    assert (code, there["certified"], there["rows"]) == (0, True, N * (T - 1))
    assert there["margin"] == pytest.approx(here["margin"], rel=SAME)


@pytest.mark.parametrize(("write", "dtype"), FORMATS)
def test_every_number_is_the_one_in_the_file(tmp_path, monkeypatch, write, dtype):
    write(tmp_path / "file", {"keys": problem(N, T, D, 1, dtype)[0]})
    there = read_arrays(tmp_path / "file", in_place=True)["keys"]
    here = read_arrays(tmp_path / "file")["keys"]
    assert (type(there), type(here)) == (np.memmap, np.ndarray)
    assert np.array_equal(Stored(there)[:], here)


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_values_stay_too_and_other_arrays_are_read(tmp_path, write):
    keys, queries, _ = problem(N, T, D, 3)
    values = np.random.default_rng(1).standard_normal((N, T, 4))
    write(tmp_path / "file", {"queries": queries, "keys": keys, "values": values})
    tokens = Tokens.load(tmp_path / "file")
    assert isinstance(tokens.values, Stored) and np.array_equal(tokens.values[:], values)
    assert np.array_equal(tokens.queries, queries)
    assert not isinstance(tokens.queries, np.memmap)


@pytest.mark.parametrize(
    "save",
    [
        lambda file, keys: np.savez_compressed(file, keys=keys),
        lambda file, keys: np.savez(file, keys=np.asfortranarray(keys)),
        lambda file, keys: np.savez(file, keys=keys[None]),
        lambda file, keys: np.savez(file, keys=np.ones(keys.shape, int)),
    ],
    ids=["compressed", "another order", "runs", "integers"],
)
def test_what_does_not_lie_in_the_file_as_it_is_used_is_read(tmp_path, save):
    save(tmp_path / "file.npz", problem(N, T, D, 1)[0])
    assert not isinstance(Tokens.load(tmp_path / "file.npz").keys, Stored)


def test_what_stays_in_the_file_needs_no_memory(tmp_path, monkeypatch):
    keys = problem(N, T, D, 1)[0]
    np.savez(tmp_path / "large.npz", keys=keys)
    monkeypatch.setattr(files, "memory", lambda: keys.nbytes)
    assert Tokens.load(tmp_path / "large.npz").n == N
    np.savez(tmp_path / "large.npz", keys=keys, queries=np.ones((N, D * T)))
    with pytest.raises(BadFile, match="half of the memory"):
        Tokens.load(tmp_path / "large.npz")


def test_no_more_than_a_part_is_held(tmp_path, monkeypatch):
    keys, _, best = problem(4000, 8, 64, 1, "float16")
    np.savez(tmp_path / "large.npz", keys=keys)
    monkeypatch.setattr(array, "BLOCK", 1 << 14)
    tracemalloc.start()
    tokens = Tokens.load(tmp_path / "large.npz")
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < keys.nbytes / 4
    sizes = []
    monkeypatch.setattr(
        Stored, "raw", lambda self, part, raw=Stored.raw: sizes.append(raw(self, part)) or sizes[-1]
    )
    assert max_margin(tokens, best).certified
    assert max(part.size for part in sizes) <= 1 << 14


def test_a_solution_is_written_without_the_keys_that_stay_in_their_file(tmp_path):
    keys, _, best = problem(N, T, D, 1)
    np.savez(tmp_path / "large.npz", keys=keys, selected=best)
    there, code = as_json("solve", tmp_path / "large.npz", "--out", tmp_path / "solution.npz")
    solution = Solution.load(tmp_path / "solution.npz", Tokens.load(tmp_path / "large.npz"))
    assert (code, solution.margin, solution.certified) == (0, there["margin"], True)
    shown, code = as_json("show", tmp_path / "solution.npz")
    assert code == 1 and "Pass them: Solution.load(file, tokens)" in shown["error"]


# ---------------------------------------------------------------------- bad files


@pytest.mark.parametrize("write", [write_npz, write_npy, write_safetensors, write_brain])
@pytest.mark.parametrize("missing", [1, 100, 10_000])
def test_a_truncated_file_is_refused_and_not_mapped_beyond_its_end(tmp_path, write, missing):
    file = tmp_path / "cut.npz"
    write(file, {"keys": problem(N, T, D, 1)[0]})
    file.write_bytes(file.read_bytes()[:-missing])
    with pytest.raises(BadFile, match=r"cut\.npz: .*(damaged|ends before)"):
        Tokens.load(file)


def test_a_flipped_bit_is_found_by_the_check_sum(tmp_path):
    np.savez(tmp_path / "bad.npz", keys=problem(N, T, D, 1)[0])
    data = bytearray((tmp_path / "bad.npz").read_bytes())
    data[5000] ^= 1
    (tmp_path / "bad.npz").write_bytes(data)
    with pytest.raises(BadFile, match="CRC"):
        Tokens.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("shape", [(N + 1, T, D), (-N, -T, D), (10**6, 10**6, 10**6)])
def test_a_header_that_lies_is_refused(tmp_path, shape):
    with (tmp_path / "lie.npy").open("wb") as stream:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(np.ones((N, T, D)).tobytes())
    with pytest.raises(BadFile, match=r"lie\.npy: the file is damaged"):
        Tokens.load(tmp_path / "lie.npy")


def test_keys_alone_must_be_keys(tmp_path):
    np.save(tmp_path / "flat.npy", np.ones((3, 4)))
    with pytest.raises(BadFile, match=r"keys has shape \(3, 4\). Pass \(n, T, d\)"):
        Tokens.load(tmp_path / "flat.npy")
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(BadFile, match="keys has dtype <U1"):
        Tokens.load(tmp_path / "text.npy")


@pytest.mark.parametrize("kind", ["problem", "safetensors"])
@pytest.mark.parametrize("damage", BYTES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_used_or_refused_in_words(kind, damage, tmp_path):
    for seed in range(6):
        ends_in_words(kind, damaged(kind, damage, seed, tmp_path))
