"""Max-margin programs as a layer of torch."""

import numpy as np
import pytest

import attsvm as att

torch = pytest.importorskip("torch", reason="needs PyTorch")

from attsvm.torch import NotDifferentiable, max_margin  # noqa: E402
from tests.torch_.rounded import RoundedAnew  # noqa: E402

RUNS, N, T, D, E = 3, 2, 4, 5, 3
CLOSE = 1e-10
"""Two ways to one derivative, both from solutions that are exact up to rounding."""


@pytest.fixture
def data():
    """Keys, queries, required margins and prices with gradients, and selected indices."""
    rng = torch.Generator().manual_seed(0)
    shapes = (RUNS, N, T, D), (RUNS, N, E), (RUNS, N), (RUNS, N)
    keys, queries, *rest = (torch.randn(s, dtype=torch.float64, generator=rng) for s in shapes)
    required, price = (0.5 + x.abs() for x in rest)
    selected = torch.randint(0, T, (RUNS, N), generator=rng)
    return [x.requires_grad_() for x in (keys, queries, required, price)], selected


@pytest.fixture
def unseparable(data):
    """Keys of which the tokens of one example of run 1 are equal, and the selection."""
    keys = data[0][0].detach().clone()
    keys[1, 0] = 0.5
    return keys.requires_grad_(), data[1]


def hard(selected):
    def results(keys, queries, required):
        result = max_margin(keys, selected, queries, required=required)
        return result.W, result.norm, result.margin, result.multipliers

    return results


def soft(selected):
    def results(keys, queries, required, price):
        result = max_margin(keys, selected, queries, required=required, slack=price)
        return result.W, result.norm, result.multipliers, result.shortfall

    return results


def test_the_results_are_those_of_the_solver(data):
    (keys, queries, required, _), selected = data
    result = max_margin(keys, selected, queries, required=required)
    for k in range(RUNS):
        arrays = (x[k].detach().numpy() for x in (keys, queries, required))
        tokens, margins = att.Tokens(*(x := list(arrays))[:2]), x[2]
        solution = att.max_margin(tokens, selected[k].numpy(), required=margins)
        np.testing.assert_allclose(result.W[k].detach(), solution.W, atol=CLOSE)
        np.testing.assert_allclose(result.multipliers[k].detach(), solution.token_multipliers, atol=CLOSE)
        np.testing.assert_array_equal(result.support[k], solution.support)
        assert result.margin[k].item() == pytest.approx(solution.margin)
    assert result.solution.certified.all()
    assert result.regular.all()


# Soft margins are solved to 1e-8, so that differences need longer steps.
OPTIONS = {hard: {}, soft: {"eps": 1e-5, "atol": 1e-4}}


@pytest.mark.parametrize("kind", OPTIONS)
def test_gradcheck_and_gradgradcheck_hold(kind, data):
    arguments, selected = data
    arguments = [x.detach()[:1].requires_grad_() for x in arguments[: 4 if kind is soft else 3]]
    assert torch.autograd.gradcheck(kind(selected[:1]), arguments, **OPTIONS[kind])
    assert torch.autograd.gradgradcheck(kind(selected[:1]), arguments, **OPTIONS[kind])


def test_gradcheck_can_fail(data):
    arguments, selected = data
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(lambda k: max_margin(k.detach() + 0 * k, selected).W, arguments[:1])


def test_transforms_have_the_same_derivatives(data):
    (keys, queries, required, _), selected = data

    def W(keys, selected=selected[0]):
        return max_margin(keys, selected, queries[0].detach(), required=required[0].detach()).W

    expected = torch.autograd.functional.jacobian(W, keys[0].detach())
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(W)(keys[0].detach()), expected, atol=CLOSE, rtol=CLOSE)
    each = torch.func.vmap(torch.func.jacrev(W))(keys.detach(), selected)
    torch.testing.assert_close(each[0], expected, atol=CLOSE, rtol=CLOSE)


