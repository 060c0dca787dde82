"""The examples of docs/torch.md run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install attsvm[torch]")
pytest.importorskip("transformers", reason="needs transformers: pip install attsvm[hf]")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_pages_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, names = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf8"), re.DOTALL), {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 5 and sorted({r.step for r in names["monitor"].records}) == [0, 2]
