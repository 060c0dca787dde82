"""Softmax relative to the winning token is written in several places, which obey the same laws."""

from functools import cache

import mpmath as mp
import numpy as np
import pytest

from tests.explorer.conftest import browser  # noqa: F401

KEYS = np.array([[3.0, -2.0], [4.0, 1.0], [1.0, 2.0], [-2.0, 1.0]])
SCORES = np.array([3.0, 1.0, -2.0, 0.5])
GAPS = [1.0, 50.0, 160.0]
"""Between the winner, token 1, and the next one. Logits are gap · (3, 4, 1, −2), exactly; at 50 the weight of
the winner rounds to one, and at 160 that of the last token is e^(−960), below the smallest float64."""
FAR = 1500.0
"""There all losing weights underflow, and only what keeps log scales holds the law."""
ROUNDING = 1e-13
SINGLE = 2e-6
"""Rounding of the kernel, which computes in float32, at a gap of 50."""


def logits_at(gap):
    return gap * KEYS[:, 0]


def exact(gap):
    """Weights s, with more digits than cancel."""
    powers = [mp.exp(mp.mpf(a - logits_at(gap).max())) for a in logits_at(gap)]
    return [x / mp.fsum(powers) for x in powers]


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(6_000):
        yield


# ---------------------------------------------------------------------- the gradient Σ_t s_t (γ_t − f) x_t


def naive_gradient(gap, _):
    powers = np.exp(logits_at(gap) - logits_at(gap).max())
    s = powers / powers.sum()
    return (s * (SCORES - s @ SCORES)) @ KEYS, 0.0


def of_training(gap, _):
    import jax

    from attsvm import Linear, Tokens, correlation
    from attsvm.training import attention
    from attsvm.training.data import arrays

    with jax.enable_x64(True):
        data = arrays(Tokens(KEYS[None], values=SCORES[None, :, None]))
        softmax = attention.attend(data, np.array([[gap], [0.0]]))
        reading = attention.read(data, softmax, Linear(np.ones(1)))
        mantissa, log_scale = attention.gradient(data, softmax, reading, correlation)
        return -np.asarray(mantissa)[:, 0], float(log_scale)


def of_probes(gap, _):
    from attsvm.probe.data.backends import RaggedSegments
    from attsvm.probe.fitting.attention import token_coefficients

    segments = RaggedSegments(np.array([4]))
    return token_coefficients(np, segments, numpy_reading(gap, SCORES[:, None]), np.ones((1, 1, 1)))[
        0, 0
    ] @ KEYS, 0.0


def of_compiled_probes(gap, _):
    return compiled_pass(gap, SCORES)[0] @ KEYS, 0.0


def of_pool(gap, _):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch import pool

    logits = torch.tensor(logits_at(gap), requires_grad=True)
    pool(logits, torch.tensor(SCORES[:, None])).sum().backward()
    return logits.grad.numpy() @ KEYS, 0.0


def of_page(gap, request):
    script = """
    const {compiled, gradient, LOSSES} = await import("explorer/training.js");
    const [tokens, scores, W] = given;
    const data = compiled({inputs: [{tokens, query: [1], label: 1, scores}]}, LOSSES.correlation);
    const scale = gradient(data, W);
    return [...data.pull.slice(0, 2), scale, data.outX[0], data.outY[0]];"""
    page = request.getfixturevalue("browser")
    *pull, scale, x, y = page.run(script, KEYS.tolist(), SCORES.tolist(), [gap, 0.0])
    return -np.array(pull), scale, np.array([x, y])


GRADIENTS = {
    "training": of_training,
    "probes": of_probes,
    "compiled probes": of_compiled_probes,
    "torch pool": of_pool,
    "page": lambda gap, request: of_page(gap, request)[:2],
}
IN_LOG_SCALE = {name: GRADIENTS[name] for name in ("training", "page")}


def error_of_gradient(gradient, gap, request):
    """The largest relative error of an entry, which a wrong sign or a zero makes 1 at least."""
    s = exact(gap)
    mean = mp.fdot(s, SCORES)
    true = [
        mp.fsum(w * (g - mean) * x for w, g, x in zip(s, SCORES, column, strict=True)) for column in KEYS.T
    ]
    mantissa, log_scale = gradient(gap, request)
    entries = [mp.mpf(float(x)) * mp.exp(mp.mpf(log_scale)) for x in mantissa]
    return float(max(abs(x - y) / abs(y) for x, y in zip(entries, true, strict=True)))


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_is_exact(name, gap, request):
    assert error_of_gradient(GRADIENTS[name], gap, request) < ROUNDING