def by_autograd_of_all(function):
    def gradients(*data):
        data = [x.detach().requires_grad_() for x in data]
        return torch.autograd.grad(function(*data), data)

    return gradients


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    "gradients_of",
    [by_autograd_of_all, lambda f: lambda *x: torch.func.grad(f, argnums=tuple(range(len(x))))(*x)],
    ids=["plain", "func"],
)
def test_no_gradient_hangs_on_a_choice_among_rounded_numbers(kind, gradients_of, data):
    arguments, selected = [x.detach() for x in data[0]], data[1]
    arguments = [*arguments[:3], 0.1 * arguments[3]] if kind is soft else arguments[:3]

    def total(*arguments):
        results = kind(selected)(*arguments)
        return sum((x * torch.arange(x.numel()).to(x).cos().reshape(x.shape)).sum() for x in results)

    gradients = gradients_of(total)(*arguments)
    for seed in range(3):
        with RoundedAnew(seed):
            rounded = gradients_of(total)(*arguments)
        torch.testing.assert_close(rounded, gradients, atol=CLOSE, rtol=CLOSE)


def test_an_operation_that_chooses_among_rounded_numbers_is_seen(data):
    keys = data[0][0].detach()
    largest = torch.func.grad(lambda keys: keys.amax(-1).sum())  # as shortfalls were computed once
    with RoundedAnew(0):
        assert not torch.allclose(largest(keys), largest(keys).round())


def test_the_shortfall_is_that_of_the_solution(data):
    (keys, queries, required, price), selected = data
    result = max_margin(keys, selected, queries, required=required, slack=0.1 * price)
    short = torch.from_numpy(result.solution.shortfall)
    torch.testing.assert_close(result.shortfall.detach(), short, atol=CLOSE, rtol=CLOSE)
    assert (short < CLOSE).any() and (short > 0.1).any()


@pytest.mark.parametrize("price", [None, 0.3])
def test_torch_compile_traces_it_as_one_graph(data, price):
    (keys, queries, _, _), selected = data

    def loss(keys):
        result = max_margin(keys, selected, queries.detach(), slack=price)
        return result.W.square().sum() + torch.where(result.regular, result.margin, 0.0).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    value = compiled(keys)
    torch.testing.assert_close(value, loss(keys))
    (gradient,), (expected,) = torch.autograd.grad(value, keys), torch.autograd.grad(loss(keys), keys)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-6)


def test_batch_axes_broadcast(data):
    (keys, queries, _, _), selected = data
    every = max_margin(keys[:, None], torch.stack([selected, selected.flip(-1)], 1), queries[:, None])
    assert every.W.shape == (RUNS, 2, D, E)
    one = max_margin(keys[1], selected[1].flip(-1), queries[1])
    torch.testing.assert_close(every.W[1, 1], one.W, atol=CLOSE, rtol=CLOSE)
    assert one.margin.shape == one.regular.shape == ()
    prompt = max_margin(keys[0], selected[0], mask=torch.ones(N, T, dtype=torch.bool))
    assert prompt.W.shape == (D, 1)


def test_float32_gets_results_and_gradients_of_its_own_type(data):
    (keys, *_), selected = data
    single = keys.detach().float().requires_grad_()
    result = max_margin(single, selected)
    (gradient,) = torch.autograd.grad(result.norm.sum(), single)
    (expected,) = torch.autograd.grad(max_margin(keys, selected).norm.sum(), keys)
    assert result.W.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, expected.float(), rtol=1e-4, atol=1e-4)


def test_a_tensor_that_changes_later_changes_no_solution(data):
    (keys, *_), selected = data
    result = max_margin(keys, selected)
    with torch.no_grad():
        keys.mul_(2)
    assert result.solution.certified.all()


# ---------------------------------------------------------------------- no solution, no derivative


def test_programs_that_are_not_separable_are_named(unseparable):
    keys, selected = unseparable
    with pytest.raises(att.NotSeparable, match=r"1 of 3 runs \(1\) is not separable.*identical keys"):
        max_margin(keys, selected)
    with pytest.raises(att.NotSeparable, match=r"\(1, 0\)"):
        max_margin(keys[:, None], selected[:, None])


def transformed(function):
    return lambda keys, selected: torch.func.grad(lambda k: function(k, selected))(keys)


def by_autograd(function):
    return lambda keys, selected: torch.autograd.grad(function(keys, selected), keys)[0]


@pytest.mark.parametrize("gradient_of", [by_autograd, transformed])
def test_their_gradient_is_nan_on_request_and_never_zero(unseparable, gradient_of):
    def loss(keys, selected):
        return max_margin(keys, selected, unseparable="nan").margin.sum()

    def loss_of_separable(keys, selected):
        result = max_margin(keys, selected, unseparable="nan")
        return torch.where(result.separable, result.margin, 0.0).sum()

    gradient = gradient_of(loss)(*unseparable)
    assert gradient[1].isnan().all()
    expected = gradient.clone()
    expected[1] = 0
    torch.testing.assert_close(gradient_of(loss_of_separable)(*unseparable), expected)


