"""Keys that torch or JAX hold on a device: read and priced there. The CPU stands in for a GPU."""

import numpy as np
import pytest

from attsvm import Tokens, max_margin, nuclear
from attsvm.numbers import library
from attsvm.numbers.stored import Stored, as_stored, device as devices
from attsvm.numbers.stored.device import OnDevice
from tests.numbers.test_homes import in_jax, in_torch
from tests.numbers.test_stored import numbers
from tests.program.test_working_set import SAME, problem

LIBRARIES = pytest.mark.parametrize("put", [in_torch, in_jax])


@LIBRARIES
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_margins_on_a_device_are_those_in_memory(put, dtype):
    keys = numbers(30, 5, 8, dtype=dtype)
    rng = np.random.default_rng(1)
    examples, wide = np.array([0, 1, 2, 9, 29]), keys.astype(float)
    anchor, directions = rng.integers(5, size=5), rng.standard_normal((5, 8))
    first = wide[examples, anchor][:, None]
    expected = np.einsum("ntd,nd->nt", first - wide[examples], directions)
    found = OnDevice(put(keys)).margins(examples, anchor, directions, np.eye(8))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@LIBRARIES
def test_the_largest_entries_are_those_in_memory_and_no_number_is_infinite(put):
    keys = numbers(5, 3, 4)
    keys[2, 1, 0], keys[3, 0, 1] = -9, np.nan
    expected = np.abs(keys).max(-1)
    expected[3, 0] = np.inf
    np.testing.assert_array_equal(OnDevice(put(keys)).largest(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("T", "d"), [(1, 1), (5, 8), (64, 64), (70, 130)])
def test_the_kernel_of_triton_margins_agrees_with_plain_torch(monkeypatch, dtype, T, d):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    rng = np.random.default_rng(0)
    keys = torch.from_numpy(rng.standard_normal((9, T, d)) + 100.0).cuda().to(getattr(torch, dtype))
    asked = (
        np.array([0, 1, 4, 8]),
        rng.integers(T, size=4),
        rng.standard_normal((4, 2)),
        rng.standard_normal((d, 2)),
    )
    assert devices._triton_margins() is not None
    once = OnDevice(keys).margins(*asked)
    monkeypatch.setattr(devices, "_triton_margins", lambda: None)
    twice = OnDevice(keys).margins(*asked)
    np.testing.assert_allclose(once, twice, rtol=1e-12, atol=1e-11)


@LIBRARIES
def test_the_newton_matrix_of_a_nuclear_program_is_factored_on_the_device(put, monkeypatch):
    monkeypatch.setattr("attsvm.numbers.library.on_gpu", lambda x: not isinstance(x, np.ndarray))
    keys, queries, best = problem(24, 6, 24, 20)
    tokens, calls, full = Tokens(put(keys), queries), [], []
    home = type(tokens.keys.library)
    real = home.factor

    def factor(*arguments):
        calls.append(1)
        if full:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return real(*arguments)

    monkeypatch.setattr("attsvm.program.schatten.nuclear.MANY", 1)
    monkeypatch.setattr(home, "factor", factor)
    there, here = max_margin(tokens, best, nuclear), max_margin(Tokens(keys, queries), best, nuclear)
    assert calls and there.certified
    assert nuclear.value(there.W) == pytest.approx(nuclear.value(here.W), rel=SAME)
    full.append(True)  # no room there: the CPU does it
    assert max_margin(tokens, best, nuclear).certified


def test_rows_of_jax_are_taken_by_few_programs_however_many_they_are():
    array = numbers(64, 3, 2)
    stored, place = OnDevice(in_jax(array)), np.arange(64)
    stored[place[:2], place[:2] % 3]
    taken = library._program(stored.library.jax, library._gather)
    before = taken._cache_size()
    for count in (5, 6, 7, 8):
        found = stored[place[:count], place[:count] % 3]
        np.testing.assert_array_equal(found, array[place[:count], place[:count] % 3])
    assert taken._cache_size() == before + 1
    stored[place[:9], place[:9] % 3]
    assert taken._cache_size() == before + 2


@LIBRARIES
def test_a_matrix_that_is_not_positive_has_no_factor_on_the_device(put):
    home = OnDevice(put(numbers(2, 2, 2))).library
    with home.scope():
        matrix, added = home.put(np.array([[1.0, 2.0], [2.0, 1.0]])), home.put(np.zeros(2))
        assert home.factor(matrix, added, 1e-7) is None
        factor = home.factor(matrix, home.put(np.full(2, 3.0)), 0.0)
    np.testing.assert_allclose(home.solve(factor, np.array([6.0, 0.0])), [2.0, -1.0], rtol=1e-12)


def test_a_device_with_little_memory_is_asked_for_less_at_once(monkeypatch):
    keys = numbers(40, 4, 3)
    stored = OnDevice(in_torch(keys))
    most = []

    def margins(x, anchor, y):
        if len(x) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        most.append(len(x))
        return real(x, anchor, y)

    real = stored._margins
    monkeypatch.setattr(stored, "_margins", margins)
    found = stored.margins(np.arange(40), np.zeros(40, int), np.ones((40, 3)), np.eye(3))
    np.testing.assert_allclose(found, (keys[:, :1] - keys).astype(float).sum(-1), rtol=1e-5, atol=1e-5)
    assert max(most) <= 3
    monkeypatch.setattr(stored, "_margins", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(MemoryError, match=r"keys\[0\] does not fit"):
        stored.margins(np.arange(40), np.zeros(40, int), np.ones((40, 3)), np.eye(3))


def test_bfloat16_of_torch_stays_as_it_is():
    torch = pytest.importorskip("torch")
    tensor = in_torch(numbers(5, 3, 4)).to(torch.bfloat16)
    tokens = Tokens(tensor)
    assert isinstance(tokens.keys, Stored)
    assert np.array_equal(tokens.keys[:], tensor.to(torch.float64).numpy())


def test_tensors_on_the_cpu_are_arrays():
    assert as_stored("keys", in_torch(numbers(2, 3, 4)), np.float64) is None
