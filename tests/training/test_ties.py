"""A token with the winner's value does not pull, however many runs, whatever is trained."""

from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest

import attsvm as att
from attsvm.data.equal_keys import equal_rows
from attsvm.training import layout, streaming
from attsvm.training.batches import on_host
from attsvm.training.data import linear_scores
from attsvm.training.prediction_heads import LogOdds, QuadraticPenalty, ReLUNetwork
from attsvm.training.weights import Diagonal, KeyQuery, MultiHead

FAR = 200.0
"""How far the token that pulls is below the winner; the tied one is one below. Rounding pulls by e^(−37)."""
COSINE = 1 - 1e-9  # logits of size 200 carry errors of 1e-13, which are relative errors of weights
RNG = np.random.default_rng(6)  # of which three runs rounded tied scores apart
N, T, D, C = 2, 3, 6, 4
KEYS, VALUES = RNG.standard_normal((N, T, D)), RNG.standard_normal((N, T, C))
VALUES[:, 2] = VALUES[:, 0]
v, QUERIES = RNG.standard_normal(C), RNG.standard_normal((N, D))
V, u = RNG.standard_normal((C, 5)), RNG.standard_normal(5)
LINEAR = att.Linear(v), v * np.ones((N, C))
HEADS = {  # the head, and its gradient at the winner's value
    "linear": LINEAR,
    "trained": LINEAR,
    "relu": (ReLUNetwork(V, u), (np.where(VALUES[:, 0] @ V > 0, u, 0)) @ V.T),
    "quadratic": (QuadraticPenalty(v, 0.3), v - 0.6 * VALUES[:, 0]),
    "log-odds": (LogOdds(), -np.exp(VALUES[:, 0]) / np.exp(VALUES[:, 0]).sum(1, keepdims=True)),
}
BATCH = att.Batches(N, order="replacement", seed=2)
CASES = [("full", "linear", "memory", runs) for runs in (None, 1, 2, 3, 5, 7, 8, 9)]
CASES += [("full", "trained", "memory", runs) for runs in (None, 3, 9)]
CASES += [
    ("full", "relu", "memory", 7),
    ("full", "quadratic", "memory", 3),
    ("full", "quadratic", "memory", 8),
]
CASES += [("full", "log-odds", "memory", 5), ("key-query", "linear", "memory", 3)]
CASES += [("key-query", "quadratic", "memory", 5), ("diagonal", "trained", "memory", 7)]
CASES += [
    ("heads", "linear", "memory", 3),
    ("full", "linear", "stream", 3),
    ("full", "quadratic", "stream", 3),
]
CASES += [("full", "linear", "blocks", 3), ("full", "trained", "mini-batch", 5)]


def steepest(head, examples):
    """Gradient in W of the sum of margins, over e^(−FAR): of the one token that pulls, written out."""
    shares = np.exp(-1) / (1 + np.exp(-1))
    away = KEYS[:, 1] - (1 - shares) * KEYS[:, 0] - shares * KEYS[:, 2]
    gap = (HEADS[head][1] * (VALUES[:, 1] - VALUES[:, 0])).sum(1)
    return np.einsum("n,nd,ne->de", gap[examples], away[examples], QUERIES[examples])


def start(weight):
    """Parameters with the logits 0, −FAR, −1 of the three tokens."""
    products = np.einsum("ntd,ne->ntde", KEYS, QUERIES).reshape(N * T, D, D)
    if weight == "diagonal":
        products = np.einsum("mdd->md", products)
    wanted = np.tile([0.0, -FAR, -1.0], N)
    W = np.linalg.lstsq(products.reshape(N * T, -1), wanted, rcond=None)[0].reshape(products.shape[1:])
    return {"full": W, "key-query": {"K": W, "Q": np.eye(D)}, "diagonal": W, "heads": np.stack([W, W])}[
        weight
    ]


def moved(weight, head, route, runs):
    """The way of the first parameter in one step, of every run (runs, …)."""
    form = {"full": att.FullWeight(), "key-query": KeyQuery(), "diagonal": Diagonal(), "heads": MultiHead(2)}
    begin = start(weight)
    if runs is not None:
        repeat = lambda x: np.stack([x] * runs)  # noqa: E731
        begin = {k: repeat(x) for k, x in begin.items()} if isinstance(begin, dict) else repeat(begin)
    options = {"train_head": att.gd(1.0)} if head == "trained" else {}
    with ExitStack() as stack:
        if route == "stream":
            stack.enter_context(mock.patch.object(streaming, "too_large", lambda _: True))
            stack.enter_context(mock.patch.object(streaming, "READ", 8 * T * (D + C)))
        if route == "blocks":
            stack.enter_context(mock.patch.multiple(layout, LARGE=0, CACHED=T * (D + C)))
        if route == "mini-batch":
            options["batch"] = BATCH
        path = att.train(
            att.Tokens(KEYS, QUERIES, values=VALUES),
            HEADS[head][0],
            weight=form[weight],
            loss=att.correlation,
            optimizer=att.steepest(att.frobenius, 1.0),
            steps=1,
            record=[1],
            init=begin,
            **options,
        )
    end, first = (path.K, begin["K"]) if weight == "key-query" else (path.W, begin)
    end = end[..., -1, :, :] if weight != "heads" else end.take(-1, 0 if runs is None else 1)
    if weight == "diagonal":
        end = np.einsum("...dd->...d", end)
    return np.asarray(end - first).reshape(runs or 1, *np.shape(end)[runs is not None :])


