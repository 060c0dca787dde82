"""Several heads: gradients of each past its own saturation, one norm over all of them, or one for each."""

import mpmath as mp
import numpy as np
import pytest

from attsvm import (
    HeadLayout,
    Path,
    Tokens,
    compare,
    frobenius,
    max_margin,
    regularisation_path,
    spectral,
)
from attsvm.datasets import sphere
from attsvm.training import streaming
from attsvm.training.batches import Batches, BatchForm, on_host
from attsvm.training.init import gaussian, uniform
from attsvm.training.optimizers import adam, gd, polyak, steepest
from attsvm.training.prediction_heads import Linear, LogOdds
from attsvm.training.train import train
from attsvm.training.weights import Diagonal, FullWeight, KeyQuery, MultiHead

H, LR = 2, 0.1
CLOSE = 1e-9  # a few steps in float64 against mpmath's gradients; another norm shows at 1e-2
ROUNDING = 1e-11  # what 30 steps make of sums in another order
V = np.random.default_rng(5).standard_normal((H, 5))
SCALES = {"soft": 0.5, "saturated": 150.0}  # then the gradients of the heads are e^(−133) and e^(−12)


@pytest.fixture(scope="module")
def problem():
    return sphere(3, 4, 5, seed=0)[0]


def run(tokens, rule, steps=4, weight=None, head=V, **options):
    weight = MultiHead(H) if weight is None else weight
    return train(
        tokens, Linear(head), weight=weight, optimizer=rule, steps=steps, **{"record": [steps]} | options
    )


def exact_gradients(tokens, W, digits=60):
    """Textbook gradients of the mean logistic loss of Σ_h v_hᵀ Xᵀ softmax(X W_h z), in mpmath."""
    gap = np.ptp(np.einsum("ntd,hde,ne->hnt", tokens.keys, W, tokens.queries), axis=2).max()
    with mp.workdps(int(digits + gap / np.log(10))):
        G = [mp.zeros(tokens.d, tokens.e) for _ in range(H)]
        for i in range(tokens.n):
            X, z = mp.matrix(tokens.keys[i].tolist()), mp.matrix(tokens.queries[i].tolist())
            f, each = 0, []
            for h in range(H):
                a = X * (mp.matrix(W[h].tolist()) * z)
                e = [mp.exp(value - max(a)) for value in a]
                s = [value / mp.fsum(e) for value in e]
                gamma = X * mp.matrix(V[h].tolist()) * int(tokens.labels[i])
                own = mp.fdot(s, gamma)
                f += own
                each.append(mp.matrix([s[t] * (gamma[t] - own) for t in range(tokens.T)]))
            for h in range(H):
                G[h] -= (X.T * each[h]) * z.T / (1 + mp.exp(f)) / tokens.n
        logs = [mp.log(mp.norm(g)) for g in G]
        units = [np.array((g / mp.exp(log)).tolist(), float) for g, log in zip(G, logs, strict=True)]
        return np.array(units), np.array([float(log) for log in logs])


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("norm", ["joint", "apart"])
def test_a_step_goes_along_the_exact_gradients_of_all_heads(norm, scale, problem):
    W = start = scale * np.random.default_rng(3).standard_normal((H, 5, 5))
    for _ in range(3):
        units, logs = exact_gradients(problem, W)
        sizes = np.exp(logs - logs.max()) if norm == "joint" else np.ones(H)
        W = W - LR * (sizes / (np.linalg.norm(sizes) if norm == "joint" else 1))[:, None, None] * units
    found = run(problem, steepest(frobenius, LR), 3, MultiHead(H, norm=norm), init=start).final
    np.testing.assert_allclose(found - start, W - start, atol=CLOSE)
    other = MultiHead(H, norm="apart" if norm == "joint" else "joint")
    assert np.abs(run(problem, steepest(frobenius, LR), 3, other, init=start).final - W).max() > 1e-2
    assert scale < 1 or np.ptp(logs) > 100


