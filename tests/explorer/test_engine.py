"""The engine inside the page is a twin of the package: same programs, same conflicts, same training."""

import math
from dataclasses import replace

import numpy as np
import pytest

import attsvm as att

RUNS, DEGENERATE, N, T = 500, 100, 3, 4
NORMS = (1.0, 1.5, 2.0, 3.0, math.inf)
EQUAL = 1e-9
"""How near the margins must be; the package's own gap is below 1e-10, the page's below 1e-13."""

PROBLEM = """
const problemOf = (keys, queries, labels, scores) => ({inputs: keys.map((tokens, i) => ({
  tokens, query: queries ? queries[i] : [1], label: labels ? labels[i] : 1,
  scores: scores ? scores[i] : tokens.map(() => 0)}))});
"""
SOLVE = (
    PROBLEM
    + """
const {maxMargin} = await import("explorer/program.js");
const [keys, selected, p, queries] = given;
return keys.map((each, r) => {
  const chosen = selected[r].map((t) => [t].flat());
  const s = maxMargin(problemOf(each, queries && queries[r]), chosen, p ?? Infinity);
  return {feasible: s.feasible, w: s.w ?? null, margin: s.margin ?? 0, multipliers: Array.from(s.multipliers),
          rows: s.rows.map(({input, token}) => [input, token]), conflict: s.conflict ?? null};
});
"""
)


def instances(p):
    """Random tokens, some on a grid: equal, opposite and parallel rows.

    Half of the selections are those of a direction, so that they can be separated.
    """
    rng, runs = np.random.default_rng(int(10 * min(p, 9))), RUNS + DEGENERATE
    keys = rng.standard_normal((runs, N, T, 2))
    keys[RUNS:] = keys[RUNS:].round()
    best = np.einsum("rntd,rd->rnt", keys, rng.standard_normal((runs, 2))).argmax(-1)
    any_token = rng.integers(T, size=(runs, N))
    return att.Tokens(keys), np.where((np.arange(runs) % 2 == 0)[:, None], best, any_token)


@pytest.fixture(scope="module", params=NORMS, ids=lambda p: f"l{p:g}")
def solved(request, engine):
    """p, the package's solutions and the page's answers."""
    p = request.param
    tokens, selected = instances(p)
    given = tokens.keys.tolist(), selected.tolist(), None if math.isinf(p) else p, None
    return att.max_margin(tokens, selected, att.Entrywise(p)), engine.run(SOLVE, *given)


def test_the_page_and_the_package_agree_on_which_selections_can_be_separated(solved):
    solution, answers = solved
    assert [answer["feasible"] for answer in answers] == solution.separable.tolist()
    assert 0.3 < solution.separable.mean() < 0.9


def test_the_margins_of_the_page_are_those_of_the_package(solved):
    solution, answers = solved
    margins = np.array([answer["margin"] for answer in answers])
    np.testing.assert_allclose(margins, solution.margin, rtol=EQUAL, atol=0)


def certificate_of(solution, answers):
    """The package's certificate, taken of the page's weights and multipliers."""
    can = np.flatnonzero(solution.separable)
    parts = {name: np.array([answers[k][name] for k in can]) for name in ("w", "multipliers")}
    tokens = att.Tokens(solution.tokens.keys[can])
    return replace(
        solution,
        tokens=tokens,
        selected=solution.selected[can],
        required=solution.required[can],
        separable=solution.separable[can],
        W=parts["w"][..., None],
        multipliers=parts["multipliers"],
    ).certificate


def test_the_package_certifies_the_weights_and_multipliers_of_the_page(solved):
    found = certificate_of(*solved)  # counts rounding against the page, which grows with 1/margin
    assert (found.worst * solved[0].margin[solved[0].separable]).max() < 1e-12


def test_weights_of_another_norm_are_not_certified(solved):
    solution, answers = solved
    other = att.Entrywise(2.0 if solution.norm.p != 2 else 3.0)
    assert np.median(certificate_of(replace(solution, norm=other), answers).worst) > 1e-4


def test_in_l2_the_weights_themselves_are_equal(solved):
    solution, answers = solved
    can = np.flatnonzero(solution.separable) if solution.norm.p == 2 else []
    for k in can:
        np.testing.assert_allclose(
            answers[k]["w"], solution.W[k, :, 0], rtol=0, atol=EQUAL * 1 / solution.margin[k]
        )


