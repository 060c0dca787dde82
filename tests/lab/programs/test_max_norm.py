"""The max-norm, its dual and its program: closed forms, cvxpy, and what must not pass."""

from dataclasses import replace

import numpy as np
import pytest

import attsvm as att
from attsvm import NotSeparable, Solution, Tokens, linf, nuclear
from attsvm.norms.names import from_saved, norm_of, saved_words
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin, separate
from attsvm.program.rows import Rows
from attsvm.program.schatten.interior_point import Iterate
from attsvm.program.solve import route_of
from attsvm_lab.programs import max_norm_program
from attsvm_lab.programs.max_norm import DualMaxNorm, MaxNorm
from attsvm_lab.programs.max_norm_values import _negative_hessian
from tests.program import exact
from tests.program.hostile import draw
from tests.program.oracles import rows_of
from tests.program.test_derivative import program, slope, solved
from tests.program.test_schatten import planted
from tests.program.test_schatten_p import drawn

NARROW = 3e-10
"""Width of a bracket; both solvers aim at 5e-11."""
ORACLE = 1e-6
EACH = 30


def by_cvxpy(shape, limits):
    """The least t with [[·, W], [Wᵀ, ·]] ⪰ 0, diagonal ≤ t, and limits on W."""
    cvxpy = pytest.importorskip("cvxpy")
    d, e = shape
    block, t = cvxpy.Variable((d + e, d + e), PSD=True), cvxpy.Variable()
    bounds = [cvxpy.diag(block) <= t, *limits(cvxpy, block[:d, d:])]
    return float(cvxpy.Problem(cvxpy.Minimize(t), bounds).solve(solver="CLARABEL"))


def matrices():
    """Random, of rank one, of signs, of uneven rows, of whole numbers with zeros, by turns."""
    rng = np.random.default_rng(0)
    for k in range(EACH):
        W = rng.standard_normal(rng.integers(2, 7, 2))
        others = (
            W,
            np.outer(W[:, 0], W[0]),
            np.sign(W),
            W * 10.0 ** rng.uniform(-4, 0, (len(W), 1)),
            np.round(W),
        )
        yield others[k % 5] * 10.0 ** (k % 7 - 3)


DIFFERENCES = 1e-6
"""Central differences at 1e-5 of a coordinate are right to about 1e-9."""


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_bend_is_that_of_differences_of_the_slope(rank):
    """f(c) = ‖diag(a)^½ W diag(b)^½‖_*, whose slope is ½ (x_i²ᵀ σ) / c_i."""
    rng = np.random.default_rng(rank)
    W = rng.standard_normal((5, rank)) @ rng.standard_normal((rank, 7))
    c = rng.uniform(0.2, 2, 12)

    def at(c):
        U, sigma, Vt = np.linalg.svd(np.sqrt(c[:5, None]) * W * np.sqrt(c[5:]), full_matrices=False)
        X = np.vstack([U, Vt.T])
        return X, sigma, (X * X) @ sigma / (2 * c)

    moves = 1e-5 * np.diag(c)
    slopes = np.array([(at(c + move)[2] - at(c - move)[2]) / 2e-5 for move in moves])
    X, sigma, _ = at(c)
    found, wrong = _negative_hessian(X, sigma, 5), _negative_hessian(X, sigma + 0.1 * sigma[0], 5)
    assert np.allclose(found, -slopes * c, atol=DIFFERENCES * np.abs(found).max())
    assert not np.allclose(wrong, -slopes * c, atol=DIFFERENCES * np.abs(found).max())


# ---------------------------------------------------------------------- the norm


def test_a_bracket_is_narrow_and_holds_the_value_of_a_general_solver():
    for W in matrices():
        (low, up), size = MaxNorm().bracket(W), max(np.abs(W).max(), 1e-300)
        assert 0 <= up - low <= NARROW * up
        value = by_cvxpy(W.shape, lambda _, X, W=W / size: [X == W]) if W.any() else 0.0
        assert up / size == pytest.approx(value, rel=ORACLE)


