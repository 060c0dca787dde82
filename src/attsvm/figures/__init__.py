"""Figures of the papers and our own, one folder per paper, one file per figure.

A figure is an experiment (seeded arrays at three scales), a drawing of the arrays, and checks of its
numbers against their references, each of which says where it comes from:

    from attsvm import figures
    figure = figures.ALL["two-clouds"]
    figure.picture(figure.compute("quick")).savefig("two-clouds.svg")
"""

from attsvm.figures import (  # noqa: F401 (loading registers)
    benign_overfitting,
    even_pairs,
    fast_rates,
    match_and_copy,
    max_margin_selection,
    mirror_descent,
    next_token,
    one_location,
    ours,
    sinks,
    sparse_signals,
    topics,
    transformers_as_svms,
)
from attsvm.figures.accuracy import Accuracy, axis, counted, digits, exactly, sampled, within
from attsvm.figures.figure import KINDS, STATUSES, Check, Figure, Paper, Provenance, Scale, Status
from attsvm.figures.papers import PAPERS

ALL: dict[str, Figure] = {figure.name: figure for paper in PAPERS for figure in paper.figures}

__all__ = [
    "ALL",
    "KINDS",
    "PAPERS",
    "STATUSES",
    "Accuracy",
    "Check",
    "Figure",
    "Paper",
    "Provenance",
    "Scale",
    "Status",
    "axis",
    "counted",
    "digits",
    "exactly",
    "sampled",
    "within",
]