def test_the_tokens_in_conflict_contradict_each_other_and_no_fewer_do(solved):
    solution, answers = solved
    lost = [k for k, answer in enumerate(answers) if not answer["feasible"]]
    for drop in (False, True):
        mask = np.zeros((len(lost), N, T), bool)
        for row, k in enumerate(lost):
            pairs = answers[k]["conflict"][1 if drop else 0 :]
            mask[row, np.arange(N), solution.selected[k].argmax(-1)] = True
            for pair in pairs:
                mask[row, pair["input"], pair["token"]] = True
        tokens = att.Tokens(solution.tokens.keys[lost], mask=mask)
        assert (att.separable(tokens, solution.selected[lost]) == drop).all()


def test_the_proof_of_a_conflict_adds_up_to_zero(solved):
    solution, answers = solved
    for k, answer in enumerate(answers):
        if answer["feasible"]:
            continue
        keys, anchor = solution.tokens.keys[k], solution.selected[k].argmax(-1)
        rows = np.array([keys[i, anchor[i]] - keys[i, t] for i, t in answer["rows"]])
        weights = np.array(answer["multipliers"])
        assert weights.min() >= 0 and weights.max() > 0
        assert np.abs(weights @ rows).max() < 1e-13 * np.abs(rows).max()


# ---------------------------------------------------------------------- ties, joint, weights, ring


def test_tied_tokens_get_equal_logits_as_in_the_package(engine):
    rng = np.random.default_rng(5)
    keys = rng.standard_normal((60, 1, 4, 2))
    chosen = np.zeros((60, 1, 4), bool)
    chosen[..., :2] = True
    solution = att.max_margin(att.Tokens(keys), chosen, att.Entrywise(3.0))
    answers = engine.run(SOLVE, keys.tolist(), [[[0, 1]]] * 60, 3, None)
    assert [answer["feasible"] for answer in answers] == solution.separable.tolist()
    assert 0.2 < solution.separable.mean() < 0.9
    np.testing.assert_allclose([answer["margin"] for answer in answers], solution.margin, rtol=1e-8)


WORDS = (
    PROBLEM
    + """
const {maxMargin} = await import("explorer/program.js");
return given.map(([keys, chosen]) => maxMargin(problemOf(keys), chosen, 2).reason);
"""
)


def test_a_conflict_is_told_in_a_sentence(engine):
    triangle, line = [[0, 0], [2, 0], [0, 2], [0.5, 0.5]], [[0, 0], [1, 1], [2, 2]]
    same, tied = [[1, 1], [1, 1]], [[0, 0], [2, 0], [1, 0]]
    crossed = [[[0, 0], [1, 0]], [[0, 0], [1, 0]]]
    asked = [[[triangle], [[3]]], [[line], [[1]]], [[same], [[0]]], [[tied], [[0, 1]]], [crossed, [[0], [1]]]]
    told = engine.run(WORDS, *asked)
    assert told[0] == "Token 1d lies inside the triangle of 1a, 1b and 1c: no direction ranks it highest."
    assert told[1] == "Token 1b lies between 1a and 1c: no direction ranks it highest."
    assert told[2] == "Tokens 1a and 1b are the same point: nothing ranks one above the other."
    assert told[3] == "With the tie 1a = 1b no direction puts 1a above 1c."
    assert told[4] == "Inputs 1 and 2 contradict each other: no direction puts 1a above 1b and 2b above 2a."


RELAX = (
    PROBLEM
    + """
const {maxMargin, headProgram, relaxedProgram} = await import("explorer/program.js");
const [keys, labels] = given, problem = problemOf(keys, null, labels), chosen = keys.map(() => [1]);
const head = headProgram(problem, chosen, 2);
return [head.w, maxMargin(problem, chosen, 2).w, relaxedProgram(problem, chosen, 2, head).w];
"""
)


@pytest.mark.parametrize(("third", "relaxed"), [((0.5, 1.0), (4 / 3, 1 / 3)), ((0.5, 1.5), (1.0, 0.0))])
def test_the_joint_programs_are_those_of_the_third_figure(engine, third, relaxed):
    tokens, _ = att.datasets.joint_training(third)
    v, p, loose = engine.run(RELAX, tokens.keys.tolist(), tokens.labels.tolist())
    np.testing.assert_allclose(v, (0, 1), atol=1e-12)
    np.testing.assert_allclose(p, att.max_margin(tokens, [1, 1, 1]).W[:, 0], atol=1e-9)
    np.testing.assert_allclose(loose, relaxed, atol=1e-12)


@pytest.mark.parametrize("p", [1.2, 1.75, 2.0, 3.0, 6.0])
def test_programs_of_weights_with_queries_are_those_of_the_package(engine, p):
    tokens, _ = att.datasets.sphere(2, 4, 2, seed=range(30))
    selected = np.random.default_rng(1).integers(4, size=(30, 2))
    solution = att.max_margin(tokens, selected, att.Entrywise(p))
    answers = engine.run(SOLVE, tokens.keys.tolist(), selected.tolist(), p, tokens.queries.tolist())
    assert [answer["feasible"] for answer in answers] == solution.separable.tolist()
    np.testing.assert_allclose([answer["margin"] for answer in answers], solution.margin, rtol=EQUAL)