def test_past_saturation_the_usual_formula_knows_one_head_at_most(problem):
    """The twin of the test above: γ_a − f rounds to zero, and with it the winner's part of the gradient."""
    W = SCALES["saturated"] * np.random.default_rng(3).standard_normal((H, 5, 5))
    logits = np.einsum("ntd,hde,ne->hnt", problem.keys, W, problem.queries)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    gamma = problem.labels[:, None] * np.einsum("ntd,hd->hnt", problem.keys, V)
    slope = 1 / (1 + np.exp((s * gamma).sum((0, 2)))) / problem.n
    along = slope[:, None] * s * (gamma - (s * gamma).sum(-1, keepdims=True))
    found = -np.einsum("hnt,ntd,ne->hde", along, problem.keys, problem.queries)
    cosines = (found * exact_gradients(problem, W)[0]).sum((1, 2)) / np.linalg.norm(found, axis=(1, 2))
    assert cosines[1] > 1 - 1e-9 and cosines[0] < 0.9


def test_the_loss_and_its_excess_are_those_of_the_sum(problem):
    path = run(problem, gd(0.5), 4, init=gaussian(0))
    gamma = problem.labels[:, None] * np.einsum("ntd,hd->hnt", problem.keys, V)
    f = (path.attention[-1] * gamma).sum((0, 2))
    best = gamma.max(-1).sum(0)
    loss, least = (np.log1p(np.exp(-x)).mean() for x in (f, best))
    assert np.isclose(path.loss[-1], loss, rtol=1e-12)
    assert np.isclose(path.log_excess[-1], np.log(loss - least), rtol=1e-9)
    assert not np.isclose(loss, np.log1p(np.exp(-(path.attention[-1] * gamma).sum(2))).mean(), rtol=1e-2)


def test_one_head_is_the_weight_alone(problem):
    alone = run(problem, steepest(spectral, LR), 20, KeyQuery(3), V[0], init=uniform(1))
    one = run(problem, steepest(spectral, LR), 20, MultiHead(1, KeyQuery(3)), V[:1], init=uniform(1))
    np.testing.assert_allclose(one.final[0], alone.final, atol=ROUNDING)
    shared = run(problem, steepest(spectral, LR), 20, MultiHead(1, KeyQuery(3)), V[0], init=uniform(1))
    np.testing.assert_array_equal(shared.final, one.final)


# ---------------------------------------------------------------------- norms over heads


def test_muon_per_head_and_on_all_heads_side_by_side_take_different_steps(problem):
    W = np.random.default_rng(0).standard_normal((H, 5, 5))
    units, logs = exact_gradients(problem, W)
    G = units * np.exp(logs)[:, None, None]

    def polar(matrix):
        U, sigma, Vt = np.linalg.svd(matrix, full_matrices=False)
        return U[:, sigma > 1e-9] @ Vt[sigma > 1e-9]  # of rank 3: there are three examples

    rule = steepest(spectral, LR)
    steps = {
        norm: (run(problem, rule, 1, MultiHead(H, norm=norm), init=W).final - W) / -LR
        for norm in ("joint", "apart", "concatenated")
    }
    each = np.array([polar(g) for g in G])
    np.testing.assert_allclose(steps["apart"], each, atol=1e-7)
    np.testing.assert_allclose(steps["joint"], each, atol=1e-7)  # one block matrix
    together = np.stack(np.split(polar(np.hstack(G)), H, axis=1))
    np.testing.assert_allclose(steps["concatenated"], together, atol=1e-7)
    assert np.abs(together - each).max() > 0.1


