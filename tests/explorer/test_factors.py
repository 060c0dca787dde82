"""The prompt as a product of factors, p = k ⊙ q: a twin of and the law of halves."""

import json

import numpy as np
import pytest

import attsvm as att
from attsvm.explorer import presets
from tests.explorer.conftest import load
from tests.explorer.test_engine import EQUAL, LOSSES, SAME, TRAIN, optimizers

STEP = 0.03
"""With 0.1 the last of a thousand steps move p by lr² t = 10, to and fro between tokens: rounding grows."""

OPTIMIZERS = optimizers(STEP)


def factored(tokens):
    """The tokens of a prompt p as those of W = diag(p): their queries are ones."""
    return att.Tokens(
        tokens.keys, queries=np.ones((*tokens.keys.shape[:2], 2)), labels=tokens.labels, values=tokens.values
    )


def trained(tokens, v, starts, rule, loss):
    """The last p = k ⊙ q of the package, from k = 1 and q = the start."""
    path = att.train(
        factored(tokens), att.Linear(v), weight=att.Diagonal(2), optimizer=rule,
        loss=getattr(att, loss), steps=1_000, init=(np.ones_like(starts), starts), record=[1_000],
    )  # fmt: skip
    return np.diagonal(path.final, axis1=-2, axis2=-1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_factors_after_a_thousand_steps_are_where_the_package_is(engine, name):
    tokens, v = att.datasets.several_inputs(seed=range(50))
    starts, loss = np.random.default_rng(2).standard_normal((50, 2)), LOSSES.get(name, "logistic")
    ours = trained(tokens, v, starts, OPTIMIZERS[name], loss)
    data = (tokens.keys, tokens.queries, tokens.labels, att.scores(tokens, v), starts)
    given = [array.tolist() for array in data]
    near = SAME * np.abs(ours).max(-1, keepdims=True)  # a product grows by the square of the steps
    page = np.array(engine.run(TRAIN, name, STEP, loss, 1_000, *given, None, True))
    assert (np.abs(page - ours) < near).all()
    one_less = np.array(engine.run(TRAIN, name, STEP, loss, 999, *given, None, True))
    assert (np.abs(one_less - ours) > 10 * near).any(-1).all()


LIMITS = """
const {completed} = await import("explorer/fields.js"), {limitExponent} = await import("explorer/model.js");
const state = completed({inputs: [{tokens: [[0, 1], [1, 0]]}], ruleP: 3});
return given[0].map(([rule, trained]) => {
  const limit = limitExponent({...state, rule, trained});
  return limit === Infinity ? "inf" : limit;
});
"""


def exponent_of(weight, rule):
    """The exponent that the package names; None where it knows no program."""
    try:
        return att.limit_norm(weight, rule).norm.p
    except att.NoTheorem:
        return None


def test_the_limits_that_the_page_names_are_those_of_limit_norm(engine):
    for trained, weight in (("p", att.FullWeight()), ("kq", att.Diagonal(2))):
        told = [x and float(x) for x in engine.run(LIMITS, [[name, trained] for name in OPTIMIZERS])]
        ours = [exponent_of(weight, rule) for rule in OPTIMIZERS.values()]
        assert [x if x is None or x >= 1 else None for x in told] == ours
    assert told[list(OPTIMIZERS).index("coordinate")] == 0.5  # named by the law, but no norm
    assert ours.count(None) == 2


PROGRAMS = """
const {completed} = await import("explorer/fields.js"), {derived} = await import("explorer/model.js");
return given[0].map((keys, r) => {
  const inputs = keys.map((tokens, i) => ({tokens, chosen: [given[1][r][i]]}));
  const state = completed({inputs, choose: "hand", trained: "kq", rule: "steepest", ruleP: given[2]});
  const {solution} = derived(state, new Map());
  return solution.feasible ? solution.margin : 0;
});
"""


@pytest.mark.parametrize("p", [2.0, 3.0, 4.0, 6.0])
def test_the_program_that_follows_lp_steps_on_factors_is_that_of_half_p(engine, p):
    rng = np.random.default_rng(6)
    tokens = att.Tokens(rng.standard_normal((100, 2, 4, 2)))
    selected = (tokens.keys @ rng.standard_normal((100, 1, 2, 1)))[..., 0].argmax(-1)
    page = engine.run(PROGRAMS, tokens.keys.tolist(), selected.tolist(), p)
    half = att.max_margin(tokens, selected, att.Factored(att.Entrywise(p), diagonal=True).closed)
    np.testing.assert_allclose(page, half.margin, rtol=EQUAL)
    whole = att.max_margin(tokens, selected, att.Entrywise(p))
    assert np.median(np.abs(whole.margin / page - 1)) > 0.005


TURNS = """
const {turnBetween} = await import("explorer/simulation.js");
const {simulation, now: {solution}} = explorer;
return simulation.runs.map(({W}) => turnBetween(W, solution.w));
"""


@pytest.mark.parametrize("p", [2.0, 3.0, 4.0, 6.0])
def test_steps_on_factors_turn_to_the_program_of_half_p_and_steps_on_p_do_not(browser, p):
    law = {"ruleP": p, "p": p / 2, "follow": False, "time": 2_000}
    load(browser, "law-of-halves", **law)
    assert max(browser.run(TURNS)) < 1e-3
    load(browser, "law-of-halves", **law, trained="p")
    assert min(browser.run(TURNS)) > 2e-3


NOTE = (
    "return document.getElementById('norm-note').textContent + document.getElementById('verdict').innerText"
)


def test_the_page_says_which_norm_the_law_predicts_and_where_there_is_no_program(browser):
    load(browser, "law-of-halves")
    told = browser.run(NOTE)
    assert "on k and q tends to the l2 program by the law of halves" in told
    assert "l4 steps on k and q → l2" in told
    load(browser, "law-of-halves", rule="coordinate")
    assert "names l0.5: below 1 that is not convex, and there is no program" in browser.run(NOTE)
    load(browser, "law-of-halves", rule="mirror")
    assert "No limit is known of mirror descent" in browser.run(NOTE)
    load(browser, "law-of-halves", trained="p")
    assert "law" not in browser.run(NOTE)


CLICK = "document.querySelector(`[data-trained=${given[0]}]`).click()"


def test_a_click_trains_factors_and_ends_the_training_of_the_head(browser):
    load(browser, "joint-tight")
    browser.run(CLICK, "kq")
    browser.settle()
    assert browser.run("return [explorer.state.trained, explorer.state.joint]") == ["kq", False]
    load(browser, "two-fans")
    browser.run(CLICK, "kq")
    browser.settle()
    assert browser.run("return document.querySelector('[data-trained=kq]').textContent") == "W = K Qᵀ"


def test_links_and_files_carry_what_is_trained(browser, tmp_path):
    load(browser, "several-inputs", rule="steepest", ruleP=6)
    browser.run(CLICK, "kq")
    browser.settle()
    file = browser.run("const {json} = await import('explorer/files.js'); return json(explorer)")
    assert json.loads(file)["explorer"]["trained"] == "kq"
    browser.open(browser.run("explorer.writeAddress(); return location.hash"))
    assert browser.run("return [explorer.state.trained, explorer.now.p]") == ["kq", 3]
    assert all(
        each["state"].get("trained", "p") == "p"
        for each in presets()
        if each["id"] not in ("law-of-halves", "waiting")
    )


def test_a_link_from_before_trains_the_prompt_itself(browser):
    read = "const {read} = await import('explorer/fields.js'); return read({inputs: [{tokens: [[0, 1]]}]})"
    assert browser.run(read)["state"]["trained"] == "p"