@pytest.mark.parametrize(("weight", "head", "route", "runs"), CASES)
def test_a_token_with_the_value_of_the_winner_hides_no_other(weight, head, route, runs):
    examples = on_host(BATCH.form, BATCH.seed, N, 0) if route == "mini-batch" else np.arange(N)
    way = steepest(head, examples)
    wanted = np.einsum("dd->d", way) if weight == "diagonal" else way
    for one in moved(weight, head, route, runs):
        own = one[0] if weight == "heads" else one
        cosine = (own * wanted).sum() / np.linalg.norm(own) / np.linalg.norm(wanted)
        assert cosine >= COSINE


@pytest.mark.parametrize("runs", [None, 3, 8])
def test_the_excess_of_tied_best_tokens_is_that_of_the_others(runs):
    best = (VALUES[:, 1] - VALUES[:, 0]) @ v < 0  # examples in which winner and tied token are the best
    sign = np.where(best, 1.0, -1.0)
    begin = start("full") if runs is None else np.stack([start("full")] * runs)
    path = att.train(
        att.Tokens(KEYS, QUERIES, sign, values=VALUES),
        att.Linear(v),
        loss=att.correlation,
        optimizer=att.gd(1.0),
        steps=1,
        train_head=att.gd(1e-30),
        init=begin,
    )
    gaps = np.abs((VALUES[:, 1] - VALUES[:, 0]) @ v)
    wanted = -FAR + np.log((gaps / (1 + np.exp(-1))).mean())
    np.testing.assert_allclose(path.log_excess[..., 0], wanted, rtol=1e-12)


def test_scores_that_only_rounding_tells_apart_are_one_number():
    v, rng = np.array([0.1, 0.3, 0.7]), np.random.default_rng(0)
    values = rng.standard_normal((40, 5, 3))
    values[:, 3] = values[:, 1] + np.outer(rng.standard_normal(40), [3.0, -1.0, 0.0])  # orthogonal to v
    mask, labels = np.ones((40, 5), bool), np.ones(40)
    scores = linear_scores(values, labels, mask, v)
    assert (np.einsum("ntc,c->nt", values, v)[:, 1] != np.einsum("ntc,c->nt", values, v)[:, 3]).any()
    assert (scores[:, 1] == scores[:, 3]).all()
    assert all(len(np.unique(row)) == 4 for row in scores)
    np.testing.assert_allclose(scores, values @ v, rtol=1e-12)
    many = linear_scores(values, labels, mask, np.stack([v, 2 * v, -v]))
    np.testing.assert_allclose(many, np.stack([scores, 2 * scores, -scores]), rtol=1e-12)
    assert (many[..., 1] == many[..., 3]).all()


def test_a_score_without_rounding_ties_with_its_equals_only():
    values = np.array([[[1.0, 7.0], [1.0 + 2.0**-52, 7.0], [1.0, -3.0]]])
    scores = linear_scores(values, np.ones(1), np.ones((1, 3), bool), np.array([1.0, 0.0]))
    assert scores[0, 0] == scores[0, 2] != scores[0, 1]


def test_equal_rows_are_those_of_equal_numbers():
    rows = np.array([[[1.0, 2], [0, 0], [1, 2], [-0.0, 0]], [[1, 2], [2, 1], [3, 3], [1, 2 + 2.0**-51]]])
    mask = np.ones((2, 4), bool)
    np.testing.assert_array_equal(equal_rows(rows, mask), [[0, 1, 0, 1], [0, 1, 2, 3]])
    mask[0, 0] = False
    np.testing.assert_array_equal(equal_rows(rows, mask), [[0, 1, 2, 1], [0, 1, 2, 3]])
    assert equal_rows(rows[1:], mask[1:]) is None
    huge = np.full((1, 2, 3), 1.7e308)
    np.testing.assert_array_equal(equal_rows(huge, np.ones((1, 2), bool)), [[0, 0]])
