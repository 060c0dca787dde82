"""A verdict says what was measured and never claims more."""

from dataclasses import replace

import numpy as np
import pytest

from attsvm import datasets
from attsvm.comparison.theory import limit_norm
from attsvm.comparison.verdict import (
    at_least,
    at_most,
    classify,
    compare,
    cosine,
    divergence,
    judge,
    margin_ratio,
    reported,
)
from attsvm.data.path import Path
from attsvm.data.selection import TiedScores, best_tokens
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Schatten, frobenius, linf, nuclear, spectral
from attsvm.program.max_margin import max_margin
from attsvm.training.optimizers import gd, mirror, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train
from attsvm.training.weights import FullWeight

pytestmark = pytest.mark.quick


def ray(tokens, W, radii=(1.0, 10.0, 100.0, 1000.0)):
    """A path along one direction."""
    weights = np.asarray(radii)[:, None, None] * W
    zeros = np.zeros(len(radii))
    return Path(tokens, np.asarray(radii), weights, zeros, zeros, "steps")


@pytest.fixture(scope="module")
def problem():
    tokens, v = datasets.sphere(4, 5, 6, seed=0)
    return tokens, v, max_margin(tokens, best_tokens(tokens, v))


def test_all_evidence_met_holds():
    assert judge("c", at_least("a", 2, 1), at_most("b", 0, 1), reported("t", 5)).holds


def test_evidence_missed_fails_unless_it_was_on_its_way():
    assert judge("c", at_least("a", 0, 1)).status == "fails"
    assert judge("c", at_least("a", 0, 1), on_its_way=True).status == "inconclusive"
    assert judge("c", at_least("a", float("nan"), 1)).status == "fails"


def test_a_false_hypothesis_makes_a_claim_not_applicable():
    verdict = judge("c", at_least("a", 2, 1), given={"x": True, "the moon is cheese": False})
    assert verdict.status == "not applicable"
    assert "the moon is cheese" in str(verdict)


@pytest.mark.filterwarnings("error")
def test_the_size_of_a_weight_changes_nothing(problem):
    tokens, _, solution = problem
    small, large = (compare(ray(tokens, size * solution.W), solution) for size in (1.0, 1e290))
    assert large.holds and large["1 − cosine"] == pytest.approx(small["1 − cosine"], abs=1e-12)
    assert not compare(ray(tokens, -1e290 * solution.W), solution).holds


@pytest.mark.filterwarnings("error")
def test_a_selection_of_all_tokens_is_not_compared(problem):
    tokens, _, solution = problem
    everything = max_margin(tokens, tokens.mask)
    verdict = compare(ray(tokens, np.zeros_like(solution.W)), everything)
    assert verdict.status == "not applicable" and "tokens to win over" in verdict.reason


def test_the_solution_itself_has_margin_ratio_one(problem):
    tokens, v, solution = problem
    verdict = compare(ray(tokens, solution.W), solution, v)
    assert verdict.holds
    assert verdict["margin ratio"] == pytest.approx(1, abs=1e-9)
    assert verdict["share of best tokens"] == 1


def test_another_direction_fails(problem):
    tokens, _, solution = problem
    tilted = solution.W + 0.02 * solution.W.max() * np.random.default_rng(0).standard_normal((6, 6))
    verdict = compare(ray(tokens, tilted), solution)
    assert verdict.status == "fails"


def test_a_path_to_other_tokens_is_not_comparable(problem):
    tokens, v, solution = problem
    worst = max_margin(tokens, best_tokens(tokens, -v))
    assert compare(ray(tokens, worst.W), solution).status == "not applicable"


def test_a_path_still_improving_is_inconclusive(problem):
    tokens, _, solution = problem
    noise = np.random.default_rng(0).standard_normal((6, 6)) * solution.W.max() * 0.2
    radii = np.array([1.0, 2.0, 4.0, 8.0])
    W = radii[:, None, None] * solution.W + noise
    path = Path(tokens, radii, W, radii, radii, "steps")
    assert compare(path, solution).status == "inconclusive"


