"""Every Python block of the docs runs as written, page by page; the README prints what it shows.

A block says in a comment what it needs (`# needs attsvm[sklearn]`), and why it is not run here, if it is not
(`# … not run in the tests: …`). The page on PyTorch has a test of its own, beside those of PyTorch.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/practice/*.md")])
EXTRAS = {
    "sklearn": ("sklearn",),
    "dask": ("dask.array", "distributed"),
    "sweep": ("pyarrow",),
    "torch": ("torch",),
    "hf": ("torch", "transformers"),
}


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run(code):
    """Run the blocks one after the other; returns what they print."""
    printed, names = io.StringIO(), {"__name__": "page"}
    with contextlib.redirect_stdout(printed):
        for block in code:
            exec(block, names)
    return printed.getvalue()


def runnable(text):
    """The blocks to run; skips where an extra is missing, or where all are marked as not run."""
    code = blocks(text)
    marks = [re.search("not run in the tests: (.*)", block) for block in code]
    if all(marks):
        pytest.skip(marks[0][1])
    for extra in re.findall(r"# needs attsvm\[(\w+)\]", text):
        for module in EXTRAS[extra]:
            pytest.importorskip(module, reason=f"needs attsvm[{extra}]")
    return [block for block, mark in zip(code, marks, strict=True) if mark is None]


def words(text):
    """The text without its rounding-sized numbers, which differ between machines."""
    return re.sub(r"\d\.\de-\d\d|0\.0e\+00", "tiny", text).split()


WITH_CODE = [page for page in PAGES if blocks(page.read_text(encoding="utf8")) and page.name != "torch.md"]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(runnable(page.read_text(encoding="utf8")))


def test_the_readme_prints_what_it_shows():
    text = README.read_text(encoding="utf8")
    assert words(run(blocks(text))) == words(blocks(text, "text")[0])


def test_pages_with_code_are_found():
    assert {"next_token.md", "probe.md", "heads.md"} <= {page.name for page in WITH_CODE}


def test_an_example_with_an_undefined_name_fails():
    with pytest.raises(NameError):
        run(runnable("```python\nfit(sequences)\n```"))
