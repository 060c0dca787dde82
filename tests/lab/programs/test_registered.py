"""The entry points of pyproject.toml name modules that register the norms of the laboratory."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import attsvm as att
from attsvm_lab import programs

ROOT = Path(__file__).parents[3]
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["entry-points"]
NORMS = POINTS["attsvm.norms"]
EXAMPLES = {
    "HybridNorm": programs.HybridNorm(("spectral", "linf"), (4, 1)),
    "MaxNorm": programs.MaxNorm(),
}


@pytest.fixture
def installed(tmp_path):
    """The entry points as an installation writes them."""
    info = tmp_path / "attsvm_norms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attsvm-norms\nVersion: 1.0\n")
    lines = [f"{name} = {module}" for name, module in NORMS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[attsvm.norms]", *lines, ""]))
    return tmp_path


def test_every_entry_point_has_an_example():
    assert set(EXAMPLES) == {name for name in NORMS if name.isidentifier()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_who_only_loads_a_solution_needs_no_import(name, installed):
    tokens, _ = att.datasets.sphere(3, 3, 4, seed=0)
    tokens = att.Tokens(tokens.keys, np.c_[tokens.queries, np.ones(3)])
    solution = att.max_margin(tokens, [0, 1, 2], EXAMPLES[name])
    solution.save(installed / "solution.npz")
    script = "import sys, attsvm; s = attsvm.Solution.load(sys.argv[1]); print(s.certified, s.norm, sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", script, str(installed / "solution.npz")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT / 'src'}"},
    )
    assert done.stdout.strip() == f"True|{EXAMPLES[name]}"