GAPS = (
    PROBLEM
    + """
const {certificate, maxMargin} = await import("explorer/program.js");
const [keys, queries, p, other] = given;
const all = keys.map((each, r) => maxMargin(problemOf(each, queries[r]), each.map(() => [0]), p));
return all.filter(({feasible}) => feasible).map((s) => [
  Math.max(s.certificate.gap, s.certificate.primal), certificate(s.rows, s.w, s.multipliers, other).gap]);
"""
)


@pytest.mark.parametrize(("p", "other"), [(1.1, 2.0), (3.0, 2.0), (8.0, 3.0)])
def test_programs_of_weights_prove_themselves_even_where_margins_are_thin(engine, p, other):
    rng = np.random.default_rng(4)
    keys, queries = rng.standard_normal((150, 3, 4, 2)), rng.standard_normal((150, 3, 2))
    found = np.array(engine.run(GAPS, keys.tolist(), queries.tolist(), p, other))
    assert len(found) > 50
    assert np.median(found[:, 0]) < 2e-12 and found[:, 0].max() < 2e-6
    assert np.median(found[:, 1]) > 1e-3  # another norm is not proved


RANK = (
    PROBLEM
    + """
const {ranked} = await import("explorer/selections.js"), {LOSSES} = await import("explorer/training.js");
return given[0].map((keys, r) => ranked(problemOf(keys, null, null, given[1][r]), 2, LOSSES.logistic)
  .filter(({local}) => local || given[2]).map(({selected}) => selected.map(([t]) => t)));
"""
)


@pytest.mark.parametrize("every", [False, True], ids=["locally optimal", "separable"])
def test_the_selections_on_the_ring_are_those_of_the_package(engine, every):
    tokens, v = att.datasets.prompt_sphere(3, 4, 2, seed=range(12))
    gamma = att.scores(tokens, v)
    found = engine.run(RANK, tokens.keys.tolist(), gamma.tolist(), every)
    for k in range(12):
        ours = att.selections(tokens.run(k), None if every else v[k])
        assert sorted(found[k]) == sorted(s.selected.argmax(-1).tolist() for s in ours)


# ---------------------------------------------------------------------- training

STEP = 0.1


def optimizers(lr):
    """The rules of the page as the package has them; p = 3 where they ask for one."""
    return {
        "normalised": att.steepest(att.frobenius, lr),
        "gd": att.gd(lr),
        "sign": att.steepest(att.linf, lr),
        "coordinate": att.steepest(att.l1, lr),
        "steepest": att.steepest(att.Entrywise(3.0), lr),
        "mirror": att.mirror(3.0, lr),
    }


OPTIMIZERS = optimizers(STEP)
TRAIN = (
    PROBLEM
    + """
const {LOSSES, RULES, advance, compiled, newRun} = await import("explorer/training.js");
const [name, lr, loss, steps, keys, queries, labels, scores, starts, heads, factored] = given;
const rule = RULES[name](3);
return keys.map((each, r) => {
  const data = compiled(problemOf(each, queries[r], labels[r], scores[r]), LOSSES[loss]);
  const run = newRun(starts[r], rule, heads && heads[r], factored);
  advance(data, run, rule, lr, steps);
  return [...run.W, ...(run.v ?? [])];
});
"""
)
SAME = 1e-8


def trained(tokens, v, name, starts, loss, head):
    """The package's last weights and heads, and what the page needs for its own."""
    rule = OPTIMIZERS[name]
    path = att.train(
        tokens, att.Linear(v), optimizer=rule, train_head=rule if head else None, loss=getattr(att, loss),
        steps=1_000, init=starts, record=[1_000],
    )  # fmt: skip
    scores = att.scores(tokens, v)
    last = path.final.reshape(len(starts), -1)
    given = (tokens.keys, tokens.queries, tokens.labels, scores, starts.reshape(len(starts), -1))
    return np.hstack([last, path.v[:, -1]]) if head else last, [array.tolist() for array in given]


LOSSES = {"gd": "exponential", "sign": "correlation"}


