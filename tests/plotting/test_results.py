"""Pictures of results: every axis is named, and no word is cut or lies on another."""

from functools import cache

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attsvm import compare, datasets, linf, max_margin
from attsvm.data.path import Path


def path(seeds):
    tokens, _ = datasets.sphere(4, 5, 6, seed=seeds)
    W = (
        np.random.default_rng(0).standard_normal((*np.shape(seeds), 3, 6, 6))
        * np.array([0.0, 1, 100])[:, None, None]
    )
    loss = np.ones(W.shape[:-2])
    stopped = np.full(np.shape(seeds), "steps") if np.ndim(seeds) else "steps"
    return Path(tokens, np.array([0, 10, 1000]), W, loss, -loss, stopped)


@cache
def pictures(seeds):
    run = path(seeds)
    solution = max_margin(run.tokens, run.selected)
    soft = max_margin(run.tokens, run.selected, slack=0.1)
    return [thing.plot() for thing in (run, solution, soft, compare(run, solution))] + [run.plot(solution)]


def words(canvas):
    """The boxes of titles and labels, in pixels, and that of the canvas."""
    FigureCanvasAgg(canvas)  # its measures, without a pixel
    canvas.draw_without_rendering()
    texts = [t for ax in canvas.axes for t in (ax.title, ax.xaxis.label, ax.yaxis.label)]
    texts += [canvas._suptitle] if canvas._suptitle is not None else []
    return [t.get_window_extent() for t in texts if t.get_text()], canvas.bbox


@pytest.mark.parametrize("seeds", [0, range(3)], ids=["one run", "runs"])
def test_every_axis_is_named_and_every_word_has_its_place(seeds):
    for canvas in pictures(seeds):
        assert all(ax.get_xlabel() and ax.get_ylabel() for ax in canvas.axes)
        boxes, page = words(canvas)
        assert all(page.x0 <= b.x0 and b.x1 <= page.x1 and page.y0 <= b.y0 and b.y1 <= page.y1 for b in boxes)
        assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_a_title_that_is_too_long_is_seen():
    run = path(0)
    canvas = run.plot(max_margin(run.tokens, run.selected))
    canvas.axes[2].set_title("the least attention on the selected tokens of all examples")
    boxes, page = words(canvas)
    assert any(box.x1 > page.x1 for box in boxes)


def test_a_picture_of_runs_says_how_many():
    run, solution, *_ = pictures(range(3))
    assert "3 runs" in run.axes[0].get_xlabel() and "run 0 of 3" in solution.get_suptitle()


@pytest.mark.parametrize("seeds", [0, range(3)], ids=["one run", "runs"])
@pytest.mark.parametrize("norm", ["frobenius", "lp:3"])
def test_a_weight_of_zero_has_no_direction_to_draw(seeds, norm):
    run = path(seeds)  # its first record is zero
    solution = max_margin(run.tokens, run.selected, norm)
    for canvas in (run.plot(), run.plot(solution), compare(run, solution).plot()):
        for label, ax in named(canvas).items():
            points = ax.lines[0].get_xydata()
            visible = points[np.isfinite(points).all(-1), 0]
            directed = any(word in label for word in ("cosine", "margin", "divergence", "norm"))
            assert (0 in visible) != directed and 10 in visible, label


def named(canvas):
    return {ax.get_ylabel(): ax for ax in canvas.axes}


def test_a_path_is_drawn_on_logarithmic_axes_beside_its_program_where_there_is_one():
    run = path(0)
    alone, beside = named(run.plot()), named(run.plot(max_margin(run.tokens, run.selected)))
    assert alone["Frobenius norm of W"].get_yscale() == "log"
    assert alone["1 − cosine with the last W"].get_yscale() == "log"
    assert beside["1 − cosine with the Frobenius program"].get_yscale() == "log"
    assert "1 − margin / best Frobenius margin" in beside and len(alone) == 4


def test_a_program_with_many_solutions_is_no_direction_but_a_margin():
    run = path(0)
    axes = named(run.plot(max_margin(run.tokens, run.selected, linf)))
    assert {"1 − cosine with the last W", f"1 − margin / best {linf} margin"} <= set(axes)


def test_what_is_drawn_is_the_angle_to_the_solution():
    run = path(0)
    solution = max_margin(run.tokens, run.selected)
    (curve,) = named(run.plot(solution))["1 − cosine with the Frobenius program"].lines
    W = run.W[1:]
    cosine = (W * solution.W).sum((1, 2)) / np.linalg.norm(W, axis=(1, 2)) / np.linalg.norm(solution.W)
    np.testing.assert_allclose(curve.get_ydata()[1:], 1 - cosine, rtol=1e-9)
    assert np.isnan(curve.get_ydata()[0])  # W = 0 has no direction
