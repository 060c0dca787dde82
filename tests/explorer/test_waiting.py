"""K and Q of the page: a twin of KeyQuery and of kkt_point, and a preset that waits at rank one."""

import re
from functools import cache

import numpy as np
import pytest

import attsvm as att
from attsvm.explorer import presets
from attsvm_lab.programs import leaving_exponent
from tests.explorer.conftest import load
from tests.explorer.test_engine import EQUAL, PROBLEM, SAME

STEP = 0.01
RUNS = 20
P = 3.0
"""Exponent of the rules that ask for one."""

OPTIMIZERS = {
    "normalised": att.steepest(att.frobenius, STEP),
    "gd": att.gd(STEP),
    "sign": att.steepest(att.linf, STEP),
    "coordinate": att.steepest(att.l1, STEP),
    "steepest": att.steepest(att.Entrywise(P), STEP),
    "schatten": att.steepest(att.Schatten(P), STEP),
    "spectral": att.steepest(att.spectral, STEP),
    "mirror": att.mirror(P, STEP),
}
TRAIN = (
    PROBLEM
    + """
const {LOSSES, RULES, advance, compiled, newRun} = await import("explorer/training.js");
const [name, lr, steps, keys, queries, labels, scores, starts, factored] = given;
const rule = RULES[name](3);
return keys.map((each, r) => {
  const data = compiled(problemOf(each, queries[r], labels[r], scores[r]), LOSSES.logistic);
  const run = newRun(starts[r], rule, null, factored);
  advance(data, run, rule, lr, steps);
  return [[...run.W], [...run.trained]];
});
"""
)


def random_problem():
    """Tokens with two inputs, their heads, and random starts W."""
    tokens, v = att.datasets.sphere(2, 4, 2, seed=range(RUNS))
    return tokens, v, np.random.default_rng(3).standard_normal((RUNS, 2, 2))


def on_the_page(engine, name, steps, problem, factored):
    """W (runs, 2, 2) after so many steps; and K and Q."""
    tokens, v, starts = problem
    arrays = (tokens.keys, tokens.queries, tokens.labels, att.scores(tokens, v), starts.reshape(RUNS, 4))
    runs = engine.run(TRAIN, name, STEP, steps, *(array.tolist() for array in arrays), factored)
    W, trained = (np.array(part) for part in zip(*runs, strict=True))
    return W.reshape(RUNS, 2, 2), trained.reshape(RUNS, -1, 2, 2)


def test_a_weight_is_divided_into_balanced_factors(engine):
    W, factors = on_the_page(engine, "gd", 0, random_problem(), True)
    K, Q = factors[:, 0], factors[:, 1]
    np.testing.assert_allclose(K @ Q.swapaxes(1, 2), W, rtol=0, atol=EQUAL)
    np.testing.assert_allclose(K.swapaxes(1, 2) @ K, Q.swapaxes(1, 2) @ Q, rtol=0, atol=EQUAL)
    assert (np.linalg.det(W) < 0).any() and (np.linalg.det(W) > 0).any()


@pytest.mark.parametrize(
    ("name", "factored"),
    [("normalised", True), ("schatten", True), ("spectral", True), ("schatten", False)],
)
def test_matrices_after_five_hundred_steps_are_where_the_package_is(engine, name, factored):
    problem = random_problem()
    tokens, v, start = problem
    if factored:
        factors = on_the_page(engine, name, 0, problem, True)[1]
        start = (factors[:, 0], factors[:, 1])
    weight = att.KeyQuery() if factored else att.FullWeight()
    path = att.train(
        tokens, att.Linear(v), weight=weight, optimizer=OPTIMIZERS[name], steps=500, init=start, record=[500]
    )
    near = SAME * np.abs(path.final).max((-2, -1), keepdims=True)
    W, _ = on_the_page(engine, name, 500, problem, factored)
    assert (np.abs(W - path.final) < near).all()
    one_less, _ = on_the_page(engine, name, 499, problem, factored)
    assert (np.abs(one_less - path.final) > 10 * near).any((-2, -1)).all()


LIMITS = """
const {completed} = await import("explorer/fields.js"), {limitNorm} = await import("explorer/model.js");
const state = completed({inputs: [{tokens: [[0, 1], [1, 0]], query: [1, 0]}]});
return given[0].map(([rule, ruleP, trained]) => {
  const limit = limitNorm({...state, rule, ruleP, trained});
  return limit && [limit.singular, limit.p === Infinity ? "inf" : limit.p];
});
"""


def limit_of(weight, rule):
    """The norm that the package names; None where it knows no program."""
    try:
        return att.limit_norm(weight, rule).norm
    except att.NoTheorem:
        return None


