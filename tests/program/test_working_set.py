"""The one loop: rows that join, engines on their pools, and keys that are stored elsewhere."""

import numpy as np
import pytest

from attsvm import (
    Entrywise,
    NotSeparable,
    Tokens,
    frobenius,
    l1,
    linf,
    max_margin,
    nuclear,
    separable,
    separate,
)
from attsvm._support import progress
from attsvm.numbers.stored import Stored
from attsvm.program import working_set
from attsvm.program.constraints import Constraints, stored_margins
from attsvm.program.frobenius import route
from attsvm.program.frobenius.active_set import ActiveSet
from attsvm.program.frobenius.pivoting import Pivoted
from attsvm.program.rows import Rows
from attsvm.program.working_set import Slacks
from tests.numbers.test_stored import Sliced, mapped, numbers

SAME = 1e-8
"""Two certified answers of one program: their norms agree to 1e-8."""


def problem(n, T, d, e, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((n, T, d)).astype(dtype)
    queries = rng.standard_normal((n, e)) if e > 1 else None
    W = rng.standard_normal((d, e))
    directions = W.T if queries is None else queries @ W.T
    return keys, queries, np.einsum("ntd,nd->nt", keys.astype(float), directions * np.ones((n, d))).argmax(1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_margins_of_stored_keys_are_those_in_memory(tmp_path, dtype):
    keys = numbers(50, 7, 33, dtype=dtype)
    keys[3, 2] *= 1e-4  # subnormal in half precision
    rng = np.random.default_rng(1)
    anchor, directions = rng.integers(7, size=50), rng.standard_normal((50, 33))
    wide = keys.astype(float)
    expected = np.einsum("ntd,nd->nt", wide[np.arange(50), anchor][:, None] - wide, directions)
    examples = np.array([0, 1, 2, 3, 7, 30, 31, 49])
    margins = stored_margins(
        Stored(mapped(tmp_path, keys)), examples, anchor[examples], directions[examples], np.eye(33)
    )
    np.testing.assert_allclose(margins, expected[examples], rtol=1e-12, atol=1e-12)


def test_margins_of_bfloat16_are_those_in_memory():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    keys = numbers(9, 4, 12).astype(ml_dtypes.bfloat16)
    directions = np.ones((9, 12))
    wide = keys.astype(float)
    margins = stored_margins(Stored(keys), np.arange(9), np.zeros(9, int), directions, np.eye(12))
    np.testing.assert_allclose(margins, (wide[:, :1] - wide).sum(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "norm"),
    [
        ((400, 8, 20, 1), frobenius),
        ((300, 6, 8, 7), frobenius),
        ((300, 8, 12, 1), l1),
        ((300, 8, 12, 1), Entrywise(1.5)),
        ((60, 5, 5, 4), linf),
        ((60, 5, 5, 4), nuclear),
    ],
    ids=str,
)
def test_the_answer_is_the_one_in_memory(tmp_path, shape, norm, dtype):
    keys, queries, best = problem(*shape, dtype)
    there = max_margin(Tokens(mapped(tmp_path, keys), queries), best, norm)
    here = max_margin(Tokens(keys, queries), best, norm)
    assert there.certified and here.certified
    assert norm.value(there.W) == pytest.approx(norm.value(here.W), rel=SAME)


def test_half_precision_is_solved_as_stored_and_not_as_it_was_before(tmp_path):
    keys, _, best = problem(200, 6, 10, 1, "float32")
    stored = max_margin(Tokens(mapped(tmp_path, keys.astype("float16"))), best)
    widened = max_margin(Tokens(keys.astype("float16").astype("float64")), best)
    before = max_margin(Tokens(keys), best)
    assert stored.margin == pytest.approx(widened.margin, rel=SAME)
    assert stored.margin != pytest.approx(before.margin, rel=1e-6)


def test_few_rows_are_read_more_than_a_few_times(tmp_path):
    keys, _, best = problem(3000, 8, 20, 1)
    sliced = Sliced(keys)
    tokens = Tokens(sliced)
    solution = max_margin(tokens, best)
    assert solution.certified
    assert sliced.read <= 12 * 3000  # sizes, rounds, pools and a certificate
    assert isinstance(tokens.keys, Stored)


@pytest.mark.parametrize("slack", [0.01, 1.0, 100.0])
def test_soft_margins_are_those_in_memory(tmp_path, slack):
    keys, queries, best = problem(200, 6, 6, 5)
    best[::7] = (best[::7] + 1) % 6  # no W separates these
    there = max_margin(Tokens(mapped(tmp_path, keys), queries), best, slack=slack)
    here = max_margin(Tokens(keys, queries), best, slack=slack)
    assert there.certified and here.certified
    np.testing.assert_allclose(there.W, here.W, rtol=0, atol=1e-6 * np.abs(here.W).max())


def test_ties_masks_and_margins_of_their_own(tmp_path):
    keys, queries, best = problem(120, 6, 9, 5)
    keys[::5, 1] = keys[::5, 0]
    selected = best[:, None] == np.arange(6)
    selected[::5] = np.arange(6) < 2  # copies, tied
    keys[::5, :2] += 4 * np.sign(keys[::5, :2].sum(-1, keepdims=True))
    mask = np.ones(keys.shape[:2], bool)
    mask[1::5, 5] = selected[1::5, 5]
    required = np.linspace(0.5, 2, 120)
    stored, memory = Tokens(mapped(tmp_path, keys), queries, mask=mask), Tokens(keys, queries, mask=mask)
    assert separable(stored, selected) == separable(memory, selected)
    there = max_margin(stored, selected, slack=3.0, required=required)
    here = max_margin(memory, selected, slack=3.0, required=required)
    assert there.certified
    np.testing.assert_allclose(there.W, here.W, rtol=0, atol=1e-6 * np.abs(here.W).max())


def test_a_contradiction_is_proved_and_named(tmp_path):
    keys, _, best = problem(300, 6, 10, 1)
    keys[200], best[200] = keys[100], (best[100] + 1) % 6
    with pytest.raises(NotSeparable) as proof:
        max_margin(Tokens(mapped(tmp_path, keys)), best)
    assert {example for example, _ in proof.value.conflict} == {100, 200}
    assert not separable(Tokens(mapped(tmp_path, keys)), best)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_absurd_scales_are_solved_in_units_of_their_own(tmp_path, scale):
    keys, _, best = problem(100, 5, 6, 1, "float64")
    keys[::2] *= scale
    there = max_margin(Tokens(mapped(tmp_path, keys)), best)
    here = max_margin(Tokens(keys), best)
    assert there.certified
    assert frobenius.value(there.W) == pytest.approx(frobenius.value(here.W), rel=SAME)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_solve_shows_its_passes_on_a_terminal_only(tmp_path, terminal, monkeypatch, capsys):
    keys, _, best = problem(300, 6, 12, 1)
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    assert max_margin(Tokens(mapped(tmp_path, keys)), best).certified
    assert not capsys.readouterr().err  # it took a moment only
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert max_margin(Tokens(mapped(tmp_path, keys)), best).certified
    shown = capsys.readouterr()
    assert ("pass 1, pool of" in shown.err, shown.out) == (terminal, "")


@pytest.mark.parametrize("stored", [True, False])
def test_a_row_is_read_again_when_the_weight_has_moved_far_enough(tmp_path, monkeypatch, stored):
    keys, _, best = problem(3000, 8, 20, 1, "float64", seed=2)
    tokens = Tokens(mapped(tmp_path, keys)) if stored else Tokens(keys)
    assert max_margin(tokens, best).certified
    kernel = "doubt" if stored else "price"
    place, real = (1 if stored else 6), getattr(working_set, kernel)

    def forgetful(*args):
        moved = np.where(np.isinf(args[place]), np.inf, 0.0)
        return real(*args[:place], moved, *args[place + 1 :])

    monkeypatch.setattr(working_set, kernel, forgetful)
    monkeypatch.setattr("attsvm.program.solve.refined", lambda rows, norm, answer: answer)
    assert not max_margin(tokens, best).certified


def pivoted(_):
    return Pivoted(route.algorithms)


ENGINES = pytest.mark.parametrize("kind", [pivoted, ActiveSet], ids=["pivoted", "active set"])


@pytest.mark.parametrize("few", [0, 10_000], ids=["many rows at once", "one row at a time"])
def test_both_engines_of_vectors_give_the_answer_in_memory(tmp_path, monkeypatch, few):
    monkeypatch.setattr(route, "ONE_BY_ONE", few)
    keys, best = numbers(600, 8, 60), np.zeros(600, int)
    keys[:, 0] += 1  # a signal: fewer rows hold W than there are dimensions
    there = max_margin(Tokens(mapped(tmp_path, keys)), best)
    here = separate((keys[:, :1] - keys[:, 1:]).astype(float).reshape(-1, 60))
    assert there.certified
    assert there.margin == pytest.approx(here.margin, rel=SAME)


@ENGINES
def test_a_pool_may_gain_rows_and_lose_others(kind, monkeypatch):
    monkeypatch.setattr(working_set, "LARGEST_POOL", 6)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 6)) + 2 * rng.standard_normal(6)
    program = Constraints.of(Tokens(np.stack([rows, 0 * rows], 1)), np.zeros(40, int))
    everything, engine = Rows.of(program), kind(6)
    for count in (20, 35, 40):
        pool = everything.some(np.arange(count))
        stage, direct = engine(pool), separate(rows[:count])
        W = stage.candidate.W / (rows[:count] @ stage.candidate.W).min()
        np.testing.assert_allclose(W, direct.W, rtol=1e-9, atol=1e-12)
        assert (stage.retained is None) == (count < 40)
    assert stage.retained.sum() == 18 and stage.retained[stage.candidate.multipliers > 0].all()
    again = engine(pool.some(stage.retained)).candidate
    retained = rows[stage.retained]
    np.testing.assert_allclose(again.W / (retained @ again.W).min(), direct.W, rtol=1e-9, atol=1e-12)
    wrong = separate(rows[:20])
    assert np.abs(wrong.W - direct.W).max() > 1e-6