def test_no_weight_beats_the_best_margin(problem):
    tokens, _, solution = problem
    W = np.random.default_rng(1).standard_normal((50, 6, 6)) + 3 * solution.W
    path = Path(tokens, np.arange(50.0), W, np.zeros(50), np.zeros(50), "steps")
    assert margin_ratio(path, solution).max() < 1


def test_the_frobenius_solution_falls_short_in_the_nuclear_norm(problem):
    tokens, _, solution = problem
    other = max_margin(tokens, solution.selected, nuclear)
    assert margin_ratio(ray(tokens, solution.W), other)[-1] < 0.995
    assert margin_ratio(ray(tokens, other.W), other)[-1] == pytest.approx(1, abs=1e-7)


def test_the_divergence_is_one_minus_cosine_for_p_two_and_zero_at_the_target():
    A, B = np.random.default_rng(0).standard_normal((2, 3, 4))
    cosine = (A * B).sum() / np.sqrt((A * A).sum() * (B * B).sum())
    assert divergence(A[None], B, frobenius)[0] == pytest.approx(1 - cosine)
    assert divergence(5 * A[None], A, Entrywise(1.5))[0] == pytest.approx(0, abs=1e-12)
    assert divergence(B[None], A, Entrywise(3))[0] > 0.1
    assert divergence(5 * A[None], A, Schatten(3))[0] == pytest.approx(0, abs=1e-12)
    assert divergence(B[None], A, Schatten(3))[0] > 0.1


def test_runs_are_classified_by_where_they_end():
    tokens, v = datasets.single_input(0.0)
    global_, local, neither = (np.array(p)[:, None] for p in ([-0.1, 1.0], [1.0, 0.0], [-1.0, -1.0]))
    assert [classify(ray(tokens, W), v) for W in (global_, local, neither)] == ["global", "local", "neither"]


def test_a_run_that_never_moved_is_not_called_local():
    tokens, v = datasets.single_input(0.0)
    for W in (np.zeros((2, 1)), np.array([[1.0], [0.0]])):
        still = ray(tokens, W, radii=(1.0, 1.0))
        assert classify(still, v) == "unmoved"
    assert classify(ray(tokens, W), v) == "local"


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-300])
def test_where_a_run_ended_does_not_depend_on_how_far_it_came(size):
    tokens, v = datasets.single_input(0.0)
    ways = (np.array(p)[:, None] for p in ([-0.1, 1.0], [1.0, 0.0], [-1.0, -1.0]))
    assert [classify(ray(tokens, size * W), v) for W in ways] == ["global", "local", "neither"]


def test_tokens_that_tie_with_different_scores_are_no_local_optimum():
    tokens = Tokens([[[1.0, 0.0], [0.0, 1.0]]])
    along = ray(tokens, np.array([[1.0], [1.0]]))
    assert along.selected.all()
    assert classify(along, [1.0, 0.0]) == "neither"
    with pytest.warns(TiedScores):
        assert classify(along, [1.0, 1.0]) == "global"  # both are best


@pytest.mark.parametrize("moving", [True, False])
def test_a_zero_gradient_leaves_a_run_unmoved(moving):
    tokens, v = datasets.sphere(3, 4, 5, seed=range(2))
    heads = v * np.array([[1.0], [float(moving)]])
    run = train(tokens, Linear(heads), optimizer=gd(0.5), steps=200, record=2)
    assert (classify(run, v)[1] == "unmoved") != moving
    assert classify(run, v)[0] != "unmoved"


def test_one_radius_is_no_run_that_never_moved():
    tokens, v = datasets.single_input(0.0)
    alone = replace(ray(tokens, np.array([[1.0], [0.0]]), radii=(1.0,)), kind="radius")
    assert classify(alone, v) == "local"


def test_verdicts_print_and_plot(problem):
    tokens, _, solution = problem
    verdict = compare(ray(tokens, solution.W), solution)
    assert "margin ratio: 1   (wanted ≥ 0.99)" in str(verdict)
    assert len(verdict.plot().axes) >= 2