@pytest.mark.parametrize(("name", "loss"), [(name, LOSSES.get(name, "logistic")) for name in OPTIMIZERS])
def test_after_a_thousand_steps_the_page_is_where_the_package_is(engine, name, loss):
    tokens, v = att.datasets.several_inputs(seed=range(50))
    starts = np.random.default_rng(2).standard_normal((50, 2, 1))
    ours, given = trained(tokens, v, name, starts, loss, head=False)
    page = np.array(engine.run(TRAIN, name, STEP, loss, 1_000, *given, None))
    assert np.abs(page - ours).max() < SAME
    one_less = np.array(engine.run(TRAIN, name, STEP, loss, 999, *given, None))
    assert np.abs(one_less - ours).max() > 10 * SAME


def test_an_input_of_one_token_pulls_nowhere(engine):
    tokens, v = att.datasets.several_inputs(seed=0)
    keys, gamma, start = tokens.keys.tolist(), att.scores(tokens, v).tolist(), [[0.3, -0.2]]
    more = [[*keys, [[5.0, 1.0]]]], [None], [None], [[*gamma, [2.0]]]
    both = [
        engine.run(TRAIN, "normalised", STEP, "logistic", 100, *given, start, None)
        for given in (([keys], [None], [None], [gamma]), more)
    ]
    np.testing.assert_allclose(*both, rtol=0, atol=1e-12)
    crowd = [[*keys, [[5.0, 1.0], [0.0, 0.0]]]], [None], [None], [[*gamma, [2.0, 0.0]]]
    turned = engine.run(TRAIN, "normalised", STEP, "logistic", 100, *crowd, start, None)
    assert np.abs(np.subtract(turned, both[0])).max() > 0.01


def test_head_and_weight_train_together_as_in_the_package(engine):
    tokens, v = att.datasets.sphere(2, 4, 2, seed=range(50))
    starts = np.random.default_rng(2).standard_normal((50, 2, 2))
    ours, given = trained(tokens, v, "gd", starts, "logistic", head=True)
    page = np.array(engine.run(TRAIN, "gd", STEP, "logistic", 1_000, *given, v.tolist()))
    assert np.abs(page - ours).max() < SAME


SATURATE = """
const {Simulation, turnBetween} = await import("explorer/simulation.js");
const {derived} = await import("explorer/model.js"), {completed} = await import("explorer/fields.js");
const state = completed(explorer.presets[0].state), now = derived(state, new Map());
const end = (usual) => {
  const run = new Simulation(now.problem, now.loss, state, [[0, 1]], {usual});
  run.advance(100000, 60000);
  return turnBetween(run.runs[0].W, now.solution.w);
};
return [end(false), end(true)];
"""


def test_past_saturation_only_the_gradient_relative_to_the_winner_goes_on(engine):
    ours, usual = engine.run(SATURATE)
    assert ours < 1e-6 < 1e-5 < usual


def tied_problems(seed, count=60, n=3, T=4):
    """Scores of whole numbers, copies of tokens, queries of zero, and starts far past saturation."""
    rng = np.random.default_rng(seed)
    keys, queries = rng.standard_normal((count, n, T, 2)).round(1), rng.standard_normal((count, n, 2))
    keys[::3, :, 1] = keys[::3, :, 0]
    queries[::4, 0] = 0
    scores = rng.integers(0, 3, (count, n, T)) * 0.1
    starts = rng.standard_normal((count, 2, 2)) * 10 ** rng.uniform(0, 3.5, (count, 1, 1))
    labels = rng.choice([-1.0, 1.0], (count, n))
    rounded = scores * (1 + 2.0**-52 * rng.integers(-1, 2, scores.shape))  # as sums of products may be
    return att.Tokens(keys, queries, labels, values=(scores * labels[..., None])[..., None]), rounded, starts


@pytest.mark.parametrize("name", ["normalised", "mirror"])
def test_tied_scores_copies_and_blind_queries_hide_no_other_token_as_in_the_package(engine, name):
    tokens, scores, starts = tied_problems(7)
    rule = {"optimizer": optimizers(1.0)[name], "loss": att.correlation, "init": starts}
    path = att.train(tokens, att.Linear(np.ones(1)), steps=3, record=[3], **rule)
    ours = path.final.reshape(len(starts), 4)
    gap = np.sort(np.einsum("rntd,rde,rne->rnt", tokens.keys, starts, tokens.queries), -1)
    assert ((gap[..., -1] - gap[..., -2]).min(-1) > 745).any()  # where a gradient beside 1 is no float64
    asked = (tokens.keys, tokens.queries, tokens.labels, scores, starts.reshape(len(starts), 4))
    page = np.array(engine.run(TRAIN, name, 1.0, "correlation", 3, *(x.tolist() for x in asked), None))
    np.testing.assert_allclose(page, ours, rtol=0, atol=1e-9 * np.abs(starts).max())
    assert (np.abs(page - asked[-1]).max(1) > 0).mean() > 0.8
