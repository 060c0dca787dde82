"""Notebooks as text: what the site makes of them. Their cells run as those of every page (conftest.py)."""

import base64
import importlib.util
import json
import re
from pathlib import Path

import pytest
from matplotlib import pyplot

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.md"))
SMALL = """# A title

A line with [a link](../docs/index.md).

```sh
pip install .
```

```python
import matplotlib.pyplot as plt

figure, ax = plt.subplots()
print("printed")
41 + 1
```

```python
from matplotlib.figure import Figure

Figure()
```
"""


@pytest.fixture(scope="module")
def notebooks():
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(notebooks, tmp_path, monkeypatch):
    """What becomes of a text: the folder with its page, its pictures and its .ipynb."""
    monkeypatch.setenv("MPLBACKEND", "agg")

    def write(text):
        (tmp_path / "small.md").write_text(text, encoding="utf8")
        notebooks.main(str(tmp_path / "small.md"), str(tmp_path / "out"))
        return tmp_path / "out"

    return write


def test_a_page_shows_what_its_cells_print_return_and_draw(written):
    pyplot.figure()  # of somebody else
    out = written(SMALL)
    page = (out / "small.md").read_text(encoding="utf8")
    assert ":class: output\n\nprinted\n42\n" in page
    assert page.count("](small-") == 2 and len(list(out.glob("*.svg"))) == 2
    assert "[a link](../index.md)" in page and "small.ipynb" in page


def test_a_notebook_to_download_installs_first_and_has_its_outputs(written):
    found = json.loads((written(SMALL) / "small.ipynb").read_text(encoding="utf8"))
    first, second, third = (cell for cell in found["cells"] if cell["cell_type"] == "code")
    assert first["source"] == "%pip install .\n%matplotlib inline"
    assert second["outputs"][0]["text"] == "printed\n42\n"
    picture = third["outputs"][0]["data"]["image/png"]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "A line with a link." in found["cells"][0]["source"]  # nothing lies beside it


def test_a_cell_that_fails_stops_the_site(written):
    with pytest.raises(ZeroDivisionError):
        written(SMALL.replace("41 + 1", "41 / 0"))


def test_where_an_extra_is_missing_the_page_says_so(written):
    page = (written(SMALL.replace("41 + 1", "import nowhere")) / "small.md").read_text(encoding="utf8")
    assert "Outputs are not shown: No module named 'nowhere'" in page


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_installs_asserts_and_is_in_the_contents(notebooks, file):
    cells = notebooks.cells(file.read_text(encoding="utf8"))
    assert [cell.kind for cell in cells[:2]] == ["markdown", "sh"] and cells[0].source.startswith("# ")
    code = "".join(cell.source for cell in cells if cell.kind == "python")
    assert re.search(r"^ *assert ", code, re.MULTILINE), "nothing in it could fail"
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf8")
    assert f"<notebooks/{file.stem}>" in page and f"\nnotebooks/{file.stem}\n" in page  # table and contents