def test_the_bracket_of_the_dual_is_narrow_and_matched_by_no_weight_of_norm_one():
    rng = np.random.default_rng(1)
    for G in matrices():
        low, up = DualMaxNorm().bracket(G)
        K, Q = (rng.standard_normal((200, size, 9)) for size in G.shape)
        K, Q = (X / np.linalg.norm(X, axis=-1, keepdims=True) for X in (K, Q))
        assert 0 <= up - low <= NARROW * up
        assert (np.einsum("kir,kjr,ij->k", K, Q, G) <= up).all()


@pytest.mark.parametrize("norm", [MaxNorm(), DualMaxNorm()], ids=str)
def test_hoelder_is_an_equality_at_the_steepest_direction_of_norm_one(norm):
    for G in matrices():
        direction = norm.steepest(G)
        assert norm.value(direction) <= 1 + NARROW
        assert (direction * G).sum() == pytest.approx(norm.dual.value(G), rel=NARROW)


def test_closed_forms():
    u, v = np.array([1.0, -3.0, 0.5]), np.array([2.0, 0.0, -1.0, 4.0])
    hadamard = np.array([[1, 1], [1, -1]])
    assert MaxNorm().value(np.outer(u, v)) == pytest.approx(12)
    assert DualMaxNorm().value(np.outer(u, v)) == pytest.approx(4.5 * 7)
    assert MaxNorm().value(np.kron(hadamard, hadamard)) == pytest.approx(2)
    assert MaxNorm().value(np.eye(5)) == pytest.approx(1) and DualMaxNorm().value(np.eye(5)) == pytest.approx(
        5
    )
    assert MaxNorm().value(v) == pytest.approx(4) and DualMaxNorm().value(v) == pytest.approx(7)
    assert MaxNorm().value(np.zeros((2, 3))) == 0


def test_it_lies_between_the_largest_entry_and_the_spectral_norm_and_feels_a_rotation():
    W = np.random.default_rng(3).standard_normal((4, 6, 5))
    turned = np.linalg.qr(W[0])[0].T @ W
    value = MaxNorm().value(W)
    assert value.shape == (4,)
    assert (np.abs(W).max((1, 2)) < value).all() and (value < np.linalg.norm(W, 2, axis=(1, 2))).all()
    assert np.abs(MaxNorm().value(turned) / value - 1).max() > 1e-2


def test_what_is_not_finite_has_no_number_and_jax_is_told_what_to_train():
    W = np.array([[[1.0, np.nan], [0, 1]], [[1, 0], [0, 1]]])
    assert np.isnan(MaxNorm().value(W)).tolist() == [True, False]
    with pytest.raises(ValueError, match="finite"):
        MaxNorm().bracket(W[0])
    with pytest.raises(TypeError, match="LongestRow"):
        MaxNorm().value(object())


# ---------------------------------------------------------------------- the program


def test_the_program_is_that_of_a_general_solver():
    for seed in range(EACH):
        tokens, selected, required = drawn(seed)
        solution = max_margin(tokens, selected, MaxNorm(), required=required)
        assert solution.certificate.worst < 1e-8, seed
        A, b, tied = rows_of(tokens, selected, required)
        unit = np.linalg.norm(A, axis=1).max()

        def limits(cvxpy, X, A=A / unit, b=b, tied=tied):
            margins = A @ cvxpy.vec(X, order="C")
            return [margins[~tied] >= b[~tied], *([margins[tied] == 0] if tied.any() else [])]

        value = by_cvxpy((tokens.d, tokens.e), limits) / unit
        assert MaxNorm().value(solution.W) == pytest.approx(value, rel=ORACLE), seed


