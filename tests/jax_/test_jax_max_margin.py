"""Max-margin programs as a layer of JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attsvm as att
from attsvm.jax import NotDifferentiable, max_margin
from tests.jax_.rounded import rounded_anew

RUNS, N, T, D, E = 3, 2, 4, 5, 3
STEP = 1e-5
CLOSE = 1e-6
"""Relative error of central differences."""
SOFT = 10
"""Soft margins are solved to 1e-8: their differences take longer steps, and have a larger error."""
SAME = 1e-10
"""Two ways to one float64 number."""
NAMES = ("keys", "queries", "required", "slack")


@pytest.fixture
def data():
    """Keys, queries, required margins and prices in float64, and selected indices."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        shapes = (RUNS, N, T, D), (RUNS, N, E), (RUNS, N), (RUNS, N)
        keys, queries, *rest = (rng.normal(size=s) for s in shapes)
        arrays = [jnp.asarray(x) for x in (keys, queries, *(0.5 + abs(x) for x in rest))]
        yield dict(zip(NAMES, arrays, strict=True)), rng.integers(0, T, (RUNS, N))


@pytest.fixture
def unseparable(data):
    """Keys of which the tokens of one example of run 1 are equal, and the selection."""
    return data[0]["keys"].at[1, 0].set(0.5), data[1]


def hard(data):
    return {name: x for name, x in data.items() if name != "slack"}


def summed(selected, norm="frobenius"):
    """A function of all results that has a gradient in all data."""

    def value(data):
        result = max_margin(**data, selected=selected, norm=norm)
        parts = result.W, result.norm, result.multipliers, result.margin
        parts += () if result.shortfall is None else (result.shortfall,)
        return sum((jnp.cos(jnp.arange(x.size)).reshape(x.shape) * x).sum() for x in parts)

    return value


def error(value, data, gradient, step=STEP):
    """Of the slope along a random direction, relative to the central difference."""
    rng = np.random.default_rng(1)
    direction = {name: jnp.asarray(x * rng.normal(size=x.shape)) for name, x in data.items()}
    ends = [value({k: x + t * step * direction[k] for k, x in data.items()}) for t in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * step)
    slope = sum((gradient[k] * x).sum() for k, x in direction.items())
    return float(abs(slope - expected) / abs(expected))


def test_the_results_are_those_of_the_solver(data):
    arrays, selected = hard(data[0]), data[1]
    result = max_margin(**arrays, selected=selected)
    for k in range(RUNS):
        keys, queries, required = (np.asarray(x[k]) for x in arrays.values())
        solution = att.max_margin(att.Tokens(keys, queries), selected[k], required=required)
        np.testing.assert_allclose(result.W[k], solution.W, atol=SAME)
        np.testing.assert_allclose(result.multipliers[k], solution.token_multipliers, atol=SAME)
        np.testing.assert_array_equal(result.support[k], solution.support)
        assert result.margin[k] == pytest.approx(solution.margin)
    assert result.solution.certified.all()
    assert result.regular.all()


@pytest.mark.parametrize("norm", ["frobenius", "lp:3", "schatten:1.5", "l1"])
@pytest.mark.parametrize("compiled", [False, True], ids=["", "jit"])
def test_gradients_are_those_of_central_differences(data, norm, compiled):
    value, arrays = summed(data[1], norm), hard(data[0])
    gradient_of = jax.jit(jax.grad(value)) if compiled else jax.grad(value)
    gradient = gradient_of(arrays)
    assert error(value, arrays, gradient) < CLOSE
    assert error(value, arrays, {k: 0.5 * x for k, x in gradient.items()}) > 0.1


def test_soft_margins_have_gradients_in_the_price_too(data):
    value, arrays = summed(data[1]), data[0] | {"slack": 0.1 * data[0]["slack"]}
    gradient = jax.jit(jax.grad(value))(arrays)
    assert jnp.any(gradient["slack"] != 0)
    assert error(value, arrays, gradient, SOFT * STEP) < SOFT * CLOSE


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_no_gradient_hangs_on_a_choice_among_rounded_numbers(data, soft):
    arrays = data[0] | {"slack": 0.1 * data[0]["slack"]} if soft else hard(data[0])
    gradient_of = jax.grad(summed(data[1]))
    gradient = gradient_of(arrays)
    for seed in range(3):
        rounded = rounded_anew(gradient_of, seed)(arrays)
        for name in arrays:
            np.testing.assert_allclose(rounded[name], gradient[name], rtol=SAME, atol=SAME)