def test_what_is_no_path_or_no_solution_of_it_is_refused_in_words(problem):
    tokens, _, solution = problem
    path = ray(tokens, solution.W)
    for pair in ((solution, path), (path.W, solution), (path, None)):
        with pytest.raises(TypeError, match="Pass a path"):
            compare(*pair)
    wide, short = (max_margin(datasets.sphere(*size)[0], [0, 0, 0, 0]) for size in ((4, 5, 7), (4, 3, 6)))
    with pytest.raises(ValueError, match=r"W \(6, 6\) and the solution \(7, 7\)"):
        margin_ratio(path, wide)
    with pytest.raises(ValueError, match="soft margin, and its W not the best margin"):
        margin_ratio(path, max_margin(tokens, solution.selected, slack=1.0))
    with pytest.raises(ValueError, match=r"\(4, 5\), the solution's \(4, 3\)"):
        compare(path, short)
    with pytest.raises(ValueError, match=r"shapes \(4, 6, 6\) and \(3, 3\)"):
        cosine(path.W, np.ones((3, 3)))


def test_a_claim_that_could_not_fail_is_refused():
    for evidence in ((), (reported("number", 1.0),)):
        with pytest.raises(ValueError, match="it could not fail"):
            judge("nothing", *evidence)
    assert judge("nothing", given={"something": False}).status == "not applicable"
    assert judge("something", reported("number", 1.0), at_least("other", 1, 0)).holds


# ---------------------------------------------------------------------- what cannot hold

SIZES = [(1, 2, 1, 1.0), (2, 3, 2, 1e-6), (4, 5, 6, 1.0), (3, 6, 4, 1e9), (9, 2, 3, 1.0)]


def separable_problem(n, T, d, scale):
    """Tokens and a selection that some weight makes: the largest logits of a random one."""
    rng = np.random.default_rng(n + T + d)
    tokens = Tokens(scale * rng.standard_normal((n, T, d)), rng.standard_normal((n, d)))
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, rng.standard_normal((d, d)), tokens.queries)
    return tokens, logits.argmax(-1)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_only_a_run_that_moved_along_a_certified_hard_margin_of_its_tokens_holds(size):
    tokens, selected = separable_problem(*size)
    solution = max_margin(tokens, selected)
    assert compare(ray(tokens, solution.W), solution).holds
    copied = Tokens(tokens.keys.copy(), tokens.queries.copy())
    assert compare(ray(copied, solution.W), solution).holds  # equal tokens are the same
    for radii in ((1.0, 1.0), (1.0, 1.0 + 1e-9), (5.0, 2.0, 5.0)):
        still = compare(ray(tokens, solution.W, radii), solution)
        assert still.status == "not applicable" and "moved" in still.reason
    soft = max_margin(tokens, selected, slack=1e6 * np.square(solution.margin))
    verdict = compare(ray(tokens, soft.W), soft)
    assert verdict.status == "not applicable" and "hard margin" in verdict.reason


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_solution_of_other_tokens_is_refused(size):
    tokens, selected = separable_problem(*size)
    path = ray(tokens, max_margin(tokens, selected).W)
    keys, queries = np.array(tokens.keys), np.array(tokens.queries)
    keys[-1, -1, -1] *= 1 + 1e-12
    queries[0, 0] *= -1
    for other in (Tokens(keys, tokens.queries), Tokens(tokens.keys, queries)):
        for ask in (compare, margin_ratio, lambda p, s: classify(p, np.ones(size[2]), s)):
            with pytest.raises(ValueError, match="of other tokens than the path"):
                ask(path, max_margin(other, other.mask))


def test_runs_of_a_solution_are_compared_with_as_many_of_a_path(problem):
    tokens, v, solution = problem
    both = max_margin(tokens, np.stack([solution.selected] * 2))
    path = ray(tokens, solution.W)
    for ask in (compare, margin_ratio, lambda p, s: classify(p, v, s)):
        with pytest.raises(ValueError, match=r"2 runs and the path none.*solution\.run"):
            ask(path, both)
    runs = path.changed(W=np.stack([path.W] * 2), loss=np.zeros((2, 4)), log_excess=np.zeros((2, 4)))
    assert compare(runs, both).holds and compare(runs, solution).holds and compare(path, both.run(1)).holds
    np.testing.assert_allclose(margin_ratio(runs, solution), 1.0)


