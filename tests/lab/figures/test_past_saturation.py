"""Convergence past saturation: the names of the curves stay clear of the curves."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from attsvm_lab import figures
from attsvm_lab.figures.ours import past_saturation

FIGURE = figures.ALL["past-saturation"]


def arrays(last):
    """What the experiment gives, in formulas: both curves part at ‖W‖ ≈ 120."""
    steps = np.unique(np.geomspace(10, last, 60).astype(int))
    ours = 0.5 / (1 + (steps / 70) ** 2)
    usual = np.where(steps < 1100, ours, 3e-3 * np.maximum(steps / 4000, 1) ** 1.3)
    norms = {"norm_ours": steps / 10, "norm_usual": np.minimum(steps / 10, 120 + steps / 2000)}
    spread = np.array([[0.8], [1.0], [1.25]])
    return {"steps": steps, "ours": ours * spread, "usual": usual * spread} | {
        name: norm * np.ones((3, 1)) for name, norm in norms.items()
    }


def covered(canvas):
    """The names that lie on a curve."""
    FigureCanvasAgg(canvas).draw()
    for ax in canvas.axes:
        curves = [line.get_transform().transform(dense(line.get_xydata())) for line in ax.lines]
        for text in ax.texts:
            box = text.get_window_extent()
            if any(box.count_contains(curve) for curve in curves):
                yield text.get_text()


def dense(points):
    """More points along the same curve, straight on logarithmic axes."""
    at, fine = np.arange(len(points)), np.linspace(0, len(points) - 1, 2000)
    return np.exp(np.stack([np.interp(fine, at, np.log(column)) for column in points.T], 1))


@pytest.mark.parametrize("last", [10_000, 100_000], ids=["quick", "default"])
def test_no_name_lies_on_a_curve(last):
    assert list(covered(FIGURE.picture(arrays(last)))) == []


def test_a_name_on_a_curve_is_seen(monkeypatch):
    monkeypatch.setitem(past_saturation.PLACES, ("ours", True), (0.5, (20, 0)))
    assert list(covered(FIGURE.picture(arrays(10_000)))) == ["relative to the winner"]
