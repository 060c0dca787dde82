"""The experiments are scripts beside the package: their folder is put on the path."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs attsvm[torch]")
pytest.importorskip("safetensors", reason="needs attsvm[hf]")

FOLDER = Path(__file__).parents[3] / "lab" / "experiments"
sys.path.insert(0, str(FOLDER))