def test_a_program_that_requires_no_margin_has_no_direction(problem):
    tokens, _, solution = problem
    path = ray(tokens, solution.W)
    order = max_margin(tokens, solution.selected, required=0.0)  # W = 0: no run fails to tend to it
    verdict = compare(path, order)
    assert verdict.status == "not applicable" and "requires a margin" in verdict.reason
    some = max_margin(tokens, solution.selected, required=np.arange(tokens.n) == 0)
    assert compare(ray(tokens, some.W + 1e-3 * solution.W), some)["margin ratio"] > 0.9


@pytest.mark.parametrize("tolerance", [2, 1, -1, -1e-9, np.nan, np.inf, "0.01", None, True])
def test_a_tolerance_under_which_everything_holds_is_refused(problem, tolerance):
    tokens, _, solution = problem
    with pytest.raises(ValueError, match="tolerance is"):
        compare(ray(tokens, -solution.W), solution, tolerance=tolerance)


def test_a_run_that_prefers_one_of_tied_tokens_does_not_reach_their_program():
    tokens = Tokens(np.array([[[1.0, 0.2], [1.0, -0.2], [-1.0, 0.0]]]))
    tied = max_margin(tokens, [[True, True, False]])
    prefers_one = np.array([[1.0], [0.1]])
    apart, together = compare(ray(tokens, prefers_one), tied), compare(ray(tokens, tied.W), tied)
    assert together.holds
    assert apart["margin ratio"] > 1 and apart.status == "fails" and "tied" in apart.reason
    path = ray(tokens, tied.W, (1.0, 2.0, 4.0, 8.0))
    nearing = compare(path.changed(W=path.W + 0.05 * prefers_one), tied, tolerance=1e-6)
    assert nearing.status == "inconclusive" and "tied" in nearing.reason


def test_the_trained_run_that_starts_at_the_solution_and_stays_there_does_not_hold(problem):
    tokens, v, solution = problem
    stuck = train(tokens, Linear(v), optimizer=gd(1e-30), steps=5, init=solution.W)
    assert compare(stuck, solution).status == "not applicable"
    assert classify(stuck, v) == "unmoved"


def test_a_run_is_not_classified_by_the_solution_of_other_tokens_it_may_attend_to(problem):
    tokens, v, solution = problem
    path = ray(tokens, solution.W)
    worst = max_margin(tokens, best_tokens(tokens, -v))
    soft = max_margin(tokens, solution.selected, slack=1.0)
    for wrong in (worst, soft):
        with pytest.raises(ValueError, match="not the max-margin program of the tokens"):
            classify(path, v, wrong)
    assert classify(path, v, solution) == classify(path, v) == "global"


@pytest.mark.parametrize(
    "other",
    [{"norm": nuclear}, {"norm": spectral}, {"required": [1.0, 50, 1]}, {"required": [1.0, 0, 1]}],
    ids=str,
)
def test_local_optimality_is_not_judged_by_the_program_of_another_norm_or_margin(other):
    # Each has other support tokens: of 60 such runs, 1 to 7 were called local or neither wrongly.
    rng = np.random.default_rng(0)
    tokens, W = (
        Tokens(rng.standard_normal((3, 4, 3)), rng.standard_normal((3, 3))),
        rng.standard_normal((3, 3)),
    )
    path = ray(tokens, W)
    with pytest.raises(ValueError, match="in the Frobenius norm and with one margin for all"):
        classify(path, np.ones(3), max_margin(tokens, path.selected, **other))
    for same in ({"norm": Schatten(2)}, {"required": 2.0}):
        assert classify(path, np.ones(3), max_margin(tokens, path.selected, **same)) == classify(
            path, np.ones(3)
        )
    prompt = Tokens(tokens.keys)
    along = ray(prompt, W[:, :1])
    of_vectors = max_margin(prompt, along.selected, nuclear)  # of one column it is the Frobenius norm
    assert classify(along, np.ones(3), of_vectors) == classify(along, np.ones(3))


