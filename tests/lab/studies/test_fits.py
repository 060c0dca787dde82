"""What the studies beside lab/studies/*.toml make of their runs: known laws are found, false ones lose."""

from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import attsvm as att
from attsvm_lab import datasets
from attsvm_lab.datasets.sparse_signals import cone_distance, face_shares, separable_share
from attsvm_lab.sweeps.plugins import plugin
from attsvm_lab.sweeps.study import read_study

STUDIES = Path(__file__).parents[3] / "lab" / "studies"
SIZES = [2, 4, 8, 16]


def of(name):
    return plugin(name, str(STUDIES))


@pytest.fixture(scope="module")
def planted():
    """Shares of 4,000 runs that depend on d / (n² T^0.8)."""
    n, T, d = (
        x.ravel() for x in np.meshgrid([2, 4, 8, 16], [2, 4, 8, 16], 2 ** np.arange(2, 9), indexing="ij")
    )
    share = expit(1.5 * (np.log(d) - 2 * np.log(n) - 0.8 * np.log(T)))
    return n, T, d, np.random.default_rng(0).binomial(4000, share) / 4000


def test_the_planted_exponents_are_found_and_predict_larger_sizes(planted):
    n, T, d, share = planted
    small = (n < 16) & (T < 16)
    found = of("collapse:fit")(variables()["d / n^a T^b"], *(x[small] for x in planted))
    assert found.θ == pytest.approx([2, 0.8], abs=0.05)
    assert found.error(n[~small], T[~small], d[~small], share[~small]) < 0.02


def variables():
    of("collapse:fit")  # puts the folder on the path
    import collapse

    return {one.name: one for one in collapse.VARIABLES}


def test_every_rival_variable_leaves_more(planted):
    left = {name: of("collapse:fit")(one, *planted).error(*planted) for name, one in variables().items()}
    best = left.pop("d / n^a T^b")
    assert best < 0.01 and min(left.values()) > 3 * best


def test_a_law_of_each_input_is_told_from_one_of_the_whole_run(planted):
    n, T, d, _ = planted
    share = expit(1 + np.log(d) - np.log(n - 1) - 1.5 * np.log(T - 1)) ** n
    first, *_ = variables().values()
    found = of("collapse:fit")(first, n, T, d, share)
    assert found.θ == pytest.approx([1, 1.5], abs=0.01) and found.error(n, T, d, share) < 1e-3
    assert of("collapse:fit")(variables()["d / n^a T^b"], n, T, d, share).error(n, T, d, share) > 0.02


def test_shares_without_a_variable_do_not_collapse(planted):
    *sizes, share = planted
    cells = *sizes, np.random.default_rng(1).permutation(share)
    assert min(of("collapse:fit")(one, *cells).error(*cells) for one in variables().values()) > 0.2


@pytest.mark.parametrize(("n", "d"), [(4, 2), (8, 3), (8, 6), (8, 9), (60, 10), (200, 2)])
def test_with_two_tokens_the_count_is_that_of_cover(n, d):
    cover = 2.0 ** (1 - n) * sum(comb(n - 1, k) for k in range(d))  # 2.5e-58 for (200, 2)
    assert separable_share(n, 2, d) == pytest.approx(cover, rel=1e-10, abs=0)


def test_a_few_in_many_are_separable_as_seldom_as_two_sums_of_volumes_say():
    shares = np.array([separable_share(30, 4, d) for d in range(1, 91)])  # from 1e-27 to 1
    assert (np.diff(shares[:60]) > 0).all() and 0 < shares[0] < 1e-15 and shares[-1] == 1
    assert np.diff(np.log(shares[:30])).min() > 0.1


def test_the_volumes_of_a_cone_are_chances_and_agree_with_draws():
    rng = np.random.default_rng(0)
    for T in (3, 7, 32):
        volumes = face_shares(T)
        g, rest = rng.standard_normal((20_000, 1)), -np.sort(-rng.standard_normal((20_000, T - 1)), axis=1)
        means = np.hstack([g, (g + np.cumsum(rest, axis=1)) / np.arange(2, T + 1)])
        drawn = np.bincount((rest > means[:, :-1]).sum(1), minlength=T) / len(g)
        assert volumes.sum() == pytest.approx(1, abs=1e-10) and volumes[0] == pytest.approx(1 / T)
        np.testing.assert_allclose(drawn, volumes, atol=5 * 0.5 / np.sqrt(len(g)))
        assert 1 / datasets.capacity(T) == pytest.approx(drawn @ np.arange(T), rel=0.03)


