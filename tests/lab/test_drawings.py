"""Drawings as elements of a page: small, complete, and coloured by the page."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.style import write_svg
from attsvm_lab.report.drawings import Drawings


@pytest.fixture
def files(tmp_path):
    """Two drawings with the same letters and markers, at other places."""
    for name, scale in (("a", 1), ("b", 2)):
        canvas = Canvas(figsize=(3, 2))
        ax = canvas.add_subplot()
        ax.plot(scale * np.arange(5), "o-", color="#0072B2")
        ax.plot(np.arange(5), color="#123456")
        write_svg(canvas, tmp_path / f"{name}.svg")
    return [tmp_path / "a.svg", tmp_path / "b.svg"]


def test_every_reference_of_a_page_has_one_target(files):
    drawings = Drawings()
    text = "".join(drawings.figure(file, "x") for file in files) + drawings.shared
    ids = re.findall(r'\bid="([^"]+)"', text)
    used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)}
    assert len(set(ids)) == len(ids) and used == set(ids)
    classes = set(re.findall(r'class="(d\d+)"', text))
    assert classes == set(re.findall(r"\.(d\d+) {", drawings.style))


def test_a_second_drawing_adds_little_and_both_are_smaller_than_their_files(files):
    drawings, other = Drawings(), Drawings()
    first = len(drawings.figure(files[0], "x") + drawings.shared)
    both = first + len(drawings.figure(files[1], "x"))
    assert first < files[0].stat().st_size / 2
    assert len(other.figure(files[1], "x") + other.shared) > 1.3 * (both - first)


def test_colours_of_the_palette_follow_the_page_and_others_do_not(files):
    drawings = Drawings()
    drawings.figure(files[0], "x")
    assert "stroke: var(--plot-blue)" in drawings.style and "#0072b2" not in drawings.style
    assert "stroke: #123456" in drawings.style


def test_a_description_is_escaped(files):
    assert 'aria-label="a &lt;b&gt; &quot;c&quot;"' in Drawings().figure(files[0], 'a <b> "c"')
