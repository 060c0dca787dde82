"""An example that cannot pull, or a token that no weight can tell from the winner, hides no other."""

import numpy as np
import pytest

import attsvm as att
from attsvm.training import inputs, streaming
from attsvm.training.weights import Diagonal, KeyQuery, MultiHead

N, T, D = 4, 3, 4
SCALES = (1.0, 3_000.0)  # the second: beside a gap of zero, no other is a float64
WEIGHTS = {
    "full": att.FullWeight(),
    "key-query": KeyQuery(),
    "diagonal": Diagonal(),
    "diagonal key-query": Diagonal(2),
    "two diagonals": MultiHead(2, Diagonal()),
}
CASES = [("full", "linear", "memory"), ("full", "trained", "memory"), ("full", "quadratic", "stream")]
CASES += [
    ("key-query", "linear", "memory"),
    ("diagonal", "linear", "memory"),
    ("diagonal", "linear", "stream"),
]
CASES += [("diagonal key-query", "quadratic", "memory"), ("two diagonals", "linear", "memory")]


def problem(weight):
    """Tokens of which example 1 cannot pull, and the same where that example has one token only."""
    rng = np.random.default_rng(3)
    keys, queries = rng.standard_normal((N, T, D)), rng.standard_normal((N, D))
    if "diagonal" in weight:
        queries[1, 2:] = 0
        keys[1, :, :2] = keys[1, 0, :2]  # they differ where the query is zero
    else:
        queries[1] = 0
    mask = np.ones((N, T), bool)
    mask[0, 2] = False
    alone = mask.copy()
    alone[1, 1:] = False
    values = rng.standard_normal((N, T, 3))
    return [att.Tokens(keys, queries, mask=one, values=values) for one in (mask, alone)]


def trained(tokens, weight, head, scale, **options):
    v = np.array([1.0, -0.5, 2.0])
    rng = np.random.default_rng(4)
    start = {name: rng.standard_normal(shape) for name, shape in WEIGHTS[weight].shapes(D, D).items()}
    start = {name: scale ** (1 / len(start)) * x for name, x in start.items()}
    options |= {"train_head": att.gd(1e-15)} if head == "trained" else {}
    return att.train(
        tokens,
        att.QuadraticPenalty(v, 0.1) if head == "quadratic" else att.Linear(v),
        weight=WEIGHTS[weight],
        loss=att.correlation,
        optimizer=att.steepest(att.frobenius, 1.0),
        init=start if len(start) > 1 else next(iter(start.values())),
        **{"steps": 2, "record": [1]} | options,
    )


@pytest.mark.parametrize(("weight", "head", "route"), CASES)
def test_an_example_that_cannot_pull_hides_no_other(weight, head, route, monkeypatch):
    if route == "stream":
        monkeypatch.setattr(streaming, "too_large", lambda _: True)
    tokens, alone = problem(weight)
    for scale in SCALES:
        path, other = (trained(each, weight, head, scale) for each in (tokens, alone))
        assert path.stopped == other.stopped == "steps"
        np.testing.assert_allclose(path.W[-1] - path.W[0], other.W[-1] - other.W[0], rtol=0, atol=1e-9)


def test_a_token_that_differs_where_no_weight_sees_it_hides_no_other_of_its_example():
    tokens, _ = problem("diagonal")
    keys, values = np.array(tokens.keys), np.array(tokens.values)
    queries = np.array(tokens.queries)
    queries[:, 3] = 0
    keys[:, 1, :3] = keys[:, 0, :3]  # of token 0 and 1 no diagonal weight knows which is which
    values[:, :2] = values[:, :2].mean(1, keepdims=True)
    one = att.Tokens(keys, queries, mask=tokens.mask, values=tokens.values)
    other = att.Tokens(np.where(queries[:, None] != 0, keys, 0), queries, mask=tokens.mask, values=values)
    for scale in SCALES:
        path, mean = (trained(each, "diagonal", "linear", scale) for each in (one, other))
        assert path.stopped == mean.stopped == "steps"
        np.testing.assert_allclose(path.W[-1] - path.W[0], mean.W[-1] - mean.W[0], rtol=0, atol=1e-9)
        np.testing.assert_allclose(path.log_excess, mean.log_excess, rtol=1e-12)