def test_an_operation_that_chooses_among_rounded_numbers_is_seen(data):
    def largest(keys):  # as shortfalls were computed once
        return keys.max(-1).sum()

    gradients = [rounded_anew(jax.grad(largest), seed)(data[0]["keys"]) for seed in range(3)]
    assert not any(np.allclose(x, jax.grad(largest)(data[0]["keys"])) for x in gradients)


def test_the_shortfall_is_that_of_the_solution(data):
    result = max_margin(**data[0] | {"slack": 0.1 * data[0]["slack"]}, selected=data[1])
    np.testing.assert_allclose(result.shortfall, result.solution.shortfall, atol=SAME)
    assert (result.shortfall == 0).any() and (result.shortfall > 0.1).any()


def test_vmap_and_jit_change_no_number(data):
    arrays, selected = hard(data[0]), jnp.asarray(data[1])
    one = jax.value_and_grad(lambda data, selected: summed(selected)(data))
    each = [one({k: x[r] for k, x in arrays.items()}, selected[r]) for r in range(RUNS)]
    together = jax.tree.map(lambda *x: jnp.stack(x), *each)
    for mapped in (jax.vmap(one), jax.jit(jax.vmap(one)), jax.vmap(jax.jit(one))):
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=SAME, atol=SAME), mapped(arrays, selected), together
        )
    shared = jax.vmap(lambda keys: max_margin(keys, selected[0], arrays["queries"][0]).W)(arrays["keys"])
    np.testing.assert_allclose(shared, max_margin(arrays["keys"], selected[0], arrays["queries"][0]).W)


def test_the_layer_of_torch_has_the_same_gradient(data):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from attsvm.torch import max_margin as torch_max_margin

    arrays = {k: torch.tensor(np.asarray(x), requires_grad=True) for k, x in data[0].items()}
    torch_max_margin(**arrays, selected=data[1]).W.square().sum().backward()
    gradient = jax.grad(lambda d: jnp.square(max_margin(**d, selected=data[1]).W).sum())(data[0])
    for name, x in arrays.items():
        np.testing.assert_allclose(gradient[name], x.grad, atol=SAME)


def test_float32_programs_keep_certified_solutions(data):
    keys, queries = (np.asarray(data[0][name], np.float32) for name in ("keys", "queries"))
    expected = jax.grad(lambda k: max_margin(k, data[1], data[0]["queries"]).norm.sum())(data[0]["keys"])
    with jax.enable_x64(False):

        @jax.jit
        def of_keys(keys):
            result = max_margin(keys, data[1], queries)
            return result.norm.sum(), result

        (_, result), gradient = jax.value_and_grad(of_keys, has_aux=True)(jnp.asarray(keys))
        assert result.W.dtype == gradient.dtype == result.strictness.dtype == np.float32
        assert result.solution.certified.all()
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_batch_axes_broadcast(data):
    keys, queries, selected = data[0]["keys"], data[0]["queries"], data[1]
    both = np.stack([selected, selected[:, ::-1]], 1)
    every = max_margin(keys[:, None], both, queries[:, None])
    assert every.W.shape == (RUNS, 2, D, E)
    np.testing.assert_allclose(every.W[1, 1], max_margin(keys[1], selected[1, ::-1], queries[1]).W, atol=SAME)
    gradient = jax.grad(lambda z: max_margin(keys, selected, z, unseparable="nan").norm.sum())(queries[0])
    assert gradient.shape == (N, E)
    assert max_margin(keys[0], selected[0], mask=np.ones((N, T), bool)).W.shape == (D, 1)


# ---------------------------------------------------------------------- no solution, no derivative


def test_programs_that_are_not_separable_are_named(unseparable):
    keys, selected = unseparable
    with pytest.raises(att.NotSeparable, match=r"1 of 3 runs \(1\) is not separable.*identical keys"):
        max_margin(keys, selected)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"1 of 3 runs \(1\) is not separable"):
        jax.block_until_ready(jax.jit(lambda k: max_margin(k, selected).norm)(keys))  # a GPU says it late


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["", "jit"])
def test_their_gradient_is_nan_on_request_and_never_zero(unseparable, transform):
    def loss(keys, selected, all_runs):
        result = max_margin(keys, selected, unseparable="nan")
        return jnp.where(result.separable | all_runs, result.margin, 0.0).sum()

    gradient_of = transform(jax.grad(loss))
    gradient = gradient_of(*unseparable, True)
    assert jnp.isnan(gradient[1]).all()
    np.testing.assert_allclose(gradient_of(*unseparable, False), gradient.at[1].set(0.0))