def test_another_norms_solution_and_a_shrunk_one_are_rejected():
    tokens, selected, _ = planted((6, 5, 5, 4))
    solution = max_margin(tokens, selected, MaxNorm())
    other = max_margin(tokens, selected, nuclear)
    assert solution.certified and other.certified
    assert not replace(solution, W=other.W).certified
    assert not replace(solution, multipliers=other.multipliers).certified
    assert not replace(solution, W=(1 - 1e-6) * solution.W).certified
    assert MaxNorm().value(solution.W) < 0.999 * MaxNorm().value(other.W)


def test_of_vectors_it_is_the_largest_entry():
    rows = np.random.default_rng(0).standard_normal((3, 5))
    found, entries = separate(rows, MaxNorm()), separate(rows, linf)
    assert found.certified and found.margin == pytest.approx(entries.margin, rel=1e-8)


def test_a_contradiction_is_raised():
    tokens, selected, order = planted((4, 5, 6, 4))
    twin = Tokens(np.vstack([tokens.keys, tokens.keys[:1]]), np.vstack([tokens.queries, tokens.queries[:1]]))
    with pytest.raises(NotSeparable, match=r"contradict|opposite|above"):
        max_margin(twin, np.vstack([selected, np.arange(5) == order[0, 1]]), MaxNorm())


def test_runs_files_units_and_saved_solutions(tmp_path):
    tokens, selected, _ = planted((12, 6, 4, 4))
    plain = max_margin(tokens, selected, MaxNorm())
    np.save(tmp_path / "keys.npy", tokens.keys)
    stored = Tokens(np.load(tmp_path / "keys.npy", mmap_mode="r"), tokens.queries)
    twice = Tokens(np.stack([tokens.keys, 1e100 * tokens.keys]), np.stack([tokens.queries] * 2))
    both = max_margin(twice, np.stack([selected] * 2), MaxNorm())
    assert max_margin(stored, selected, MaxNorm()).margin == pytest.approx(plain.margin, rel=1e-8)
    assert both.certified.all() and both.margin[1] == pytest.approx(1e100 * plain.margin, rel=1e-8)
    plain.save(tmp_path / "solution.npz")
    assert Solution.load(tmp_path / "solution.npz").norm == MaxNorm()


def test_the_pool_finds_the_answer_of_all_rows():
    tokens, selected, _ = planted((40, 12, 4, 5))
    solution = max_margin(tokens, selected, MaxNorm())
    few = max_margin(Tokens(tokens.keys[:10], tokens.queries[:10]), selected[:10], MaxNorm())
    assert solution.certificate.rows == 440 and solution.certificate.worst < 1e-8
    assert solution.margin < 0.99 * few.margin


def test_rounding_beside_a_vanishing_entry_of_the_dual_does_not_spoil_the_bound(monkeypatch):
    # D = (1, 1e-20) on both sides allows M_22 = 1e-20; rounding of M leaves 1e-14, too little to matter.
    tokens, selected, *_ = planted((3, 3, 2, 2))
    form = max_norm_program.MaxNormForm(Rows.of(Constraints.of(tokens, selected)))
    at = Iterate(np.eye(4), np.diag([1.0, 1e-20, 1.0, 1e-20]), np.ones(6), np.ones(6))
    M = np.diag([1.0, 1e-14])
    assert form.witness(at).dual.value(M) == pytest.approx(1.0, rel=1e-9)
    monkeypatch.setattr(max_norm_program, "FLOORS", (0.0,))
    assert form.witness(at).dual.value(M) > 1e5


def test_the_bound_of_the_path_is_above_the_dual_norm():
    random = np.random.default_rng(0)
    tokens, selected, *_ = planted((3, 3, 2, 2))
    form = max_norm_program.MaxNormForm(Rows.of(Constraints.of(tokens, selected)))
    for _ in range(20):
        M, D = random.standard_normal((2, 2)), 10.0 ** random.uniform(-16, 0, 4)
        at = Iterate(np.eye(4), np.diag(D), np.ones(6), np.ones(6))
        assert form.witness(at).dual.value(M) >= (1 - 1e-9) * MaxNorm().dual.value(M)