def test_keys_in_a_file_are_seen_as_those_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "COPY_LIMIT", 0)  # as if they were too large to be read
    tokens, _ = problem("diagonal")
    np.save(tmp_path / "keys.npy", tokens.keys)
    stays = att.Tokens(np.load(tmp_path / "keys.npy", mmap_mode="r"), tokens.queries, mask=tokens.mask)
    given = att.Tokens(tokens.keys, tokens.queries, mask=tokens.mask)
    v = np.array([1.0, -0.5, 2.0, 1.0])
    rule = {
        "optimizer": att.steepest(att.frobenius, 1.0),
        "steps": 2,
        "init": 3_000 * v,
        "weight": Diagonal(),
    }
    path, other = (att.train(each, att.Linear(v), **rule) for each in (stays, given))
    assert path.stopped == other.stopped == "steps"
    np.testing.assert_allclose(path.W, other.W, rtol=1e-12)


def test_an_example_without_values_does_not_hide_the_slope_of_the_head_of_others():
    rng = np.random.default_rng(5)
    values = np.abs(rng.standard_normal((2, 3, 2))) + 1
    values[1] = 0  # its margin is zero for ever, that of the other a thousand
    tokens = att.Tokens(rng.standard_normal((2, 3, 2)), values=values)
    rule = att.steepest(att.frobenius, 1.0)
    path = att.train(
        tokens,
        att.Linear([1_000.0, 1_000.0]),
        loss=att.exponential,
        optimizer=rule,
        train_head=rule,
        steps=1,
        init=np.zeros((2, 1)),
    )
    mean = values[0].mean(0)
    np.testing.assert_allclose(path.v[-1] - path.v[0], mean / np.linalg.norm(mean), rtol=1e-9)


# ---------------------------------------------------------------------- entries that all tokens share

RULES = {
    "sign": att.steepest(att.linf, 0.1),
    "signum": att.steepest(att.linf, 0.1, momentum=0.9),
    "adam without eps": att.adam(0.1, eps=0.0),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("runs", [None, 3, 9])
@pytest.mark.parametrize("weight", [att.FullWeight(), KeyQuery(2)], ids=repr)
def test_an_entry_that_all_tokens_share_moves_no_weight(weight, runs, rule):
    # Its gradient is zero; a sum of products was rounding, whose sign sign descent followed.
    rng = np.random.default_rng(1)
    keys, queries = rng.standard_normal((N, 5, D)), rng.standard_normal((N, 3))
    keys[..., 1], keys[..., 3] = 0.3, rng.standard_normal((N, 1))  # a bias, and an entry of the sequence
    mask = np.arange(5) < np.array([5, 4, 2, 1])[:, None]
    lead = () if runs is None else (runs,)
    shapes = weight.shapes(D, 3)
    start = {name: 0.1 * rng.standard_normal((*lead, *shape)) for name, shape in shapes.items()}
    given = {"weight": weight, "optimizer": RULES[rule], "steps": 60, "record": [60]}

    def run(keys):
        tokens = att.Tokens(keys, queries, mask=mask, values=values)
        path = att.train(tokens, att.Linear([1.0, -0.5, 2.0, 1.0]), init=init, **given)
        return path.W if path.K is None else path.K

    # The second has zeros there, and not fewer entries, so that one program serves both.
    init, values = start if len(start) > 1 else start["W"], keys
    moved, without = run(keys), run(keys * [1.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(moved[..., -1, [1, 3], :], moved[..., 0, [1, 3], :])
    np.testing.assert_allclose(moved[..., -1, [0, 2], :], without[..., -1, [0, 2], :], rtol=0, atol=1e-9)


def test_values_that_are_the_keys_keep_what_all_tokens_share():
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((3, 4, 2))
    keys[..., 1] = 7.0
    v, given = [1.0, 2.0], {"optimizer": att.gd(0.5), "steps": 5, "init": np.array([[0.3], [-0.2]])}
    one, other = (att.train(att.Tokens(keys, values=x), att.Linear(v), **given) for x in (None, keys.copy()))
    np.testing.assert_allclose(one.W, other.W, rtol=1e-12)
    attended = np.einsum("knt,ntd->knd", one.attention, keys) @ v
    np.testing.assert_allclose(one.loss, np.logaddexp(0, -attended).mean(-1), rtol=1e-12)