def test_the_limits_of_matrices_that_the_page_names_are_those_of_limit_norm(engine):
    rules = [(name, P, rule) for name, rule in OPTIMIZERS.items()]
    rules += [("schatten", p, att.steepest(att.Schatten(p), STEP)) for p in (2.0, 4.0, 6.0)]
    for trained, weight in (("p", att.FullWeight()), ("kq", att.KeyQuery())):
        asked = [[name, p, trained] for name, p, _ in rules]
        for (name, p, rule), limit in zip(rules, engine.run(LIMITS, asked), strict=True):
            norm = limit_of(weight, rule)
            if limit is not None:
                norms = att.Schatten if limit[0] else att.Entrywise
                limit = att.frobenius if limit[1] == 2 else norms(float(limit[1]))
            assert limit == (att.frobenius if norm == att.Schatten(2.0) else norm), (name, p, trained)
    assert engine.run(LIMITS, [["schatten", 4, "kq"], ["schatten", 4, "p"]]) == [[True, 2], [True, 4]]


# ---------------------------------------------------------------------- the preset

PRESET = next(preset for preset in presets() if preset["id"] == "waiting")
STATE = PRESET["state"]
TOKENS = att.Tokens(
    np.array([each["tokens"] for each in STATE["inputs"]]),
    np.array([each["query"] for each in STATE["inputs"]]),
)
HEAD = np.array(STATE["head"])
START = np.array(STATE["starts"]["points"][0])
NORMS = {"gradient descent": att.frobenius, "Schatten-4 steps": att.Schatten(4.0), "Muon": att.spectral}
NEAR = 0.02
"""Of steps that are read between two records, five percent apart, and of a power law beside a stop."""

WAITS = """
const {LOSSES} = await import("explorer/training.js"), {completed} = await import("explorer/fields.js");
const {comparison, waitingWords} = await import("explorer/waiting.js");
const {problemOf} = await import("explorer/state.js");
const preset = explorer.presets.find(({id}) => id === "waiting"), [patch, start, steps] = given;
const state = completed({...preset.state, ...patch});
const runs = comparison(problemOf(state), LOSSES[state.loss], state, start);
for (const run of runs) run.advance(steps, 1e9);
return Object.fromEntries(waitingWords(runs, runs[0].known));
"""


def waits(engine, start=START, steps=9_000, **patch):
    """What the page says of each optimizer."""
    return engine.run(WAITS, patch, list(start), steps)


def count(words):
    """The steps at the beginning of a sentence."""
    return int(re.match(r"([\d,]+) steps?\.", words)[1].replace(",", ""))


def predicted(words):
    return int(re.search(r"which predicts ([\d,]+) steps", words)[1].replace(",", ""))


@cache
def leaves(norm):
    """The first step of the package's training at which σ₂ is a tenth of σ₁."""
    steps = 5_000 if norm == att.frobenius else 300
    root = np.sqrt(np.diag(START.reshape(2, 2)))
    path = att.train(
        TOKENS, att.Linear(HEAD), weight=att.KeyQuery(), optimizer=att.steepest(norm, STATE["lr"]),
        steps=steps, init=(np.diag(root), np.diag(root)), record=np.arange(steps + 1),
    )  # fmt: skip
    sizes = np.linalg.svd(path.W, compute_uv=False)
    return path.index[(sizes[:, 1] >= 0.1 * sizes[:, 0]).argmax()]


def test_the_words_of_the_preset_are_true_of_the_trainings_of_the_package(engine):
    said = waits(engine)
    for name, norm in NORMS.items():
        assert count(said[name]) == pytest.approx(leaves(norm), rel=NEAR, abs=1)
    assert predicted(said["gradient descent"]) == pytest.approx(leaves(att.frobenius), rel=NEAR)
    assert predicted(said["gradient descent"]) != pytest.approx(leaves(att.Schatten(4.0)), rel=1.0)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\b\d[\d,]*\d\b", PRESET["advice"])]
    ours = [leaves(norm) for norm in NORMS.values()]
    np.testing.assert_allclose(sorted(numbers), sorted(ours), rtol=0.05)


def test_gradient_descent_waits_by_its_power_law_and_schatten_4_steps_do_not(engine):
    near, far = (waits(engine, [3, 0, 0, 3 * share]) for share in (1e-3, 1e-7))
    assert count(far["gradient descent"]) > 8 * count(near["gradient descent"])
    assert predicted(far["gradient descent"]) == pytest.approx(count(far["gradient descent"]), rel=NEAR)
    for name in ("Schatten-4 steps", "Muon"):
        assert count(far[name]) < 1.4 * count(near[name])
        assert "waits" not in far[name]


