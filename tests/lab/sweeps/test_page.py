"""The page of a study: its title, its axes in words, its maps."""

import numpy as np
import pytest

from attsvm._support.options import BadOption
from attsvm_lab.sweeps import labels
from attsvm_lab.sweeps.drawing import CellEstimate, Layout, draw_curves, draw_map
from attsvm_lab.sweeps.measure import own_bounds
from attsvm_lab.sweeps.page import page
from attsvm_lab.sweeps.result import Sweep
from attsvm_lab.sweeps.study import read_study
from attsvm_lab.sweeps.sweep import sweep
from attsvm_lab.sweeps.table import Table
from attsvm_lab.workers import SerialExecutor


def points(rows):
    return [CellEstimate({"d": d, "T": T}, 0.5, 0.4, 0.6) for d in (2, 4) for T in range(2, 2 + rows)]


@pytest.mark.parametrize("draw", [draw_curves, draw_map])
def test_axes_are_named_in_words(draw):
    ax = draw(points(3), "margin_ratio:l1", Layout("d", "T")).axes[0]
    wanted = "tokens per input T" if draw is draw_map else "margin / best margin"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("width of a token d", wanted)


def test_a_map_of_few_rows_has_higher_rows():
    heights = [
        draw_map(points(rows), "global", Layout("d", "T")).axes[0].bbox.height / rows for rows in (3, 9)
    ]
    assert heights[0] > 1.3 * heights[1]


def study(tmp_path, rows):
    cells = [(T, d) for T in range(2, 2 + rows) for d in (2, 4)]
    runs = {
        "cell": np.repeat(np.arange(len(cells)), 2),
        "model": np.full(2 * len(cells), "sphere"),
        "T": np.repeat([T for T, _ in cells], 2),
        "d": np.repeat([d for _, d in cells], 2),
        "seed": np.tile([0, 1], len(cells)),
        "separable": np.tile([True, False], len(cells)),
    }
    facts = {"title": "A <study>", "about": "", "scale": "default", "parameters": ["model", "T", "d"]}
    return Table(tmp_path, facts | {"measures": ["separable"], "show": {"x": "d"}, "wanted": {}}, runs)


@pytest.mark.parametrize(("rows", "maps"), [(2, 0), (3, 1)])
def test_a_map_needs_more_than_two_rows(tmp_path, rows, maps):
    text = page(study(tmp_path, rows))
    assert len(list((tmp_path / "pictures").glob("*-map.svg"))) == maps
    assert text.count("<figure") == 1 + maps
    assert "<h1>A &lt;study&gt;</h1>" in text and "All runs have model sphere." in text


def test_a_study_without_a_title_says_what_it_measures_and_over_what(tmp_path):
    file = tmp_path / "my_first.toml"
    data = '[data]\nmodel = "prompt_sphere"\nn = 2\nT = [2, 3]\nd = [2, 4]\n'
    file.write_text(f'measure = ["kind", "margin_ratio"]\n{data}')
    title = read_study(file).title
    assert title == "My first: where runs end and margin as a share of the best possible, over T and d"
    file.write_text(f'title = "Mine"\n{data}')
    assert read_study(file).title == "Mine"


@pytest.mark.parametrize("name", ["mine:count", "mine:kind = even", "lr_min"])
def test_names_of_ones_own_are_not_changed(name):
    assert labels.title(name) == labels.axis(name) == labels.parameter(name) == name


OWN = """
def ratio(path):
    ratio.calls += 1
    return 0.9 if ratio.calls % 8 == 0 else 1.0

ratio.calls = 0
"""
STUDY = """
measure = "{module}:ratio"
seeds = 8
[data]
model = "prompt_sphere"
n = 1
T = 2
d = 2
[train]
steps = 4
"""


@pytest.mark.parametrize(("stated", "most"), [("", 1.0 + 1e-3), ("ratio.bounds = (0, 1)", 1.0)])
def test_the_interval_of_a_measure_of_ones_own_keeps_within_the_bounds_it_states(tmp_path, stated, most):
    name = f"own_ratio_{len(stated)}"
    (tmp_path / f"{name}.py").write_text(OWN + stated)
    (tmp_path / "own.toml").write_text(STUDY.format(module=name))
    done = sweep(tmp_path / "own.toml", SerialExecutor(), out=tmp_path / "out")
    (cell,) = Sweep.load(tmp_path / "out").cells
    (found,) = cell.quantities.values()
    assert done.cells == Sweep.load(tmp_path / "out").cells
    assert found.value == pytest.approx(0.9875)
    assert found.high == 1.0 if stated else found.high > most


@pytest.mark.parametrize("bounds", ["1", "(1, 0)", "(0, 'a')", "(0, 1, 2)"])
def test_bounds_that_are_none_are_refused(tmp_path, bounds):
    (tmp_path / "own_bounds_of_none.py").write_text(f"def ratio(path): return 1\nratio.bounds = {bounds}\n")
    with pytest.raises(BadOption, match=r"ratio\.bounds is .* Pass the least and the largest value"):
        own_bounds(["own_bounds_of_none:ratio"], str(tmp_path))