def test_one_norm_over_all_heads_makes_a_head_as_long_as_its_task_is_hard():
    tokens, rule = sphere(4, 4, 8, seed=0)[0], steepest(frobenius, 0.1)
    v = np.random.default_rng(0).standard_normal((3, 8))
    joint = run(tokens, rule, 6_000, MultiHead(3), v)
    apart = run(tokens, rule, 6_000, MultiHead(3, norm="apart"), v)
    assert joint.heads == 3 and joint.runs is None and joint.selected.shape == (3, 4, 4)

    def lengths_and_margins(path):
        solutions = [max_margin(tokens, path.head(h).selected) for h in range(3)]
        for h, solution in enumerate(solutions):
            assert compare(path.head(h), solution).status == "holds"
        return path.norm()[-1], np.array([float(solution.margin) for solution in solutions])

    length, margin = lengths_and_margins(joint)
    assert np.ptp(length * margin) < 0.02 * (length * margin).mean()
    assert np.ptp(margin) > 0.1 * margin.mean()  # else it would say nothing
    length, margin = lengths_and_margins(apart)
    assert np.ptp(length) < 0.05 * length.mean() and np.ptp(length * margin) > 0.1 * (length * margin).mean()


# ---------------------------------------------------------------------- paths, runs and the door


@pytest.mark.parametrize(
    "weight",
    [MultiHead(H, KeyQuery(2, separate=True), "concatenated"), MultiHead(H, Diagonal(), "apart")],
    ids=["factors", "diagonals"],
)
def test_a_run_cut_in_two_saved_and_loaded_is_the_whole_run(weight, problem, tmp_path):
    given = {"weight": weight, "init": uniform(range(3)), "train_head": steepest(frobenius, 0.01)}
    given |= {"batch": Batches(2, range(3))}
    rule = adam(0.05, eps=0.0)
    whole = run(problem, rule, 30, **given)
    half = Path.load(run(problem, rule, 13, **given).save(tmp_path / "half.npz"))
    assert half.heads == H and half.runs == 3
    on = run(problem, rule, 30, resume=half, **given | {"init": None})
    np.testing.assert_array_equal(on.final, whole.final)
    alone = run(problem, rule, 30, **given | {"init": uniform(1), "batch": Batches(2, 1)})
    np.testing.assert_allclose(whole.run(1).final, alone.final, atol=1e-8)
    np.testing.assert_array_equal(whole.run(1).head(0).W, whole.head(0).run(1).W)
    assert whole.head(1).v.shape == (3, 2, 5) and whole.v.shape == (3, 2, H, 5)
    assert np.abs(whole.final[0] - whole.final[1]).max() > 1e-2


@pytest.mark.parametrize(("heads", "form"), [(H, BatchForm(2, False)), (3, BatchForm(3, True))])
def test_a_mini_batch_of_heads_that_stay_is_a_step_on_its_examples(heads, form, problem):
    v = np.random.default_rng(6).standard_normal((heads, 5))
    batch = Batches(form.size, 4, "replacement" if form.replacement else "shuffled")
    given = {"weight": MultiHead(heads), "head": v, "init": gaussian(0)}
    chosen = on_host(form, 4, problem.n, 0)
    some = Tokens(problem.keys[chosen], problem.queries[chosen], problem.labels[chosen])
    found, expected = run(problem, gd(LR), 1, batch=batch, **given), run(some, gd(LR), 1, **given)
    np.testing.assert_allclose(found.final, expected.final, atol=ROUNDING)
    assert np.abs(found.final - run(problem, gd(LR), 1, **given).final).max() > 1e-4


def test_heads_train_from_a_file_and_in_blocks_as_from_memory(problem, tmp_path, monkeypatch):
    file = np.memmap(tmp_path / "keys", np.float64, "w+", shape=problem.keys.shape)
    file[:] = problem.keys
    mapped = np.memmap(tmp_path / "keys", np.float64, "r", shape=file.shape)
    stored = Tokens(mapped, problem.queries, problem.labels)
    expected = run(problem, polyak(0.1), init=gaussian(0))
    monkeypatch.setattr("attsvm.training.inputs.COPY_LIMIT", 0)
    monkeypatch.setattr("attsvm.training.layout.CACHED", 2 * 4 * 5)
    np.testing.assert_allclose(
        run(stored, polyak(0.1), init=gaussian(0)).final, expected.final, atol=ROUNDING
    )
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    monkeypatch.setattr(streaming, "READ", 2 * 4 * 5 * 8)
    np.testing.assert_allclose(
        run(stored, polyak(0.1), init=gaussian(0)).final, expected.final, atol=ROUNDING
    )