def test_a_soft_margin_is_refused_in_words():
    tokens, selected, _ = planted((4, 5, 4, 4))
    with pytest.raises(ValueError, match=r"slack needs the Frobenius .* but norm is max-norm"):
        max_margin(tokens, selected, MaxNorm(), slack=1.0)


@pytest.mark.filterwarnings("ignore::attsvm.program.solution.NotCertified")
def test_answers_to_hostile_programs_are_true_in_exact_arithmetic():
    cases = [replace(draw("spectra", seed), norm=MaxNorm()) for seed in (*range(5), 2865)]
    words = [exact.outcome(case) for case in cases]
    assert not any(word[0].isupper() for word in words), words
    assert words.count(exact.CERTIFIED) >= 2 and words.count(exact.NOT_CERTIFIED) <= 1


# ---------------------------------------------------------------------- what every norm says and does


BRACKET = 1e-9
"""Relative width that values of the max-norm have."""


@pytest.mark.parametrize("norm", [MaxNorm(), DualMaxNorm()], ids=repr)
def test_what_it_says_of_itself_is_true(norm):
    traits = att.capabilities_of(norm)
    W = np.random.default_rng(0).standard_normal((50, 4, 3))
    W /= np.linalg.norm(W, axis=(1, 2), keepdims=True)
    assert max(float(norm.value(one)) for one in [*W, np.eye(4)[:, :3] / 3**0.5]) <= traits.stretch(4, 3)
    assert not (traits.euclidean or traits.strictly_convex)
    for shape in ((5, 1), (1, 5)):
        x = np.random.default_rng(1).standard_normal(shape)
        equal = traits.on_column if shape[1] == 1 else traits.on_row
        assert float(equal.value(x)) == pytest.approx(float(norm.value(x)), rel=BRACKET)
    for shape in ((0, 2), (2, 0), (3, 0, 2)):
        np.testing.assert_array_equal(norm.value(np.zeros(shape)), np.zeros(shape[:-2]))


def test_a_file_keeps_it_in_words_and_its_dual_has_none():
    assert from_saved(saved_words(MaxNorm())) == MaxNorm() == norm_of("max-norm")
    with pytest.raises(ValueError, match="no words for files"):
        saved_words(DualMaxNorm())


def test_a_class_that_changes_a_rule_is_not_taken_for_it():
    changed = type("Changed", (MaxNorm,), {"steepest": lambda self, G: -G})()
    assert att.capabilities_of(changed) == att.Capabilities()
    with pytest.raises(ValueError, match="no program for the norm"):
        route_of(changed)
    for weight in (att.FullWeight(), att.KeyQuery(), att.Diagonal()):
        with pytest.raises(att.NoTheorem, match="no limit known"):
            att.limit_norm(weight, att.steepest(changed, 0.1))


def test_the_limit_of_normalised_rows_names_it():
    limit = att.limit_norm(att.KeyQuery(), att.steepest(att.LongestRow(), 0.1))
    assert limit.norm == str(MaxNorm()) and norm_of(limit.norm) == MaxNorm()
    assert att.limit_norm(att.Diagonal(), att.steepest(MaxNorm(), 0.1)).norm == linf


def test_a_margin_in_the_max_norm_has_a_derivative():
    data, selected = program((3, 3, 4, 3), 1)
    sensitivity = att.sensitivity(solved(data, selected, MaxNorm()))
    slopes = {name: getattr(sensitivity, f"norm_by_{name}") for name in data}

    def value(d):
        return float(MaxNorm().value(solved(d, selected, MaxNorm()).W))

    expected, direction = slope(value, data, 2)
    found = sum((slopes[name] * direction[name]).sum() for name in data)
    assert abs(found - expected) < 1e-3 * abs(expected)
