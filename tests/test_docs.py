"""The docs: broken blocks fail, the reference is complete, links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from sybil import Sybil
from sybil.example import SybilFailure
from sybil.parsers.markdown import CodeBlockParser

import attsvm
from attsvm import datasets, next_token
from attsvm_lab import claims, datasets as neighbours, figures, programs
from tests import pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(ROOT.glob("*.md"))
PAGES += [
    page for page in sorted(DOCS.rglob("*.md")) if page.parent != DOCS / "notebooks"
]  # written by the site
PAGES += sorted((ROOT / "notebooks").glob("*.md"))


def evaluate(text, folder, name="page.md"):
    """Run all blocks of a page."""
    page = folder / name
    page.write_text(text, encoding="utf8")
    shell = CodeBlockParser("sh", pages.commands)
    parsers = [pages.Python(), CodeBlockParser("text", pages.printed), shell]
    for example in Sybil(parsers, path=str(folder), patterns=["*.md"]).parse(page).examples():
        example.evaluate()


GOOD = "```python\nx = 2\nprint(x + 1)\n```\n\n```text\n3\n```\n\n```python\n>>> x\n2\n```\n"


def test_a_sound_page_passes(tmp_path):
    evaluate(GOOD + "```sh\nattsvm solve FILE --norm l1     # a comment\nmake test\n```\n", tmp_path)


@pytest.mark.parametrize(
    ("page", "error"),
    [
        (GOOD.replace("x + 1", "y"), NameError),
        (GOOD.replace("3", "4"), SybilFailure),
        (GOOD.replace("x\n2", "x\n5"), SybilFailure),
        ("```text\n3\n```\n", SybilFailure),
        ("```sh\nattsvm solve FILE --nrom l1\n```\n", SybilFailure),
        ("```sh\nattsvm resolve FILE\n```\n", SybilFailure),
        ("```sh\nmake tests\n```\n", SybilFailure),
        ("```sh\npython lab/benchmarks/nothing.py\n```\n", SybilFailure),
    ],
)
def test_a_broken_block_fails(page, error, tmp_path):
    with pytest.raises(error):
        evaluate(page, tmp_path)


def test_what_is_marked_as_not_run_is_skipped(tmp_path):
    with pytest.raises(pytest.skip.Exception, match="no network"):
        evaluate("```python\n# not run in the tests: no network\nfetch()\n```\n", tmp_path)


def test_a_block_whose_package_is_missing_is_skipped_with_those_below(tmp_path):
    with pytest.raises(pytest.skip.Exception, match="needs nowhere"):
        evaluate("```python\n# needs attsvm[sklearn] and the package nowhere\nnowhere()\n```\n", tmp_path)


def test_every_page_is_collected(request):
    text = "\n".join(page.read_text(encoding="utf8") for page in PAGES)
    languages = set(re.findall(r"^```(\w+)$", text, re.MULTILINE))
    assert languages <= {"python", "text", "sh", "toml", "bibtex"}, (
        "a block of this language is run by nothing"
    )


# ---------------------------------------------------------------------- the reference


API = {
    page.name: page.read_text(encoding="utf8")
    for page in (*(DOCS / "api").glob("*.md"), DOCS / "lab" / "programs.md")
}
NAMES = [
    *(f"attsvm.{name}" for name in attsvm.__all__),
    *(
        f"{module.__name__}.{name}"
        for module in (claims, datasets, figures, neighbours, next_token, programs)
        for name in module.__all__
    ),
]
FOLDERS = {"attsvm_lab.claims", "attsvm.next_token"}  # pages, or parts of one, of their own


def public(folder):
    """The names of a folder that may need what is not installed, read from its source."""
    source = (ROOT / "src" / "attsvm" / folder / "__init__.py").read_text(encoding="utf8")
    return [f"attsvm.{folder}.{name}" for name in re.findall(r'"(\w+)"', source.split("__all__ =")[1])]


def example_of(name, text):
    """The first block below the entry of a name in the reference."""
    entry = rf"^\.\. (?:auto\w+|py:data):: {re.escape(name)}$"
    found = re.search(rf"{entry}.*?^```$(.*?)(?=^```\{{eval-rst|\Z)", text, re.M | re.S)
    return None if found is None else found[1]


EXTRAS = [name for folder in ("probe", "heads", "torch", "jax") for name in public(folder)]


@pytest.mark.parametrize("name", [name for name in NAMES + EXTRAS if name not in FOLDERS])
def test_every_public_name_is_in_the_reference_with_an_example(name):
    found = [example for text in API.values() if (example := example_of(name, text)) is not None]
    assert found, f"{name} is not in docs/api"
    assert name == "attsvm.datasets" or ">>>" in found[0], f"{name} has no example"


def test_the_names_of_the_extras_are_known():
    assert {"attsvm.probe.AttentionProbe", "attsvm.heads.CutTexts", "attsvm.torch.pool"} <= set(EXTRAS)


def test_a_missing_example_is_seen():
    entry = "```{{eval-rst}}\n.. autofunction:: attsvm.{}\n```\n\n"
    text = entry.format("a") + entry.format("b") + ">>> b\n" + entry.format("probe.b") + "## c\n"
    assert ">>>" not in example_of("attsvm.a", text)
    assert ">>>" in example_of("attsvm.b", text)
    assert ">>>" not in example_of("attsvm.probe.b", text)
    assert example_of("attsvm.c", text) is None


# ---------------------------------------------------------------------- links


def anchors(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")).strip().replace(" ", "-") for head in heads
    }


def broken_links(page):
    text = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("http:", "https:")):
            file, _, anchor = link.partition("#")
            target = page if not file else page.parent / file
            left = page.is_relative_to(DOCS) and not target.resolve().is_relative_to(DOCS)
            if left or not target.exists() or (anchor and anchor not in anchors(target)):
                yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    assert not list(broken_links(page))


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A head\n[a](#a-head) [b](page.md) [c](#nowhere) [d](other.md)", encoding="utf8")
    assert list(broken_links(page)) == ["#nowhere", "other.md"]


def test_a_link_out_of_the_site_is_seen(monkeypatch, tmp_path):
    monkeypatch.setitem(globals(), "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").touch()
    page = tmp_path / "docs" / "page.md"
    page.write_text("[a](page.md) [b](../README.md)", encoding="utf8")
    assert list(broken_links(page)) == ["../README.md"]


# ---------------------------------------------------------------------- what a page tells to install

BRINGS = {"lab": {"plot"}, "hf": {"torch"}}
"""Extras that bring what another extra brings."""


def extras_not_installed(text):
    """Extras that the blocks of a page need and that its lines of pip do not install."""
    lines = re.findall(r"pip install \"?\.(?:\[([\w,]+)\])?", text)
    if not lines:
        return set()
    installed = set(",".join(lines).split(","))
    installed |= {extra for one in installed for extra in BRINGS.get(one, ())}
    needed = {
        extra for list_ in re.findall(r"# needs attsvm\[([\w,]+)\]", text) for extra in list_.split(",")
    }
    plots = re.search(r"\.plot\(|import matplotlib|pyplot", text)
    return (needed | ({"plot"} if plots else set())) - installed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_install_line_of_a_page_brings_what_its_blocks_need(page):
    assert extras_not_installed(page.read_text(encoding="utf8")) == set()


# ---------------------------------------------------------------------- the first picture


def test_the_first_picture_marks_where_each_optimizer_is_best():
    spec = importlib.util.spec_from_file_location("first_picture", DOCS / "first_picture.py")
    first = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(first)
    steps = np.geomspace(10, 1e5, 9)
    past = {"steps": steps, "usual": np.full((2, 9), 0.1), "ours": np.stack(2 * [1 / steps])}
    best = dict(zip(first.STEPS, (0, 2, 5), strict=True))
    halves = {p: np.stack(2 * [90 - 3 * abs(np.arange(6) - k)], axis=1) for p, k in best.items()}
    _, right = first.draw(past, halves).axes
    dots = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"]
    assert dots == [0, 2, 5]
