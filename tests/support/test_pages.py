"""Text and data on the pages of the package, whoever wrote them."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from attsvm._support.pages import embedded, escaped, prose

ROOT = Path(__file__).parents[2]
EVIL = ("</script><script>alert(1)</script>", "<!--<script>", "-->", "]]>", "\u2028", "'\"&<>", "é😀")
HALF = "\ud800"


@pytest.mark.parametrize("text", EVIL)
def test_embedded_data_cannot_leave_its_script_and_reads_back(text):
    written = embedded({text: [text, float("nan")]})
    assert "<" not in written
    assert json.loads(written) == {text: [text, None]}


@pytest.mark.parametrize("text", EVIL)
def test_escaped_text_holds_no_tag(text):
    assert "<" not in escaped(text)


@pytest.mark.parametrize("way", [embedded, escaped, prose])
def test_what_is_no_character_is_shown_as_such_and_can_be_written(way):
    with pytest.raises(UnicodeEncodeError):
        f"a{HALF}b".encode()
    assert "a\ufffdb" in way(f"a{HALF}b").encode().decode()
    assert "😀" in way("\ud83d\ude00")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("C·W^mm + W^fin", "C·W<sup>mm</sup> + W<sup>fin</sup>"),
        ("p^mm(best), W^mm_α", "p<sup>mm</sup>(best), W<sup>mm</sup>_α"),
        ("e^(−R) and x^{a,b}", "e<sup>−R</sup> and x<sup>a,b</sup>"),
        ("ρ^(2(σ/s − 1)), (s)", "ρ<sup>2(σ/s − 1)</sup>, (s)"),
        ("e^(((a)(b)c)d) (f)", "e<sup>((a)(b)c)d</sup> (f)"),
        ("e^(−c t^(1/3)) e", "e<sup>−c t<sup>1/3</sup></sup> e"),
        ("t^−.55, t^−2.0 and e^0.1.", "t<sup>−.55</sup>, t<sup>−2.0</sup> and e<sup>0.1</sup>."),
        ("e^(a (b", "e^(a (b"),
        ("`a_b^c` is <b>", "<code>a_<wbr>b^c</code> is &lt;b&gt;"),
        ("a ^ b, ^c, 5 `", "a ^ b, ^c, 5 `"),
    ],
)
def test_code_and_exponents_are_shown_as_such(text, shown):
    assert prose(text) == shown


def prose_of(page):
    """The text of a page without its code."""
    text = re.sub(
        r"^```.*?^```|^ {4}.*?$", "", page.read_text(encoding="utf8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]+`", "", text)


def exponents(text):
    return [re.sub(r"</?sup>", "", each) for each in re.findall(r"<sup>(.*?)</sup>(?!</sup>)", prose(text))]


def test_every_exponent_of_the_docs_is_raised_up_to_its_own_closing_parenthesis():
    texts = [prose_of(page) for page in sorted((ROOT / "docs").rglob("*.md"))]
    raised = [exponent for text in texts for exponent in exponents(text)]
    assert [each for each in raised if each.count("(") != each.count(")")] == []
    assert len([each for each in raised if "(" in each]) >= 20
    assert [mark for text in texts for mark in re.findall(r"[^\s^]\^.{9}", prose(text))] == []
    assert [mark for text in texts for mark in re.findall(r"</sup>(?:\.\d|')", prose(text))] == []


def test_formulas_of_the_proofs_are_not_emphasised():
    markdown = pytest.importorskip("markdown_it", reason="needs the extra docs").MarkdownIt()
    for name in ("law_of_halves_proofs.md", "heads_proofs.md"):
        html = markdown.render((ROOT / "docs" / name).read_text(encoding="utf8"))
        spans = re.findall(r"<em>(.*?)</em>", html, flags=re.DOTALL)
        assert spans and [span for span in spans if span.count("(") != span.count(")") or "‖" in span] == []


@pytest.fixture(scope="module")
def site():
    """The settings of the site, with the functions that it calls."""
    spec = spec_from_file_location("site_settings", ROOT / "docs" / "conf.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_on_the_site_breaks_after_an_underscore_only(site):
    context = {"body": '<p>a_b <span class="pre">a_b_c</span> a_b</p>', "toc": None}
    site.breaks(None, "claims", "page.html", context, None)
    assert context["body"] == '<p>a_b <span class="pre">a_<wbr>b_<wbr>c</span> a_b</p>'


def test_exponents_on_the_site_are_raised_and_code_stays(site):
    nodes = pytest.importorskip("docutils.nodes", reason="needs the extra docs")
    words = nodes.paragraph(
        "", "", nodes.Text("p^mm and "), nodes.literal("", "p^mm"), nodes.Text(" ^ e^(2(a + b^c)) (d)")
    )
    site.exponents(None, words)
    assert words.astext() == "pmm and p^mm ^ e2(a + bc) (d)"
    assert [each.astext() for each in words.findall(nodes.superscript)] == ["mm", "2(a + bc)", "c"]
