"""bfloat16: every one of its numbers is read exactly, and files that hold it are solved."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from attsvm.numbers.files import widened
from tests.commands import run

ALL = np.arange(2**16, dtype=np.uint16)


def test_every_bfloat16_number_is_widened_exactly():
    import ml_dtypes  # JAX's own

    wide = ALL.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(widened(ALL), wide)
    assert np.array_equal(widened([0x3F80, 0xFF80, 0x7FC1]), [1, -np.inf, np.nan], equal_nan=True)
    with np.errstate(invalid="ignore"):
        assert (ALL.view(np.float16).astype(np.float32) != wide).mean() > 0.9  # another 16 bits


def test_torch_agrees():
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    theirs = torch.from_numpy(ALL.astype(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widened(ALL), theirs)


# ---------------------------------------------------------------------- files


def write(file, kind, numbers):
    """A .safetensors file with the array `keys`, written byte by byte."""
    entry = {"dtype": kind, "shape": numbers.shape, "data_offsets": [0, numbers.nbytes]}
    header = json.dumps({"keys": entry}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + numbers.tobytes())
    return file


def printed(text):
    """What was printed, but for the errors of the certificate: they are rounding, and processes differ."""
    return re.sub(r"\d\.\de-\d\d", "rounding", text)


def solve(file):
    done = run("solve", file, "--select", "first")
    return done.exit_code, printed(done.stdout), done.stderr


def solve_without_torch(file):
    """The same in a process that loads neither torch nor the numbers of JAX."""
    code = "import sys\nfrom attsvm.cli import app\ntry: app()\n"
    code += "finally: assert not {'torch', 'ml_dtypes'} & {*sys.modules}"
    command = [sys.executable, "-c", code, "solve", str(file), "--select", "first"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, printed(done.stdout), done.stderr


def test_a_file_of_bfloat16_is_solved_with_and_without_torch(tmp_path):
    keys = np.random.default_rng(0).standard_normal((3, 4, 8)).astype(np.float32)
    upper = (keys.view(np.uint32) >> 16).astype(np.uint16)
    brain = write(tmp_path / "brain.safetensors", "BF16", upper)
    half = write(tmp_path / "half.safetensors", "F16", keys.astype(np.float16))
    np.savez(tmp_path / "brain.npz", keys=widened(upper))
    np.savez(tmp_path / "half.npz", keys=keys.astype(np.float16))
    assert solve_without_torch(brain) == solve(brain) == solve(tmp_path / "brain.npz")
    assert solve(half) == solve(tmp_path / "half.npz") != solve(brain)
    code, said, _ = solve(brain)
    assert code == 0 and said.count("rounding") == 3


def test_a_file_of_eight_bits_is_refused_in_one_line(tmp_path):
    code, _, said = solve(write(tmp_path / "eight.safetensors", "F8_E4M3", np.zeros((1, 2, 4), np.uint8)))
    assert code == 1 and said.count("\n") == 1 and "F8_E4M3" in said