@ENGINES
def test_an_engine_proves_a_contradiction(kind):
    keys = np.array([[[1.0, 0], [0, 0]], [[-1.0, 0], [0, 0]]])
    proof = kind(2)(Rows.of(Constraints.of(Tokens(keys), [0, 0]))).candidate
    assert not proof.separable
    np.testing.assert_allclose(proof.multipliers / proof.multipliers.max(), [1, 1], rtol=1e-12)
    assert kind(2)(Rows.of(Constraints.of(Tokens(keys[:1]), [0]))).candidate.separable


@pytest.mark.parametrize("slack", [None, 1.0])
def test_examples_without_a_choice_ask_for_nothing(tmp_path, slack):
    keys, queries, best = problem(100, 4, 5, 3)
    mask = np.ones((100, 4), bool)
    mask[:90] = best[:90, None] == np.arange(4)
    for alone in (mask, best[:, None] == np.arange(4)):
        tokens, memory = (
            Tokens(mapped(tmp_path, keys), queries, mask=alone),
            Tokens(keys, queries, mask=alone),
        )
        there, here = max_margin(tokens, best, slack=slack), max_margin(memory, best, slack=slack)
        assert there.certified
        np.testing.assert_allclose(there.W, here.W, rtol=0, atol=1e-9)
        prompts = Tokens(mapped(tmp_path, keys), mask=alone)
        assert max_margin(prompts, best, slack=1.0).certified
    assert not there.W.any()