def test_a_run_of_heads_converges_as_one_direction(problem):
    path = run(problem, steepest(frobenius, LR), 2_000, tolerance=1e-2, record=20)
    assert path.stopped == "converged" and path.index[-1] < 2_000


def test_what_heads_cannot_be_is_refused(problem):
    for wrong, said in [
        ({"count": 0}, "count is 0"),
        ({"count": 2, "norm": "none"}, "norm is 'none'. Pass 'joint', 'apart', 'concatenated'"),
        ({"count": 2, "weight": MultiHead(2)}, "MultiHead again"),
    ]:
        with pytest.raises(ValueError, match=said):
            MultiHead(**wrong)
    with pytest.raises(ValueError, match=r"v has shape \(3, 5\) for 2 heads"):
        run(problem, gd(0.1), head=np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"read by Linear\(v\)"):
        train(problem, LogOdds(), weight=MultiHead(2), optimizer=gd(0.1), steps=1)
    with pytest.raises(ValueError, match="takes one head"):
        regularisation_path(problem, Linear(V[0]), weight=MultiHead(2), radii=[1.0])
    path = run(problem, gd(0.1))
    with pytest.raises(ValueError, match="has 2 heads"):
        compare(path, max_margin(problem, path.head(0).selected))
    with pytest.raises(ValueError, match="one head"):
        path.plot()
    with pytest.raises(ValueError, match="no heads"):
        path.head(0).head(0)


# ---------------------------------------------------------------------- matrices of a layout


def test_a_layout_takes_the_steps_of_its_word(problem):
    ways = [MultiHead(H, KeyQuery(5, True), way) for way in ("concatenated", HeadLayout.fused(H))]
    paths = [run(problem, steepest(spectral, LR), 20, way, init=gaussian(0)) for way in ways]
    assert np.allclose(paths[0].W, paths[1].W, atol=ROUNDING, rtol=0)


def test_keys_with_queries_move_by_one_step_of_their_norm(problem):
    weight = MultiHead(H, KeyQuery(5), HeadLayout.keys_with_queries(H))
    path = run(problem, steepest(spectral, LR), 1, weight, init=gaussian(0), record=[0, 1])
    dK, dQ = path.K[1] - path.K[0], path.Q[1] - path.Q[0]
    both, keys = (np.linalg.svd(np.concatenate(list(d), axis=1))[1] for d in ((*dK, *dQ), dK))
    assert np.isclose(both, LR).all()
    assert not np.isclose(keys, LR).all()


def test_shared_keys_add_gradients_of_heads_at_their_scales(problem):
    """One head is saturated, so that its gradient counts by e^(−100) beside the other's."""
    weight = MultiHead(H, KeyQuery(5), HeadLayout.grouped_queries(1, H))
    K = np.repeat(np.random.default_rng(1).standard_normal((1, 5, 5)), H, 0)
    Q = np.random.default_rng(2).standard_normal((H, 5, 5)) * np.array([150.0, 0.5])[:, None, None]
    path = run(problem, steepest(frobenius, LR), 1, weight, init=(K, Q))
    units, logs = exact_gradients(problem, K @ Q.swapaxes(1, 2))
    exact = sum(np.exp(log - logs.max()) * G @ q for log, G, q in zip(logs, units, Q, strict=True))
    assert np.allclose((path.K[-1, 0] - K[0]) / LR, -exact / np.linalg.norm(exact), atol=CLOSE)
    assert (path.K[-1, 0] == path.K[-1, 1]).all()
    with pytest.raises(ValueError, match="share keys"):
        run(problem, steepest(spectral, LR), 1, weight, init=(Q, K))


def test_a_layout_of_other_heads_is_refused():
    for arguments in ((3, KeyQuery(), HeadLayout.fused(2)), (2, FullWeight(), HeadLayout.fused(2))):
        with pytest.raises(ValueError, match="Pass MultiHead"):
            MultiHead(*arguments)