# A rule, n, T, d and seed of sphere, and the kind by the norm of the limit; by the Frobenius norm the other.
OWN_NORM = {
    "p = 1.2": (mirror(1.2, 0.1), 3, 5, 4, 11, "local"),
    "p = 3": (mirror(3, 0.1), 3, 5, 4, 103, "local"),
    "p = 3, the other way round": (mirror(3, 0.1), 4, 5, 4, 43, "neither"),
    "Muon": (steepest(spectral, 0.1), 3, 5, 4, 10, "local"),
    "signs": (steepest(linf, 0.1), 3, 5, 4, 2, "local"),
}


@pytest.mark.parametrize("name", OWN_NORM)
def test_local_optimality_is_that_of_the_program_in_the_norm_of_the_limit(name, tmp_path):
    rule, *size, seed, kind = OWN_NORM[name]
    tokens, v = datasets.sphere(*size, seed=seed)
    run = train(tokens, Linear(v), optimizer=rule, steps=3000, record=2)
    norm = limit_norm(FullWeight(), rule).norm
    of_frobenius = "neither" if kind == "local" else "local"
    assert classify(run, v) == classify(run, v, norm=norm) == kind
    assert classify(run, v, max_margin(tokens, run.selected, norm)) == kind
    assert classify(run, v, norm="frobenius") == of_frobenius  # the control
    with pytest.raises(ValueError, match=f"in the {norm} norm"):
        classify(run, v, max_margin(tokens, run.selected))
    saved = Path.load(run.save(tmp_path / "run.npz"))
    with pytest.raises(ValueError, match="does not hold the optimizer"):
        classify(saved, v)
    assert classify(saved, v, norm=norm) == kind


def test_runs_are_classified_as_each_alone():
    tokens, v = datasets.sphere(3, 5, 4, seed=range(16))
    runs = train(tokens, Linear(v), optimizer=steepest(spectral, 0.1), steps=3000, record=2)
    kinds = classify(runs, v)
    assert [classify(runs.run(k), v[k]) for k in range(16)] == kinds.tolist()
    assert kinds[10] == "local" and classify(runs, v, norm=frobenius)[10] == "neither"
    assert (kinds == classify(runs, v, max_margin(tokens, runs.selected, spectral))).all()


# ---------------------------------------------------------------------- programs that saturate