@pytest.mark.parametrize("name", IN_LOG_SCALE)
def test_a_gradient_in_log_scale_is_exact_where_no_float64_holds_it(name, request):
    assert error_of_gradient(IN_LOG_SCALE[name], FAR, request) < ROUNDING


@pytest.mark.parametrize(("gap", "cancels"), [(1.0, False), (50.0, True), (160.0, True), (FAR, True)])
def test_the_textbook_gradient_cancels_past_saturation_and_not_before(gap, cancels, request):
    assert (error_of_gradient(naive_gradient, gap, request) > 0.1) == cancels


# ---------------------------------------------------------------------- the pooled key Σ_t s_t x_t


def numpy_reading(gap, values):
    """One probe with a score per column of values (T, k)."""
    from attsvm.probe.data.backends import Host, RaggedSegments
    from attsvm.probe.fitting.attention import attend

    products = np.concatenate([logits_at(gap)[:, None], values], 1)
    host = Host.__new__(Host)  # no rows: the products are known
    return attend(host, RaggedSegments(np.array([4])), products, np.zeros((1, values.shape[1])), 1)


@cache
def forth_and_back():
    """The compiled loops forth and back, in a function for Python; compiling it takes a second."""
    from numba import njit

    from attsvm.probe.fitting import compiled_pass as loops

    attend, back_propagate = loops._attend, loops._back_propagate

    @njit
    def both(products, intercept, attention, lane_sums, scores, gradient, gain, coefficients):
        attend(products, intercept, attention, lane_sums, scores)
        back_propagate(products, gradient, attention, gain, lane_sums, coefficients)

    return both


def compiled_pass(gap, values):
    """Coefficients of the tokens in the gradient, pooled value and exponentials of the compiled loop."""
    products = np.stack([logits_at(gap), values], 1)
    attention, lane_sums, scores = np.empty((4, 1)), np.empty((7, 1)), np.empty((1, 1))
    coefficients = np.empty((4, 2))
    one = np.ones((1, 1))
    forth_and_back()(products, 0 * one, attention, lane_sums, scores, one, np.empty((4, 1)), coefficients)
    return coefficients[:, 0], scores[0, 0], attention[:, 0]


def pooled_by_training(gap, _):
    import jax

    from attsvm import Tokens
    from attsvm.training import attention
    from attsvm.training.data import arrays

    with jax.enable_x64(True):
        data = arrays(Tokens(KEYS[None]))
        return np.asarray(attention.pooled(data, attention.attend(data, np.array([[gap], [0.0]]))))[0]


def pooled_by_torch(gap, _):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch import pool

    return pool(torch.tensor(logits_at(gap)), torch.tensor(KEYS)).numpy()


def pooled_while_running(steps):
    """As a text is read: the tokens in pieces of these lengths."""

    def pooled(gap, _):
        torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
        from attsvm.torch.running import RunningScores

        running = RunningScores(torch.eye(2), torch.zeros(2), 1, torch.device("cpu"))
        logits = torch.tensor(logits_at(gap))[:, None].expand(4, 2)
        for piece in torch.stack([logits, torch.tensor(KEYS)], 1)[None].split(steps, 1):
            running.read(piece, torch.ones(1, piece.shape[1], dtype=torch.bool), every_token=steps == [3, 1])
        return running.state.mean[0, 0].numpy()

    return pooled


def pooled_by_a_stream(steps):
    """As a probe reads a growing sequence, in float64 on the host."""

    def pooled(gap, _):
        from attsvm.probe.fitting.attention import Weights, extend_stream, start_stream

        weights = Weights(np.array([[1.0], [0.0]]) * gap, np.eye(2)[:, None], np.zeros(2))
        state, first = start_stream(weights), 0
        for count in steps:
            piece, first = KEYS[first : first + count], first + count
            state, scores = extend_stream(state, piece, weights, np.zeros(2))
        return scores

    return pooled


def pooled_by_a_module(steps):
    """The same by the module of a probe, in float64."""

    def pooled(gap, _):
        torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
        from attsvm.torch.probe import Probe

        probe = Probe(np.array([[gap], [0.0]]), np.eye(2)[:, None], np.zeros(2), np.zeros(2)).double()
        state = probe.start()
        for piece in torch.tensor(KEYS)[None].split(steps, 1):
            state, scores = probe.step(state, piece)
        return scores[0].detach().numpy()

    return pooled


def naive_pooled(gap, _):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(logits_at(gap)) @ KEYS / np.exp(logits_at(gap)).sum()


