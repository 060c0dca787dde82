"""Figures of the papers and our own, one folder per paper, one file per figure.

A figure is an experiment (seeded arrays at three scales), a drawing of the arrays, and checks of its
numbers against references, each with its source:

    from attsvm_lab import figures
    figure = figures.ALL["two-clouds"]
    figure.picture(figure.compute("quick")).savefig("two-clouds.svg")

figure.py has the types, accuracy.py the tolerance between two numbers, papers.py the list of papers,
recorded.py the results that a larger machine computed, and textbook.py descent as published code runs it.
"""

from importlib import import_module

from attsvm._support.optional_dependencies import missing

try:
    import matplotlib
except ImportError as error:
    raise missing("figures need matplotlib", "lab") from error

from attsvm_lab.figures.accuracy import (
    Accuracy,
    axis,
    counted,
    digits,
    exactly,
    log_axis,
    restarted,
    sampled,
    within,
)
from attsvm_lab.figures.figure import KINDS, STATUSES, Check, Figure, Paper, Provenance, Scale, Status
from attsvm_lab.figures.papers import PAPERS

FILES = {
    "max_margin_selection": "single_input several_inputs losses joint random_data vision_sparsity",
    "transformers_as_svms": "two_clouds two_fans local_convergence rank where_it_ends relu_head "
    "quadratic_head hierarchy",
    "mirror_descent": "own_program trajectories rates joint sentiment vision",
    "next_token": "two_stages extended_order soft_composition collapse",
    "fast_rates": "three_methods",
    "gradient_flow": "three_regimes",
    "even_pairs": "two_phases",
    "benign_overfitting": "hand_built level phases regimes two_steps",
    "match_and_copy": "past_the_last_digit",
    "sparse_signals": "capacity two_steps",
    "one_location": "where_descent_ends",
    "topics": "changes",
    "sinks": "trigger",
    "ours": "past_saturation optimizer_norms joint_family fractions real_tokens head_geometry head_ranks "
    "language collapse basins factor_times waiting",
}
"""The figures of each folder, in the order of the page: loading one registers it with its paper."""

for _folder, _names in FILES.items():
    for _name in _names.split():
        import_module(f"attsvm_lab.figures.{_folder}.{_name}")

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
    "log_axis",
    "restarted",
    "sampled",
    "within",
]