def textbook(tokens, v, steps, factors=None, direction=lambda G: G / (np.linalg.norm(G) + 1e-300)):
    """Descent with the gradient of a textbook in float64, Xᵀ(diag(s) − s sᵀ)γ; 40 records of W or (K, Q)."""
    X, z, scores = tokens.keys, tokens.queries, tokens.labels[:, None] * (tokens.keys @ v)
    params, visited = factors or (np.zeros((tokens.d, tokens.e)),), []
    for step in range(steps + 1):
        if step % (steps // 40) == 0:
            visited.append(params if factors else params[0])
        W = params[0] @ params[1].T if factors else params[0]
        logits = np.einsum("ntd,de,ne->nt", X, W, z)
        s = np.exp(logits - logits.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        mean = (s * scores).sum(-1, keepdims=True)
        G = -np.einsum("nt,ntd,ne->de", s * (scores - mean) / (1 + np.exp(mean)), X, z)
        gradients = (G @ params[1], G.T @ params[0]) if factors else (G,)
        move = direction(np.concatenate([np.ravel(g) for g in gradients]))
        ends = np.cumsum([g.size for g in gradients])[:-1]
        params = tuple(
            p - 0.1 * m.reshape(p.shape) for p, m in zip(params, np.split(move, ends), strict=True)
        )
    return Path.of(tokens, visited, steps=np.arange(41) * (steps // 40))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("factors", [False, True], ids=["W", "K and Q"])
def test_a_run_that_float64_softmax_stopped_is_not_called_a_failure(seed, factors):
    tokens, v = datasets.sphere(4, 5, 6, seed=seed)
    pair = 0.1 * np.random.default_rng(seed).standard_normal((2, 6, 6))
    path = textbook(tokens, v, 2000, tuple(pair) if factors else None)
    solution = max_margin(tokens, path.selected, nuclear if factors else frobenius)
    verdict = compare(path, solution)
    gap, resolved = path.logit_gap(), path.resolved()
    step = path.index[resolved.argmin()]
    assert verdict["margin ratio"] < 0.95 and verdict.status == "inconclusive"
    assert f"beyond what float64 softmax resolves from step {step} on" in verdict.reason
    assert f"from step {step} on" in repr(path)
    assert verdict["logit gap"] == gap[-1] > 30 and gap[0] == pytest.approx(np.log(4), abs=1)
    assert margin_ratio(path, solution)[resolved].max() > verdict["margin ratio"]


def test_a_run_that_fails_before_float64_softmax_stops_it_still_fails():
    tokens, v = datasets.sphere(4, 5, 6, seed=1)
    path = textbook(tokens, v, 2000, direction=lambda G: np.sign(G) / 10)
    verdict = compare(path, max_margin(tokens, path.selected))  # sign steps tend to another direction
    assert verdict.status == "fails" and not path.resolved()[-1] and path.resolved()[20]


def test_the_gradient_of_train_resolves_every_gap():
    tokens, v = datasets.sphere(4, 5, 6, seed=0)
    run = train(tokens, Linear(v), optimizer=steepest(frobenius, 0.1), steps=8000)
    verdict = compare(run, max_margin(tokens, run.selected))
    assert verdict.holds and verdict["logit gap"] > 200
    assert run.resolved().all() and "beyond" not in repr(run)
    shorter = textbook(tokens, v, 800)  # before it saturates, the textbook's is the same
    same = train(tokens, Linear(v), optimizer=steepest(frobenius, 0.1), steps=800, record=shorter.index)
    np.testing.assert_allclose(shorter.final, same.final, atol=1e-5 * np.linalg.norm(same.final))
    assert shorter.resolved().all()


# ---------------------------------------------------------------------- solutions over some of the tokens


def least_margin(tokens, selected, W, counted):
    """The least margin of the counted examples at W, one token after the other."""
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    margins = [
        logits[i, selected[i]] - logits[i, t]
        for i, t in np.argwhere(tokens.mask)
        if counted[i, t] and t != selected[i]
    ]
    return min(margins)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_ratio_to_a_solution_over_some_tokens_counts_these_alone(size, seed):
    tokens, selected = separable_problem(*size)
    rng = np.random.default_rng(seed)
    chosen = np.arange(tokens.T) == selected[:, None]
    fewer = chosen | (rng.random(chosen.shape) < 0.6)
    fewer[rng.integers(tokens.n)] = True  # one example is whole
    some = Tokens(tokens.keys, tokens.queries, mask=fewer)
    solution = max_margin(some, selected)
    W = solution.W + 0.3 * np.abs(solution.W).max() * rng.standard_normal(solution.W.shape)
    ratio = margin_ratio(ray(tokens, W), solution)
    wanted = least_margin(tokens, selected, W, fewer) / np.linalg.norm(W) / solution.margin
    np.testing.assert_allclose(ratio, wanted, rtol=1e-9)
    whole = ray(some, W)  # and no path over fewer tokens has a ratio to a solution over more
    if not fewer.all():
        with pytest.raises(ValueError, match="tokens that the path's has not"):
            margin_ratio(whole, max_margin(tokens, selected))
        for ask in (compare, lambda p, s: classify(p, np.ones(size[2]), s)):
            with pytest.raises(ValueError, match="of other tokens than the path"):
                ask(ray(tokens, W), solution)


def test_what_a_file_holds_behind_the_mask_is_not_compared(tmp_path):
    tokens, selected = separable_problem(3, 4, 2, 1.0)
    mask = np.arange(4) <= selected[:, None]
    keys = np.where(mask[..., None], tokens.keys, np.nan)
    for name, padding in (("one", np.nan), ("other", 7.0)):
        np.save(tmp_path / f"{name}.npy", np.where(mask[..., None], keys, padding))
    one, other = (
        Tokens(np.load(tmp_path / f"{name}.npy", mmap_mode="r"), tokens.queries, mask=mask)
        for name in ("one", "other")
    )
    solution = max_margin(other, selected)
    assert compare(ray(one, solution.W), solution).holds
    moved = np.where(mask[..., None], keys, 0) + np.eye(4)[selected][..., None] * 1e-9
    with pytest.raises(ValueError, match="of other tokens than the path"):
        compare(ray(Tokens(moved, tokens.queries, mask=mask), solution.W), solution)