POOLED = {
    "training": pooled_by_training,
    "probes": lambda gap, _: numpy_reading(gap, KEYS).scores[0, :, 0],
    "compiled probes": lambda gap, _: np.array([compiled_pass(gap, column)[1] for column in KEYS.T]),
    "torch pool": pooled_by_torch,
    "running, one token at a time": pooled_while_running([1, 1, 1, 1]),
    "running, three tokens and one": pooled_while_running([3, 1]),
    "running, two and two": pooled_while_running([2, 2]),
    "stream of a probe, one token at a time": pooled_by_a_stream([1, 1, 1, 1]),
    "stream of a probe, two and two": pooled_by_a_stream([2, 2]),
    "module of a probe, one token at a time": pooled_by_a_module([1, 1, 1, 1]),
    "module of a probe, two and two": pooled_by_a_module([2, 2]),
    "page": lambda gap, request: of_page(gap, request)[2],
}


def error_of_pooled(pooled, gap, request):
    true = [float(mp.fdot(exact(gap), column)) for column in KEYS.T]
    return np.abs(pooled(gap, request) - true).max() / np.abs(KEYS).max()


@pytest.mark.parametrize("gap", [*GAPS, FAR])
@pytest.mark.parametrize("name", POOLED)
def test_the_pooled_key_is_exact(name, gap, request):
    # What runs along keeps the log of a sum, which is as large as the logits, and rounds it at every read.
    of_log = 2 * np.finfo(float).eps * logits_at(gap).max() if name.startswith("running") else 0
    assert error_of_pooled(POOLED[name], gap, request) < ROUNDING + of_log


@pytest.mark.parametrize(("gap", "overflows"), [(GAPS[0], False), (FAR, True)])
def test_exponentials_that_are_not_relative_overflow(gap, overflows, request):
    assert (not error_of_pooled(naive_pooled, gap, request) < ROUNDING) == overflows


# ---------------------------------------------------------------------- the losing weight 1 − s_winner


def losing_by_training(gap):
    import jax

    from attsvm import Tokens
    from attsvm.training import attention
    from attsvm.training.data import arrays

    with jax.enable_x64(True):
        softmax = attention.attend(arrays(Tokens(KEYS[None])), np.array([[gap], [0.0]]))
        return float(softmax.losing.sum())


def losing_by_pool(gap):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch.probe import losing_weights, relative_logits

    return float(losing_weights(*relative_logits(torch.tensor(logits_at(gap)), None))[0].sum())


def sums(gap, kernel):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    from attsvm.torch import statistics
    from attsvm.torch.statistics import Logits

    if kernel and not torch.cuda.is_available():
        pytest.skip("no GPU")
    kind = {"dtype": torch.float32, "device": "cuda"} if kernel else {"dtype": torch.float64}
    key, query = torch.tensor(KEYS, **kind)[None, None], torch.tensor([[[[gap, 0.0]]]], **kind)
    logits = Logits(query, key, None, 1.0)
    if not kernel:
        return statistics._winner_sums(logits, None)
    from attsvm.torch.statistics_kernel import winner_sums

    return statistics.WinnerSums(*winner_sums(logits, None))


def losing_by_statistics(gap, kernel=False):
    E = float(sums(gap, kernel).E)
    return E / (1 + E)


def naive_losing(gap):
    powers = np.exp(logits_at(gap) - logits_at(gap).max())
    return 1 - powers.max() / powers.sum()


def losing_tokens(attention):
    attention = np.asarray(attention, float)
    return np.delete(attention, 1).sum() / attention.sum()


LOSING = {
    "training": losing_by_training,
    "probes": lambda gap: losing_tokens(numpy_reading(gap, KEYS).attention[0, 0]),
    "compiled probes": lambda gap: losing_tokens(compiled_pass(gap, SCORES)[2]),
    "torch pool": losing_by_pool,
    "statistics": losing_by_statistics,
    "the kernel of statistics": lambda gap: losing_by_statistics(gap, kernel=True),
}


def error_of_losing(losing, gap):
    s = exact(gap)
    true = mp.fsum(w for t, w in enumerate(s) if t != 1)
    return float(abs(losing(gap) - true) / true)


@pytest.mark.parametrize("gap", [1.0, 50.0])
@pytest.mark.parametrize("name", LOSING)
def test_the_losing_weight_is_exact(name, gap):
    assert error_of_losing(LOSING[name], gap) < (SINGLE if "kernel" in name else ROUNDING)


@pytest.mark.parametrize(("gap", "cancels"), [(1.0, False), (50.0, True)])
def test_one_less_the_weight_of_the_winner_cancels(gap, cancels):
    assert (error_of_losing(naive_losing, gap) > 0.1) == cancels