def test_a_smaller_pull_a_wrong_sign_and_a_zero_are_not_waited_for(engine):
    flat = [each | {"query": [1, 0.5 * each["query"][1] / 2]} for each in STATE["inputs"]]
    starts = {
        "keep the sign of det W": [3, 0, 0, -3e-6],
        "σ₂ = 0 stays zero": [3, 0, 0, 0],
        "does not come near": [3, 1, 1, 2],
        "nothing is predicted": [0, 0, 0, 0],
        "waits at rank one": START,
    }
    for words, start in starts.items():
        assert words in waits(engine, start, 300)["gradient descent"]
    said = waits(engine, inputs=flat)["gradient descent"]
    assert said.startswith("not within 8,") and "nothing pulls harder" in said


STANDING = (
    PROBLEM
    + """
const {LOSSES, compiled} = await import("explorer/training.js");
const {standing} = await import("explorer/waiting.js");
const [keys, queries, scores, weights] = given;
const data = compiled(problemOf(keys, queries, null, scores), LOSSES.logistic);
return weights.map((W) => standing(data, W));
"""
)


def test_where_a_weight_stands_is_what_kkt_point_says(engine):
    rng = np.random.default_rng(4)
    tokens = att.Tokens(TOKENS.keys + 0.1 * rng.standard_normal(TOKENS.keys.shape), TOKENS.queries)
    turn = np.array([[np.cos(0.1), -np.sin(0.1)], [np.sin(0.1), np.cos(0.1)]])
    weights = [np.diag([3, 3e-6]), turn @ np.diag([5, 1e-3]), np.diag([4.0, 2.0]), [[30.0, 0.2], [0.1, 0.01]]]
    arrays = (tokens.keys, tokens.queries, att.scores(tokens, HEAD), np.reshape(weights, (-1, 4)))
    page = engine.run(STANDING, *(np.asarray(array).tolist() for array in arrays))
    verdicts = set()
    for W, said in zip(weights, page, strict=True):
        U, sizes, Vt = np.linalg.svd(W)
        K, Q = U * np.sqrt(sizes), Vt.T * np.sqrt(sizes)
        point = att.kkt_point(att.Path.of(tokens, [(K, Q)]), HEAD)
        assert said["alignment"] == pytest.approx(point.alignment, rel=EQUAL)
        assert said["stop"] == (point.status == "stop")
        verdicts.add(point.status)
        if point.rank == 1:
            assert said["pull"] == pytest.approx(point.pull, rel=EQUAL)
            assert said["power"] == pytest.approx(leaving_exponent(point), rel=EQUAL)
    assert "stop" in verdicts and len(verdicts) > 1


FAR = """
const {LOSSES} = await import("explorer/training.js"), {derived} = await import("explorer/model.js");
const {Simulation, turnBetween} = await import("explorer/simulation.js");
const {completed} = await import("explorer/fields.js");
const preset = explorer.presets.find(({id}) => id === "waiting");
const state = completed({...preset.state, rule: given[0], ruleP: 4});
const {problem, loss, solution} = derived(state, new Map());
const end = (usual) => {
  const run = new Simulation(problem, loss, state, state.starts.points, {usual});
  run.advance(30000, 60000);
  return turnBetween(run.runs[0].W, solution.w);
};
return [end(false), end(true)];
"""


@pytest.mark.parametrize("rule", ["normalised", "schatten"])
def test_past_saturation_k_and_q_turn_to_the_program_and_the_usual_formula_stalls(engine, rule):
    ours, usual = engine.run(FAR, rule)
    assert ours < 1e-6 < 1e-3 < usual


# ---------------------------------------------------------------------- the page

FIGURE = """
const figure = document.getElementById("waiting"), { waits } = explorer.charts;
return [figure.hidden, document.getElementById("waits").textContent,
        document.getElementById("chart-spectrum").getAttribute("aria-label"), waits];
"""
SLIDE = """
const slider = document.getElementById("spare");
slider.value = given[0];
slider.dispatchEvent(new Event("input"));
"""


def test_the_preset_shows_and_reads_out_how_long_each_optimizer_waits(browser):
    browser.complaints()
    load(browser, "waiting", time=10_000)
    hidden, words, label, waits = browser.run(FIGURE)
    assert not hidden and "waits at rank one" in words
    assert all(sentence in label and sentence in words for _, sentence in waits)
    load(browser, "two-fans")
    assert browser.run(FIGURE)[0]
    assert browser.complaints() == []


def test_the_slider_of_the_start_changes_how_long_gradient_descent_waits(browser):
    load(browser, "waiting", time=10_000)
    before = dict(browser.run(FIGURE)[3])
    browser.run(SLIDE, "-3")
    browser.settle()
    after = dict(browser.run(FIGURE)[3])
    assert browser.run("return explorer.state.starts.points[0]") == pytest.approx([3, 0, 0, 3e-3])
    assert count(after["gradient descent"]) < count(before["gradient descent"]) / 3
    assert count(after["Muon"]) > count(before["Muon"]) / 3
