"""Pieces of steps in one kernel, interpreted on the CPU: the steps of the general loop."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from attsvm import Entrywise, Tokens, frobenius, l1, spectral
from attsvm.datasets import sphere
from attsvm.next_token import log2_toy, train_choice
from attsvm.training import fused
from attsvm.training.inputs import _rules
from attsvm.training.losses import exponential, logistic
from attsvm.training.optimizers import gd, mirror, polyak, steepest
from attsvm.training.prediction_heads import Linear, QuadraticPenalty
from attsvm.training.train import train
from attsvm.training.weights import FULL, KeyQuery

AVAILABLE = fused.available
STEPS, RUNS = 7, 3
PER_STEP = 1e-12  # relative; what sums in another order make of one step
NGD = steepest(frobenius, 0.1)
RULES = {
    "normalised": NGD,
    "l3 with momentum and decay": steepest(Entrywise(3), 0.1, momentum=0.9, decay=0.3),
    "gradient descent by a schedule": gd(optax.exponential_decay(0.5, 3, 0.5)),
    "mirror": mirror(1.5, 0.1),
    "polyak": polyak(),
}


@pytest.fixture(scope="module")
def problem():
    """Sizes that are no powers of two, and one example with masked tokens."""
    tokens, v = sphere(3, 5, 6, seed=range(RUNS))
    mask = np.ones((RUNS, 3, 5), bool)
    mask[:, 1, 2:] = False
    return Tokens(tokens.keys, tokens.queries, tokens.labels, mask), v


@pytest.fixture(autouse=True)
def loop(monkeypatch):
    """The general loop, on a GPU too, until a test asks for the kernel."""
    monkeypatch.setattr(fused, "available", lambda: False)


@pytest.fixture
def kernel(monkeypatch):
    """Every training that the kernel serves goes through it, which this counts."""
    calls = []
    steps = fused.steps
    monkeypatch.setattr(fused, "available", lambda: True)
    monkeypatch.setattr(fused, "steps", lambda *given: calls.append(1) or steps(*given))
    return calls


def run(tokens, v, optimizer=NGD, scale=1.0, **options):
    start = scale * np.random.default_rng(0).standard_normal((RUNS, tokens.d, tokens.e))
    given = {"optimizer": optimizer, "steps": STEPS, "record": 4, "init": start} | options
    return train(tokens, Linear(v), **given)


def distance(path, other):
    return np.abs(path.final - other.final).max() / np.abs(other.final).max()


@pytest.mark.parametrize("rule", RULES)
def test_steps_in_the_kernel_are_those_of_the_loop(rule, problem, request):
    scales = (1.0, 300.0)  # the second: far past saturation
    general = [run(*problem, RULES[rule], scale) for scale in scales]
    calls = request.getfixturevalue("kernel")
    fast = [run(*problem, RULES[rule], scale) for scale in scales]
    assert calls
    for path, other in zip(fast, general, strict=True):
        assert distance(path, other) <= STEPS * PER_STEP
        np.testing.assert_array_equal(path.stopped, other.stopped)


def test_examples_that_fill_up_do_not_count_whatever_the_loss(request):
    def toy():
        return train_choice(log2_toy(), steps=STEPS, optimizer=gd(4.0))  # five examples, and −log 0 = ∞

    general, calls = toy(), request.getfixturevalue("kernel")
    fast = toy()
    assert calls and fast.stopped == "steps"
    assert distance(fast, general) <= STEPS * PER_STEP


def test_a_wrong_step_would_be_seen(problem, kernel):
    other = steepest(frobenius, 0.1 * (1 + 1e-9))
    assert distance(run(*problem), run(*problem, other)) > STEPS * PER_STEP


@pytest.mark.parametrize("options", [{}, {"init": None, "loss": exponential}])
def test_runs_that_share_their_data_and_one_run_alone(options, problem, request):
    tokens, v = problem[0].run(0), problem[1][0]
    general = run(tokens, v, **options)
    calls = request.getfixturevalue("kernel")
    assert distance(run(tokens, v, **options), general) <= STEPS * PER_STEP
    assert calls


def test_single_precision_stays_single(problem, request):
    tokens, v = problem
    tokens = Tokens(tokens.keys, tokens.queries, tokens.labels, tokens.mask, dtype=np.float32)
    general = run(tokens, v)
    request.getfixturevalue("kernel")
    path = run(tokens, v)
    assert path.W.dtype == np.float32
    assert distance(path, general) <= 1e-5


def test_a_run_that_diverges_in_the_kernel_keeps_its_last_finite_weight(problem, request):
    # Small tokens: their logits stay finite in sums of every order, while the weight itself overflows.
    tokens, v = Tokens(1e-3 * problem[0].keys, labels=problem[0].labels, mask=problem[0].mask), problem[1]
    start = np.zeros((RUNS, 6, 1))
    start[1] = 1.797e308  # the largest number is 1.7977e308; seven steps from zero stay below it
    options = {"init": start, "optimizer": steepest(frobenius, 2e307)}
    general = run(tokens, v, **options)
    calls = request.getfixturevalue("kernel")
    path = run(tokens, v, **options)
    assert calls
    np.testing.assert_array_equal(path.stopped, ["steps", "diverged", "steps"])
    np.testing.assert_array_equal(path.stopped, general.stopped)
    np.testing.assert_array_equal(path.final[1], start[1])
    assert distance(path, general) <= STEPS * PER_STEP


def test_a_run_whose_logits_are_no_numbers_diverges_in_the_kernel(problem, request):
    start = np.zeros((RUNS, 6, 6))
    start[1] = 1.7e308  # logits of one example are ∞ − ∞, whatever the order of their sums
    calls = request.getfixturevalue("kernel")
    path = run(*problem, init=start)
    assert calls
    assert path.stopped[1] == "diverged"
    np.testing.assert_array_equal(path.final[1], start[1])


def test_what_the_kernel_leaves_to_the_loop(problem, kernel):
    tokens, v = problem

    def served(weight=FULL, head=None, rule=NGD, train_head=None, given=tokens):
        head = Linear(v) if head is None else head
        return fused.serves(given, weight, head, logistic, _rules(rule, train_head, weight))

    assert served()
    assert not served(weight=KeyQuery())
    assert not served(head=QuadraticPenalty(v, np.ones(RUNS)))
    assert not served(rule=steepest(l1, 0.1))
    assert not served(rule=steepest(spectral, 0.1))
    assert not served(rule=optax.adam(0.1))
    assert not served(train_head=NGD)
    assert not served(given=sphere(40, 40, 40, seed=0)[0])


def test_the_last_finite_weight_of_the_kernel_does_not_depend_on_where_calls_end(
    problem, kernel, monkeypatch
):
    options = {"optimizer": steepest(frobenius, lambda step: 1e290 * 2.0**step), "steps": 90}
    whole = run(*problem, **options)
    monkeypatch.setattr("attsvm.training.train.first_steps", lambda *_: 7)
    monkeypatch.setattr("attsvm.training.segments.SEGMENT", 0.0)
    cut = run(*problem, **options)
    assert (whole.stopped == "diverged").all()
    np.testing.assert_array_equal(cut.final, whole.final)


# ---------------------------------------------------------------------- where there is none


@pytest.fixture
def compiles():
    """The question whether it compiles, not yet asked in this process."""
    fused._compiles.cache_clear()
    yield fused._compiles
    fused._compiles.cache_clear()


def test_without_a_gpu_there_is_no_kernel_and_nothing_to_say(compiles, recwarn):
    on_gpu = jax.default_backend() == "gpu"
    assert AVAILABLE() == on_gpu
    assert not [w for w in recwarn if w.category is fused.GeneralLoop]


def test_a_gpu_without_triton_says_once_why_it_takes_the_general_loop(problem, compiles, monkeypatch):
    general = run(*problem)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)  # gone from a later JAX
    monkeypatch.setattr(fused, "available", AVAILABLE)
    monkeypatch.setattr(fused, "local_devices", lambda: [SimpleNamespace(platform="gpu")])
    with pytest.warns(fused.GeneralLoop, match=r"jax.experimental.pallas.triton.*JAX 0.8 to 0.11") as said:
        paths = [run(*problem), run(*problem)]
    assert len(said) == 1
    np.testing.assert_array_equal(paths[1].final, general.final)


def test_a_compiler_that_refuses_is_quoted(compiles, monkeypatch):
    def settings():
        raise NotImplementedError("no float64 today")

    monkeypatch.setattr(fused, "_settings", settings)
    with pytest.warns(fused.GeneralLoop, match="NotImplementedError: no float64 today"):
        assert not compiles()
