"""Figures of "Max-Margin Token Selection": their numbers agree with the published ones, and can disagree."""

from functools import cache

import numpy as np
import pytest

from attsvm import datasets
from attsvm.figures.max_margin_selection import joint, losses, random_data, several_inputs, single_input
from attsvm.figures.max_margin_selection.protocol import published_loop
from attsvm.program.max_margin import max_margin
from attsvm.report import Report
from attsvm.reproduce import Result
from attsvm.selection import best_tokens
from attsvm.tokens import Tokens

TABLE = {
    f"{kind}_{n}": np.round(np.array(shares) * 200)
    for kind, rows in random_data.PUBLISHED.items()
    for n, shares in rows.items()
}
MODULES = {m.experiment.name: m for m in (single_input, several_inputs, losses, joint, random_data)}


@cache
def arrays(name):
    """Quick arrays; one loss is enough here, and the counts of random data are the published table."""
    if name == "losses":
        return losses.experiment(steps=1_000, losses=("logistic",))
    if name == "random-data":
        return TABLE | {"runs": np.array(200), "inputs": np.array([1, 2])}
    return MODULES[name].experiment.compute("quick")


def broken(name):
    """The same arrays with one thing wrong: selection, optimizer, loss, program, widths."""
    a = arrays(name)
    return (
        a
        | {
            "single-input": lambda: {"cosine_0": a["cosine_1"], "cosine_1": a["cosine_0"]},
            "several-inputs": lambda: {"mass_plain": a["mass_normalised"]},
            "losses": lambda: {"prompts_linear": a["prompts_logistic"]},
            "joint": lambda: {"relaxed_loose": a["mm_loose"]},
            "random-data": lambda: {"global_2": a["global_2"][::-1]},
        }[name]()
    )


def disagreements(name, found):
    return [
        check.what
        for check in MODULES[name].experiment.checks(found)
        if check.agreement == "differs, not explained"
    ]


@pytest.mark.parametrize("name", MODULES)
def test_no_number_disagrees_without_a_reason(name):
    assert not disagreements(name, arrays(name))
    assert all(check.accuracy.words for check in MODULES[name].experiment.checks(arrays(name)))


@pytest.mark.parametrize("name", MODULES)
def test_a_wrong_experiment_disagrees(name):
    assert disagreements(name, broken(name))


def test_shuffled_references_fail_in_nine_of_ten_rows():
    names = ("single-input", "several-inputs", "joint")
    found = [Result(n, "quick", {}, tuple(MODULES[n].experiment.checks(arrays(n))), 0.0) for n in names]
    differ, pairs = Report("quick", tuple(found)).shuffled
    assert pairs > 100 and differ >= 0.9 * pairs


@pytest.mark.parametrize("name", MODULES)
def test_every_panel_names_its_axes(name):
    axes = MODULES[name].experiment.draw(arrays(name)).axes
    assert all(ax.get_xlabel() and ax.get_title() for ax in axes)
    assert axes[0].get_ylabel()


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