def test_no_margin_asked_is_no_weight(tmp_path):
    keys, _, best = problem(50, 4, 5, 1)
    assert not max_margin(Tokens(mapped(tmp_path, keys)), best, required=0.0).W.any()


def violated(program, W, exact=False):
    return Slacks(program, exact).worst(W)[1]


def test_a_row_that_is_hardly_violated_joins_only_where_every_digit_counts():
    keys, _, best = problem(30, 4, 5, 1, "float64")
    program = Constraints.of(Tokens(keys), best)
    W = max_margin(Tokens(keys), best).W * (1 - 1e-12)
    assert len(violated(program, W, exact=True))
    assert not len(violated(program, W))
    assert len(violated(program, W * (1 - 1e-9)))


def test_what_an_example_pays_for_is_no_violation():
    keys, _, best = problem(30, 4, 5, 1, "float64")
    program, W = Constraints.of(Tokens(keys), best), np.zeros((5, 1))
    enough = np.where(np.arange(30) < 20, 1.0, 0.5)
    violated, _ = Slacks(program).worst(W, allowed=enough)
    assert set(violated.example.tolist()) == set(range(20, 30))


def test_a_row_that_is_zero_stays_where_it_is_asked_for_or_paid_for():
    keys, _, best = problem(6, 4, 5, 1, "float64")
    keys[2, (best[2] + 1) % 4] = keys[2, best[2]]
    program = Constraints.of(Tokens(keys), best)
    priced = Constraints.of(Tokens(keys), best, slack=np.ones(6))
    assert [len(Rows.of(program)), len(Rows.of(program, zeros=True)), len(Rows.of(priced))] == [17, 18, 18]