@pytest.mark.parametrize("T", [2, 5, 16])
def test_the_capacity_without_a_signal_is_the_mean_distance_to_the_cone(T):
    distance = cone_distance(T, 0.0)  # over fixed points, to about a thousandth
    assert distance == pytest.approx(1 / datasets.capacity(T), rel=1e-2)
    assert distance != pytest.approx(1 / datasets.capacity(T + 1), rel=1e-2)


def test_the_capacity_does_not_know_the_sign_of_the_signal():
    assert datasets.capacity(4, -1.5) == datasets.capacity(4, 1.5) > 1.2 * datasets.capacity(4)
    with pytest.raises(ValueError, match="strength is nan"):
        datasets.capacity(4, float("nan"))


def test_volumes_of_a_cone_of_many_tokens_neither_overflow_nor_lose_their_sum():
    volumes = face_shares(2_000)  # the quadrature of 200 points leaves 1e-9 here
    assert volumes.sum() == pytest.approx(1, abs=1e-7) and volumes[0] * 2_000 == pytest.approx(1, abs=1e-4)


def test_half_of_the_selections_are_separable_at_the_capacity():
    n, T = 40, 6
    d = n / datasets.capacity(T)
    below, above = (separable_share(n, T, round(part * d)) for part in (0.8, 1.2))
    assert below < 0.05 < 0.95 < above


@pytest.mark.parametrize(
    ("sizes", "words"), [((0, 2, 1), "n ≥ 1"), ((1, 1, 1), "T ≥ 2"), ((1, 2, 0), "d ≥ 1")]
)
def test_counts_of_nothing_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        separable_share(*sizes)


def test_medians_of_arrivals_count_those_that_never_came():
    median = of("factor_times:median")
    assert median(np.array([10.0, 100.0, np.inf, np.inf, np.inf])) == np.inf
    assert 10 < median(np.array([10.0, 100.0, 100.0, np.inf])) <= 100


@pytest.mark.parametrize(
    ("law", "times"),
    [("t = a + b log(1/α)", lambda α: 5 - 3 * np.log(α)), ("t = a α^-b", lambda α: 7 * α**-0.4)],
)
def test_the_law_of_small_starts_is_told_from_the_others(law, times):
    α = np.array([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1])
    t = times(α) + 100 * (α > 0.2)  # from some scale on, larger starts are slow too
    found = of("factor_times:small_starts")(α, t)
    wrong = {name: abs(np.log(one["smallest"])) for name, one in found.items()}
    assert min(wrong, key=wrong.get) == law and wrong[law] < 0.01


def test_a_shuffled_order_predicts_nothing_and_a_selection_is_one_number():
    tokens, v = att.datasets.prompt_sphere(3, 5, 4, seed=0)
    found = att.selections(tokens, v)
    codes = of("basins:code")(np.stack([one.selected for one in found]))
    assert len(set(codes)) == len(found) and codes.max() < 5**3
    known = of("basins:predictors")(tokens, v, found, 0)
    assert sorted(known["shuffled"]) == sorted(known["margin"]) and known["angle"].sum() <= 1
    ends = np.repeat(codes, np.argsort(np.argsort(known["margin"])) + 1)
    told = of("basins:judged")(tokens, v, ends, 0)
    assert told["rank"][0] == pytest.approx(1) and told["rank"][3] < 0.9


@pytest.mark.parametrize("name", ["collapse", "basins", "factor_times"])
def test_a_study_has_a_hundred_thousand_runs_and_one_of_its_cells_for_every_reader(name):
    paper, one = read_study(STUDIES / f"{name}.toml", "paper"), read_study(STUDIES / f"{name}.toml", "one")
    assert len(paper.cells) * len(paper.seeds.begin) >= 100_000
    (cell,) = one.cells
    assert (cell.data, cell.training, cell.init) in {(c.data, c.training, c.init) for c in paper.cells}
