"""One step of every kind of training is the textbook's; a slice of `python lab/benchmarks/gradient_scan.py`.

With XLA's own settings, which fuse products and differences into one rounding: the tests' settings do not.
"""

import jax
import numpy as np
import pytest

from attsvm import Tokens
from attsvm.training import attention
from attsvm.training.data import arrays
from tests.training.one_step import (
    COUNTS,
    HEADS,
    KINDS,
    LENGTHS,
    LOSSES,
    OPTIMIZERS,
    ROUTES,
    RUNS,
    TOLERANCE,
    WEIGHTS,
    WIDTHS,
    Case,
    consistent,
    draw,
    error,
)

pytestmark = pytest.mark.usefixtures("long_programs")

CASES = [
    Case(d=1, e=1, T=3, n=2),
    Case(d=1, e=2, T=33, n=9, optimizer="frobenius", loss="exponential", mask=True),
    Case("key-query", d=1, e=3, T=2, n=1, optimizer="mirror", loss="correlation"),
    Case("key-query apart", "relu", d=1, e=1, T=3, n=17, runs=2, optimizer="adam"),
    Case("diagonal", "quadratic", d=1, e=1, T=65, n=2, runs=1, optimizer="linf"),
    Case("diagonal of depth 3", "trained", "exponential", "gd", d=1, e=1, T=2, n=9, runs=9),
    Case("two heads apart", d=1, e=2, T=3, n=2, optimizer="frobenius"),
    Case(
        "two key-queries", "trained", "logistic", "schatten 3", d=1, e=1, T=2, runs=2, data_runs=True, seed=3
    ),
    Case("full", "log-odds", d=1, e=1, T=3, n=9, runs=8, optimizer="l1"),
    Case("full", "squared error", "correlation", "optax", d=1, e=1, T=3, n=2, values=True),
    Case("full", "linear", "log", "spectral", d=1, e=2, T=3, n=2, values=False),
    Case("full", "linear", "logistic", "polyak", d=1, e=1, T=3, n=2, values=False),
    Case("full", "quadratic", "logistic", "l3, momentum, decay", "blocks", d=1, e=1, T=3, n=9),
    Case("key-query of rank 1", "trained", "logistic", "compositional", "stream", d=1, e=2, n=9, seed=1),
    Case("full", "linear", "logistic", "mirror, true length", "mini-batch", d=1, e=1, T=3, n=9),
    Case("full", "linear", "logistic", "frobenius", "kernel", d=1, e=1, T=3, n=9, runs=2),
    Case("diagonal key-query", "linear", "logistic", "gd", d=2, e=2, T=1, n=1, runs=33),
    Case("two heads", "trained", "correlation", "mirror", "mini-batch", d=3, e=1, T=2, n=17, mask=True),
    Case("diagonal", "log-odds", "exponential", "adam", "blocks", d=3, e=3, T=3, n=2),
    Case("full", "relu", "logistic", "longest row", "stream", d=3, e=3, T=2, n=9, mask=True),
    Case("key-query", "squared error", "correlation", "a norm for each factor", d=3, e=2, n=2, runs=9),
    Case("full", "linear", "logistic", "linf", d=2, e=2, n=9, kind="sink", mask=True),
    Case("two key-queries", "trained", "exponential", "spectral", d=2, e=2, n=2, runs=2, kind="gated"),
    Case("full", "linear", "logistic", "frobenius", d=2, e=2, n=9, runs=2, kind="sigmoid"),
    Case("full", "linear", "logistic", "frobenius", "kernel", d=2, e=2, n=9, runs=2),
    Case("key-query", "trained", "logistic", "adam", "blocks", d=2, e=3, n=9, mask=True, kind="sigmoid"),
    Case("full", "relu", "exponential", "gd", "stream", d=3, e=2, n=9, T=33, kind="entmax"),
    Case("diagonal", "linear", "logistic", "gd", d=3, e=3, n=2, runs=33, mask=True, kind="entmax"),
    Case("key-query", "log-odds", "logistic", "spectral", "stream", d=3, e=2, n=9, kind="normalised"),
    Case(
        "key-query apart", "linear", "logistic", "linf", "mini-batch", n=9, runs=9, kind="normalised, gain 4"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_step_is_that_of_the_textbook(case):
    assert consistent(case) == case
    assert error(case) <= TOLERANCE


def test_a_wrong_step_would_be_seen(monkeypatch):
    gradient = attention.gradient
    wrong = lambda *given: gradient(*given)._replace(log_scale=gradient(*given).log_scale + 1e-6)  # noqa: E731
    monkeypatch.setattr(attention, "gradient", wrong)
    assert error(Case(d=2, e=1, T=4, n=3)) > TOLERANCE


def test_the_cases_have_every_kind_and_every_size():
    # Each pair of a route and a width, and each value of the others; gradient_scan.py draws from the product.
    names = {"weight": WEIGHTS, "head": HEADS, "loss": LOSSES, "optimizer": OPTIMIZERS, "mask": (False, True)}
    names |= {"kind": KINDS}
    sizes = {"d": WIDTHS, "e": WIDTHS, "T": LENGTHS, "n": COUNTS, "runs": RUNS}
    for name, values in (names | sizes).items():
        assert {getattr(case, name) for case in CASES} == set(values), name
    assert {(case.route, case.d == 1) for case in CASES} >= {(r, True) for r in ROUTES}
    assert {case.route for case in CASES if case.d > 1} >= set(ROUTES) - {"kernel"}


def test_random_cases_reach_every_kind_and_fit_together():
    drawn = [draw(seed) for seed in range(600)]
    assert all(consistent(case) == case for case in drawn)
    assert {case.weight for case in drawn} == WEIGHTS.keys()
    assert {case.optimizer for case in drawn} == OPTIMIZERS.keys()
    assert {(case.route, case.d) for case in drawn} >= {(route, 1) for route in ROUTES}


@pytest.mark.parametrize("d", [1, 2, 5])
def test_every_example_has_one_winner_at_a_radius_that_is_not_known(d):
    rng = np.random.default_rng(d)
    tokens = Tokens(rng.standard_normal((40, 7, d)), rng.standard_normal((40, 2)))
    W, radii = rng.standard_normal((d, 2)), np.exp(rng.standard_normal(8))
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    with jax.enable_x64(True):
        attend = jax.jit(lambda data, W, radius: attention.attend(data, W, radius))
        for radius in radii:
            look = attend(arrays(tokens), W, radius)
            np.testing.assert_array_equal(np.asarray(look.winner), logits == logits.max(1, keepdims=True))
            total = (np.exp(radius * (logits - logits.max(1, keepdims=True)))).sum(1) - 1
            np.testing.assert_allclose(look.total, total, rtol=1e-9, atol=1e-12)