def test_kinks_are_flagged_or_warned_of_or_refused(data):
    keys, selected = data[0]["keys"], data[1]
    i, t = np.argwhere(max_margin(keys, selected).support[0])[0]
    free = next(k for k in range(T) if k not in (t, selected[0, i]))
    keys = keys.at[0, i, free].set(keys[0, i, t])
    for call in (max_margin, jax.jit(max_margin)):
        assert call(keys, selected).regular.tolist() == [False, True, True]
    assert jax.jit(lambda k: max_margin(k, selected).regular)(keys).tolist() == [False, True, True]
    with pytest.warns(NotDifferentiable, match=r"1 of 3 runs \(0\) is not regular"):
        max_margin(keys, selected, degenerate="warn")
    with pytest.raises(NotDifferentiable):
        max_margin(keys, selected, degenerate="raise")


def test_norms_with_kinks_have_the_gradient_of_their_value(data):
    keys, queries, selected = data[0]["keys"], data[0]["queries"], data[1]

    def total(carry, run):  # in a loop JAX makes a cotangent of zeros for W, which nobody asked for
        keys, queries, selected = run
        return carry + max_margin(keys, selected, queries, norm="nuclear").norm, None

    gradient = jax.grad(lambda k: max_margin(k, selected, queries, norm="nuclear").norm.sum())(keys)
    loop = jax.grad(lambda k: jax.lax.scan(total, 0.0, (k, queries, jnp.asarray(selected)))[0])(keys)
    np.testing.assert_allclose(loop, gradient, atol=SAME)
    assert gradient.any()
    with pytest.raises(NotImplementedError, match="Use that of the norm or the margin"):
        jax.grad(lambda k: max_margin(k, selected, queries, norm="nuclear").W.sum())(keys)


def test_what_jax_does_not_get_is_refused(data):
    keys, selected = data[0]["keys"][0], data[1][0]
    with pytest.raises(NotImplementedError, match="For second derivatives use"):
        jax.jacrev(jax.grad(lambda k: max_margin(k, selected).norm))(keys)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jacfwd(lambda k: max_margin(k, selected).norm)(keys)
    with pytest.raises(RuntimeError, match="Return the record from jit"):
        jax.jit(lambda k: max_margin(k, selected).solution.W)(keys)


def test_a_gpu_without_a_cpu_gets_one_sentence(data, monkeypatch):
    def without_cpu(backend):
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", without_cpu)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(RuntimeError, match="Set JAX_PLATFORMS=cuda,cpu before JAX is imported"):
        jax.jit(lambda keys: max_margin(keys, data[1]).norm)(data[0]["keys"])


WRONG = {
    "two axes": (lambda k, s: max_margin(k[0, 0], s), r"keys are float64 of shape \(4, 5\)"),
    "empty": (lambda k, s: max_margin(k[:0], s[:0]), "at least one of each"),
    "integers": (lambda k, s: max_margin(k.astype(int), s), "keys are int64"),
    "list": (lambda k, s: max_margin(k.tolist(), s), "keys are a list"),
    "runs": (lambda k, s: max_margin(k, s[:2]), "do not broadcast"),
    "indices": (lambda k, s: max_margin(k, s + 9), "Pass indices from 0 to 3"),
    "traced indices": (lambda k, s: jax.vmap(max_margin)(k, s + 9), "selected picks no token"),
    "selected": (lambda k, s: max_margin(k, s.astype(float)), "Pass booleans"),
    "queries": (lambda k, s: max_margin(k, s, k), r"Pass \(…, n, e\)"),
    "complex": (lambda k, s: max_margin(k, s, k[..., 0, :] * 1j), "queries is complex128.* real numbers"),
    "nan": (lambda k, s: max_margin(k * jnp.nan, s), "keys.* is nan"),
    "mask": (lambda k, s: max_margin(k, s, mask=jnp.ones((N, T))), "mask is float64.*Pass booleans"),
    "required": (lambda k, s: max_margin(k, s, required=jnp.ones(5)), "Pass one number, or"),
    "nan required": (lambda k, s: max_margin(k, s, required=[1.0, np.nan]), "required must be finite"),
    "slack": (lambda k, s: max_margin(k, s, slack=-1.0), "slack must be ≥ 0"),
    "option": (lambda k, s: max_margin(k, s, unseparable="zero"), "Pass 'raise' or 'nan'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gets_one_sentence(name, data):
    call, message = WRONG[name]
    with pytest.raises((ValueError, TypeError, jax.errors.JaxRuntimeError), match=message):
        jax.block_until_ready(call(data[0]["keys"], data[1]))
