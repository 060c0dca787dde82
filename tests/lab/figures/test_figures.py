"""Every figure: its numbers agree, falsified ones do not, and its panels have names."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm_lab import figures, programs
from attsvm_lab.figures.mirror_descent import rates
from tests.lab.figures.arrays import IDEAL, agreements, arrays, computed

AGREES, RECIPE, UNEXPLAINED, SHORT, POWERLESS = figures.STATUSES

PARTLY = {
    *("single-input", "several-inputs", "losses", "joint", "local-convergence"),
    *("relu-head", "mirror-own-program", "mirror-joint", "sentiment", "vision", "two-steps-and-after"),
    "topic-changes",
}
"""Where the published recipe explains some numbers, or some cannot be compared."""
OPEN = {
    "rank": 6,
    "vision-sparsity": 1,
    "even-pairs": 1,
    "benign-level": 1,
    "one-location": 3,
    "head-geometry": 5,
}
"""How many numbers a run as short as here does not reach, or nothing explains."""


@pytest.mark.parametrize("name", [name for name in figures.ALL if name not in OPEN])
def test_every_number_agrees_or_is_explained(name):
    assert set(agreements(name)) <= (
        {AGREES, RECIPE, SHORT, POWERLESS} if name in PARTLY else {AGREES, POWERLESS}
    )
    assert all(check.accuracy.words for check in figures.ALL[name].checks(arrays(name)))


@pytest.mark.parametrize("name", OPEN)
def test_no_more_numbers_are_open_than_are_known_to_be(name):
    assert agreements(name).count(UNEXPLAINED) <= OPEN[name]


def test_every_program_of_a_figure_is_certified():
    found = {name: computed(name)[1] for name in figures.ALL if name not in IDEAL}
    assert all(all(every) for every in found.values())
    assert sum(map(len, found.values())) > 20


@pytest.mark.parametrize("name", [name for name, figure in figures.ALL.items() if figure.draw is not None])
def test_every_panel_with_a_scale_has_a_name(name):
    axes = figures.ALL[name].picture(arrays(name)).axes
    assert all(ax.get_title() or ax.get_xlabel() or ax.get_ylabel() for ax in axes if len(ax.get_xticks()))
    assert any(ax.get_xlabel() for ax in axes) and any(ax.get_ylabel() for ax in axes)


WRONG = [
    ("single-input", "tokens exchanged", lambda a: {"cosine_0": a["cosine_1"], "cosine_1": a["cosine_0"]}),
    ("several-inputs", "one rule for both", lambda a: {"mass_plain": a["mass_normalised"]}),
    ("losses", "one loss for both", lambda a: {"prompts_linear": a["prompts_logistic"]}),
    ("joint", "a program that is not relaxed", lambda a: {"relaxed_loose": a["mm_loose"]}),
    ("random-data", "widths reversed", lambda a: {"global_2": a["global_2"][::-1]}),
    ("two-fans", "nuclear rays for Frobenius ones", lambda a: {"ray_full": a["ray_factored"]}),
    ("local-convergence", "W never turns", lambda a: {"full_frobenius": 0 * a["full_frobenius"]}),
    ("rank", "infeasible draws left out", lambda a: {"frobenius_counted": counted_without_none(a)}),
    ("rank", "nuclear ranks without the errors of SCS", lambda a: {"nuclear_counted": a["nuclear"]}),
    ("where-it-ends", "fewer at the best tokens", lambda a: {"global_5_40": np.arange(100) < 60}),
    ("relu-head", "half a cosine", lambda a: {"end_textbook_both_4": np.full(10, 0.5)}),
    ("quadratic-head", "one token kept", lambda a: {"trained": np.eye(4)[a["trained"].argmax(-1)]}),
    ("hierarchy", "all queries for those that are read", lambda a: {"ratio_two": a["all_two"]}),
    ("hierarchy", "read queries for all", lambda a: {"all_two": a["ratio_two"]}),
    ("hierarchy", "layers that end equally long", lambda a: {"least_two": a["least_two"] * [1, 2]}),
    ("mirror-own-program", "exchanged", lambda a: {"own_3_2": a["own_3_3"], "own_3_3": a["own_3_2"]}),
    ("mirror-trajectories", "rays exchanged", lambda a: {"ray_2": a["ray_1.75"], "ray_1.75": a["ray_2"]}),
    ("mirror-trajectories", "paths exchanged", lambda a: {"path_2": a["path_1.75"]}),
    ("two-clouds", "the path of K and Q for that of W", lambda a: {"path_full": a["path_factored"]}),
    ("rank", "Frobenius ranks of other draws", lambda a: {"frobenius_counted_T": other_draws(a)}),
    ("mirror-rates", "a plateau", lambda a: {f"exponent_{p:g}": np.zeros(2) for p in rates.RATES}),
    ("mirror-joint", "other tokens", lambda a: {"selected_2": 1 - a["selected_2"]}),
    ("two-stage-training", "like log t", lambda a: {"norm_kq_orthonormal": np.log1p(a["steps_kq"])[None]}),
    ("extended-order", "reversed", lambda a: {"share_orthonormal": 1 - a["share_orthonormal"]}),
    ("soft-composition", "odds of three", lambda a: {"finite_odds": np.array(np.log(3))}),
    ("text-collapse", "a chain without feedback", lambda a: {"exponent_0.7": np.array(1.0)}),
    ("three-methods", "plain steps for normalised ones", lambda a: renamed(a, "normalised GD", "GD")),
    ("gradient-flow", "the diagonal for its factors", lambda a: {"diagonal_factors": a["diagonal_itself"]}),
    ("gradient-flow", "W itself for K and Q", lambda a: {"factors": a["whole"]}),
    ("gradient-flow", "K and Q for W itself", lambda a: {"whole": a["factors"] + 0.01}),
    ("gradient-flow", "a turned start for an aligned one", lambda a: {"aligned_cosine": a["turned_cosine"]}),
    ("gradient-flow", "features that are left", lambda a: {"aligned_off": a["turned_off"]}),
    ("gradient-flow", "a turned start that falls short", lambda a: {"turned_margin": a["whole"]}),
    ("gradient-flow", "a drift like the square of lr", lambda a: {"drift": a["drift"] ** 2}),
    ("even-pairs", "a head that grows linearly", lambda a: {"exponents": 0 * a["exponents"] + 1}),
    ("hand-built-prompt", "in another order", lambda a: {"accuracy": a["accuracy"][:, ::-1]}),
    ("benign-phases", "early for late", lambda a: {"outcome benign 2 0.03": a["early benign 2 0.03"]}),
    ("match-and-copy", "margins like log t", lambda a: {"margin_plain": 2 * a["margin_plain"]}),
    ("capacity", "five percent off", lambda a: {"place": 1.05 * a["place"]}),
    ("topic-changes", "weights for programs", lambda a: {"lengths_program": a["lengths_trained"]}),
    ("sinks", "ReLU for softmax", lambda a: renamed(a, "softmax", "relu")),
    ("waiting", "a power that is half of it", lambda a: {"2, 2: ratio": a["2, 2: ratio"] ** 2 * 1.3}),
    ("waiting", "a power of the start for p = 4", lambda a: {"4, 4: measured": waits_longer(a)}),
    ("past-saturation", "an error that stalls", lambda a: {"ours": a["usual"]}),
    ("optimizer-norms", "in another order", lambda a: {"ratio": np.roll(a["ratio"], 1, axis=1)}),
    ("joint-family", "p^mm for all", lambda a: {"own_program": a["mm"], "own_ratio": 0 * a["own_ratio"]}),
    ("joint-family", "p^relax for all", lambda a: {"own_program": a["relaxed"]}),
    ("fractions", "widths reversed", lambda a: {"global": a["global"][..., ::-1]}),
    ("fractions", "growing with the steps", lambda a: {"longer": np.array([[160, 190], [190, 195]])}),
    ("real-tokens", "runs that do not arrive", lambda a: {"error": a["other"]}),
    ("real-tokens", "runs at the other program", lambda a: {"other": a["error"]}),
]
"""Figures, and what was falsified in their arrays."""


def other_draws(found):
    """Ranks as of draws with one more infeasible one at every width."""
    counted = found["frobenius_counted_T"].copy()
    counted[..., counted.shape[-1] // 2 :] = 1
    return counted


def waits_longer(found):
    """Steps of p = 4 that grow by half for every factor of ten of the start."""
    return found["4, 4: measured"] * found["4, 4: starts"][:, None] ** -np.log10(1.5)


def renamed(found, name, other):
    """The arrays of one method under the name of another."""
    ends = f"_{name}", f"_{other}"
    return {key: found[key.replace(*ends)] for key in found if key.endswith(ends[0])}


def counted_without_none(found):
    """Ranks as published, but those of draws without a solution, which count as one there."""
    return np.where(found["frobenius"] > 0, found["frobenius_counted"], 4)


@pytest.mark.parametrize(
    ("name", "what", "change"), WRONG, ids=[f"{name}: {what}" for name, what, _ in WRONG]
)
def test_what_is_falsified_disagrees(name, what, change):
    right, wrong = agreements(name), agreements(name, **change(arrays(name)))
    assert wrong.count(UNEXPLAINED) > right.count(UNEXPLAINED)


@pytest.mark.parametrize(("along", "open_numbers"), [("program", 0), ("mm", 2)])
def test_joint_paths_are_judged_by_the_programs_of_their_ratios(monkeypatch, along, open_numbers):
    """Paths take long, and scale quick has none: here they lie on their rays, or all on one ray."""
    figure, size = figures.ALL["joint-family"], {"problems": 3, "steps": 2_000}
    rays = figure(**size, radii=())[along]

    def path(tokens, head, *, radii, **rest):
        lengths = np.array(radii)[:, None] / np.linalg.norm(rays, axis=-1)[:, None, None]
        return SimpleNamespace(W=(lengths * rays[:, None])[..., None])

    monkeypatch.setattr(programs, "joint_path", path)
    found = figure(**size, radii=(30.0, 300.0))
    statuses = [check.agreement for check in figure.checks(found)]
    assert len(statuses) == 5 and statuses.count(UNEXPLAINED) == open_numbers
    assert len(figure.picture(found).axes) == 3
