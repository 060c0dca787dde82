"""Text and data on the pages of the package, whoever wrote them."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from attsvm._support.pages import embedded, escaped, prose

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
        ("`a_b^c` is <b>", "<code>a_<wbr>b^c</code> is &lt;b&gt;"),
        ("a ^ b, ^c, 5 `", "a ^ b, ^c, 5 `"),
    ],
)
def test_code_and_exponents_are_shown_as_such(text, shown):
    assert prose(text) == shown


@pytest.fixture(scope="module")
def site():
    """The settings of the site, with the functions that it calls."""
    spec = spec_from_file_location("site_settings", Path(__file__).parents[2] / "docs" / "conf.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_on_the_site_breaks_after_an_underscore_only(site):
    context = {"body": '<p>a_b <span class="pre">a_b_c</span> a_b</p>', "toc": None}
    site.breaks(None, "claims", "page.html", context, None)
    assert context["body"] == '<p>a_b <span class="pre">a_<wbr>b_<wbr>c</span> a_b</p>'


def test_exponents_on_the_site_are_raised_and_code_stays(site):
    nodes = pytest.importorskip("docutils.nodes", reason="needs the extra docs")
    words = nodes.paragraph("", "", nodes.Text("p^mm and "), nodes.literal("", "p^mm"), nodes.Text(" ^ "))
    site.exponents(None, words)
    assert words.astext() == "pmm and p^mm ^ "
    assert [each.astext() for each in words.findall(nodes.superscript)] == ["mm"]
