"""Kinds of attention: what a path says of them, gradients past saturation, and what they refuse.

One step of each on every route is compared with a textbook's in tests/training/test_one_step.py.
"""

import numpy as np
import pytest
from scipy.special import expit

import attsvm as att
from attsvm_lab.attention_kinds import (
    Entmax,
    Gated,
    Kind,
    LearntSink,
    QueryKeyNorm,
    Sigmoid,
    entmax,
    gain,
    train,
    weights as weights_of,
)

EXACT = 1e-12
"""Sums of a few numbers up to one."""
KINDS = {
    "softmax": (None, att.FullWeight()),
    "sink": (LearntSink(), att.FullWeight()),
    "gate": (Gated(), att.KeyQuery()),
    "sigmoid": (Sigmoid(-1.0), att.FullWeight()),
    "entmax": (Entmax(), att.FullWeight()),
    "normalised": (QueryKeyNorm(), att.KeyQuery(2)),
}
RULE = att.steepest(att.frobenius, 0.1)


def run(kind, steps=30, rule=RULE, loss=att.logistic, **options):
    tokens, v = att.datasets.sphere(4, 3, 5, seed=0)
    attention, weight = KINDS[kind]
    path = train(
        tokens,
        att.Linear(v),
        attention=attention,
        weight=weight,
        optimizer=rule,
        steps=steps,
        loss=loss,
        **options,
    )
    return tokens, v, path


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_that_of_the_weights_of_the_path(name, tmp_path):
    _, v, path = run(name)
    assert name == "softmax" or isinstance(KINDS[name][0], Kind)
    scores = path.tokens.labels[:, None] * (path.tokens.values @ v)
    margins = (weights_of(path) * scores).sum(-1)
    assert np.abs(np.logaddexp(0, -margins).mean(-1) - path.loss).max() <= EXACT
    assert path.loss[-1] < path.loss[0]
    again = att.Path.load(path.save(tmp_path / "path"))
    assert again.function == path.function
    np.testing.assert_array_equal(weights_of(again), weights_of(path))
    softmax = again.changed(function="softmax").attention
    own_weights = name in ("sigmoid", "entmax", "normalised")
    assert (np.abs(softmax - weights_of(path)).max() > 1e-3) == own_weights
    if own_weights:
        with pytest.raises(ValueError, match="mechanism has the weights"):
            path.attention  # noqa: B018


def test_open_tokens_add_up_to_the_gate_and_the_sink_takes_the_rest():
    tokens, _, path = run("gate")
    gate = expit(tokens.queries @ path.final[-1])
    np.testing.assert_allclose(path.attention[-1, :, : tokens.T].sum(-1), gate, atol=EXACT)
    assert np.abs(gate - 0.5).min() > 1e-3
    tokens, _, path = run("sink")
    assert not path.final[-1, :-1].any() and not path.final[:-1, -1].any() and abs(path.final[-1, -1]) > 0.1
    np.testing.assert_allclose(path.attention.sum(-1), 1, atol=EXACT)


def test_gradients_of_sigmoid_weights_survive_saturation():
    """At logits of thousands every slope underflows; steps of fixed length go on, and the excess is known."""
    _, _, path = run("sigmoid", steps=400, rule=att.steepest(att.frobenius, 100.0), loss=att.exponential)
    assert path.stopped == "steps" and np.linalg.norm(path.final) > 5e3
    assert -1e5 < path.log_excess[-1] < -800 and np.isfinite(path.log_excess).all()


def test_entmax_ends_where_one_token_leads_by_two():
    tokens, _, path = run("entmax", steps=300)
    assert path.stopped == "saturated" and (weights_of(path)[-1].max(-1) == 1).all()
    logits = np.sort(np.einsum("ntd,de,ne->nt", tokens.keys, path.final, tokens.queries), -1)
    assert (logits[:, -1] - logits[:, -2] >= 2).all()
    assert run("softmax", steps=300)[2].stopped == "steps"


def test_entmax_weights_add_up_to_one_and_are_those_of_the_formula():
    logits = np.array([[0.0, -0.5, -1.9], [3.0, 1.0, 3.0], [0.0, -2.5, 0.0]])
    weights = entmax((logits - logits.max(-1, keepdims=True)) / 2)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=EXACT)
    roots = np.sqrt(weights[0])
    assert roots[0] - roots[1] == pytest.approx(0.25) and weights[2, 1] == 0


def test_lengths_of_keys_and_queries_are_free_under_a_fixed_gain():
    tokens, v = att.datasets.sphere(4, 3, 5, seed=0)
    K, Q = np.random.default_rng(0).standard_normal((2, 5, 2))
    losses = [
        train(
            tokens, att.Linear(v), attention=QueryKeyNorm(3.0), weight=att.KeyQuery(2), optimizer=RULE,
            steps=1, init=(size * K, Q),
        ).loss[0]
        for size in (1.0, 100.0)
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], abs=EXACT)


def test_the_gain_of_a_path_is_that_of_its_factors():
    assert gain(run("normalised", steps=1)[2])[0] == pytest.approx(1, abs=EXACT)
    tokens, v = att.datasets.sphere(4, 3, 5, seed=0)
    fixed = train(
        tokens, att.Linear(v), attention=QueryKeyNorm(4.0), weight=att.KeyQuery(2), optimizer=RULE, steps=3
    )
    np.testing.assert_allclose(gain(fixed), 4, rtol=EXACT)


def test_what_does_not_fit_together_is_refused():
    tokens, v = att.datasets.sphere(4, 3, 5, seed=0)

    def refused(match, error=ValueError, head=None, steps=2, **options):
        with pytest.raises(error, match=match):
            train(tokens, att.Linear(v) if head is None else head, optimizer=RULE, steps=steps, **options)

    refused("attention is 'sigmoid'", TypeError, attention="sigmoid")
    refused("attention is <class", TypeError, attention=Sigmoid)
    refused("needs both", attention=QueryKeyNorm())
    refused("joins a matrix", attention=LearntSink(), weight=att.Diagonal())
    squared = {"head": att.SquaredError()}
    refused("must add up to one", attention=Sigmoid(), **squared)
    with pytest.raises(ValueError, match="gain is -1"):
        QueryKeyNorm(-1.0)
    _, _, path = run("normalised", steps=2)
    refused("cannot be resumed", attention=QueryKeyNorm(), weight=att.KeyQuery(2), resume=path)
    _, _, path = run("sigmoid", steps=2)
    refused("another attention", resume=path, steps=3)
    solution = att.max_margin(path.tokens, att.best_tokens(path.tokens, v))
    for judge in (lambda: att.compare(path, solution), lambda: att.classify(path, v)):
        with pytest.raises(ValueError, match="softmax"):
            judge()


def test_a_run_goes_on_where_it_stopped():
    for kind in ("sigmoid", "sink"):
        tokens, v, path = run(kind, steps=20)
        attention, weight = KINDS[kind]
        half = run(kind, steps=10)[2]
        rest = train(
            tokens, att.Linear(v), attention=attention, weight=weight,
            optimizer=RULE, steps=20, resume=half,
        )  # fmt: skip
        np.testing.assert_array_equal(rest.final, path.final)
