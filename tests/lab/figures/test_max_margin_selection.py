"""Figures of "Max-Margin Token Selection": what the published loop, line and table say."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.program.max_margin import max_margin
from attsvm_lab import figures
from attsvm_lab.figures.max_margin_selection import random_data
from attsvm_lab.figures.max_margin_selection.protocol import published_loop
from attsvm_lab.report import Report
from attsvm_lab.reproduce import Result
from tests.lab.figures.arrays import arrays


def test_shuffled_references_fail_in_nine_of_ten_rows():
    names = ("single-input", "several-inputs", "joint")
    found = [Result(n, "quick", {}, figures.ALL[n].rows(arrays(n)), 0.0) for n in names]
    differ, pairs = Report("quick", tuple(found)).shuffled
    assert pairs > 100 and differ >= 0.9 * pairs


def test_without_its_constant_the_published_loop_does_not_freeze():
    tokens = datasets.single_input(0.0)[0]
    ends = [published_loop(tokens, [1.0], [0.0, 1.0], 400, (a, None))[0][-1] for a in (1e-9, 1e-14)]
    assert np.linalg.norm(ends[0]) < 23
    assert np.linalg.norm(ends[1]) > 30


def test_the_score_coordinate_changes_the_cost_of_the_published_line_but_not_its_direction():
    a = arrays("several-inputs")
    exact, seen = a["exact"], a["seen"][:2]
    assert np.cross(np.append(exact, 0), np.append(seen, 0))[2] == pytest.approx(0, abs=1e-12)
    assert (exact**2).sum() > 1.1 * (a["seen"] ** 2).sum()


def test_zeros_behind_the_width_change_no_program():
    wide, v, _ = random_data._problems(2, 3)
    narrow = Tokens(wide.keys[:3, ..., :4], labels=wide.labels[:3])
    best = best_tokens(narrow, v[:3, :4])
    W = max_margin(wide, best_tokens(wide, v)).W[:3]
    np.testing.assert_allclose(W[:, :4], max_margin(narrow, best).W, atol=1e-9)
    assert not W[:, 4:].any()