@pytest.mark.parametrize("norm", ["lp:3", "schatten:1.5", "l1", "linf", "nuclear"])
def test_programs_that_are_not_separable_are_nan_in_every_norm(unseparable, norm):
    keys, selected = unseparable
    result = max_margin(keys, selected, norm=norm, unseparable="nan")
    (gradient,) = torch.autograd.grad(result.margin.sum(), keys)
    assert result.W.isnan().flatten(1).any(1).tolist() == [False, True, False]
    assert gradient.isnan().flatten(1).all(1).tolist() == [False, True, False]
    assert result.regular.tolist() == [True, False, True]


def test_kinks_are_flagged_or_warned_of_or_refused(data):
    (keys, *_), selected = data
    keys = keys.detach().clone()
    i, t = max_margin(keys, selected).support[0].nonzero()[0].tolist()
    free = next(k for k in range(T) if k not in (t, selected[0, i]))
    keys[0, i, free] = keys[0, i, t]
    assert max_margin(keys, selected).regular.tolist() == [False, True, True]
    with pytest.warns(NotDifferentiable, match=r"1 of 3 runs \(0\) is not regular"):
        max_margin(keys, selected, degenerate="warn")
    with pytest.raises(NotDifferentiable):
        max_margin(keys, selected, degenerate="raise")


def test_norms_with_kinks_have_the_gradient_of_their_value(data):
    (keys, queries, *_), selected = data
    result = max_margin(keys, selected, queries, norm="nuclear")
    (gradient,) = torch.autograd.grad(result.norm.sum(), keys)
    assert gradient.isfinite().all()
    assert gradient.any()
    with pytest.raises(NotImplementedError, match="Use that of the norm or the margin"):
        max_margin(keys, selected, queries, norm="nuclear").W.sum().backward()


@pytest.mark.parametrize("norm", ["lp:3", "schatten:1.5", "l1"])
def test_gradcheck_holds_in_other_norms(data, norm):
    (keys, queries, *_), selected = data

    def results(keys):
        result = max_margin(keys, selected[:1], queries[:1].detach(), norm=norm)
        return result.W, result.margin, result.multipliers

    assert torch.autograd.gradcheck(results, keys[:1].detach().requires_grad_())
    with pytest.raises(NotImplementedError, match="Pass norm='frobenius'"):
        torch.func.vmap(lambda k: max_margin(k, selected[0], norm=norm).norm)(keys.detach())


NAN = torch.tensor([1.0, torch.nan])
WRONG = {
    "two axes": (lambda k, s: max_margin(k[0, 0], s), r"keys are torch.float64 of shape \(4, 5\)"),
    "empty": (lambda k, s: max_margin(k[:0], s[:0]), "at least one of each"),
    "integers": (lambda k, s: max_margin(k.int(), s), "torch.int32"),
    "array": (lambda k, s: max_margin(k.numpy(), s), "a ndarray"),
    "runs": (lambda k, s: max_margin(k, s[:2]), "do not broadcast"),
    "indices": (lambda k, s: max_margin(k, s + 9), "Pass indices from 0 to 3"),
    "selected": (lambda k, s: max_margin(k, s.double()), "Pass booleans"),
    "queries": (lambda k, s: max_margin(k, s, k), r"Pass \(…, n, e\)"),
    "nan": (lambda k, s: max_margin(k * torch.nan, s), "keys.* is nan"),
    "mask": (lambda k, s: max_margin(k, s, mask=torch.ones(N, T)), "mask is torch.float32.*Pass booleans"),
    "required": (lambda k, s: max_margin(k, s, required=torch.ones(5)), "Pass one number, or"),
    "nan required": (lambda k, s: max_margin(k, s, required=NAN), "required must be finite"),
    "slack": (lambda k, s: max_margin(k, s, slack=-1.0), "slack must be ≥ 0"),
    "devices": (lambda k, s: max_margin(k.to("meta"), s), "keys are on meta but selected on cpu"),
    "option": (lambda k, s: max_margin(k, s, unseparable="zero"), "Pass 'raise' or 'nan'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gets_one_sentence(name, data):
    call, message = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call(data[0][0].detach(), data[1])
