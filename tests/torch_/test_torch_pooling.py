"""Attention pooling: softmax's values, and a gradient that survives where softmax's is zero."""

import mpmath as mp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

from attsvm.torch import AttentionPooling, attention, pool  # noqa: E402


def random(*shape, dtype=torch.float64, seed=0, grad=False):
    draw = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return draw.to(dtype).requires_grad_(grad)


def some_mask(*shape):
    mask = random(*shape, seed=9) > 0
    mask[..., 0] = True
    return mask


def textbook(logits, values, mask=None):
    logits = logits if mask is None else logits.masked_fill(~mask, -torch.inf)
    return (torch.softmax(logits, -1)[..., None, :] @ values)[..., 0, :]


def exact_gradient(logits, scores):
    """s_t (γ_t − Σ s γ), with more digits than cancel: the logarithm of its size, and its sign."""
    with mp.workdps(int(40 + max(logits) - min(logits)) // 2):
        weights = [mp.exp(mp.mpf(a) - mp.mpf(max(logits))) for a in logits]
        s = [w / mp.fsum(weights) for w in weights]
        f = mp.fdot(s, [mp.mpf(g) for g in scores])
        exact = [w * (mp.mpf(g) - f) for w, g in zip(s, scores, strict=True)]
        return np.array([float(mp.log(abs(x))) for x in exact]), np.array([float(mp.sign(x)) for x in exact])


def gradient(function, logits, values, direction, **options):
    logits = logits.clone().requires_grad_()
    (function(logits, values, **options) * direction).sum().backward()
    return logits.grad


# ---------------------------------------------------------------------- values and derivatives


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pooling_is_softmax_pooling(dtype):
    logits, values, mask = random(3, 2, 5, dtype=dtype), random(3, 1, 5, 4, dtype=dtype), some_mask(3, 1, 5)
    torch.testing.assert_close(pool(logits, values, mask), textbook(logits, values, mask))
    torch.testing.assert_close(attention(logits, mask).sum(-1), torch.ones(3, 2, dtype=dtype))
    assert (attention(logits, mask)[~mask.expand(3, 2, 5)] == 0).all()
    assert not torch.allclose(pool(logits, values), textbook(logits, values, mask))


def test_first_and_second_derivatives_are_right():
    inputs = random(2, 5, grad=True), random(2, 5, 3, seed=1, grad=True)
    masked = lambda logits, values: pool(logits, values, some_mask(2, 5))  # noqa: E731
    assert torch.autograd.gradcheck(masked, inputs)
    assert torch.autograd.gradgradcheck(masked, inputs)


def test_a_gradient_may_be_taken_by_torch_func_over_a_batch():
    logits, values = random(4, 5), random(4, 5, 3, seed=1)
    per_row = torch.func.vmap(torch.func.grad(lambda a, x: pool(a, x).sum()))(logits, values)
    torch.testing.assert_close(per_row, gradient(textbook, logits, values, 1.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_pooled_in_single(dtype):
    logits, values = random(3, 5, dtype=dtype), random(3, 5, 4, dtype=dtype, seed=1)
    assert pool(logits, values).dtype == dtype
    assert attention(logits).dtype == torch.float32


# ---------------------------------------------------------------------- saturation


@pytest.mark.parametrize(("dtype", "gaps"), [(torch.float64, (50, 600)), (torch.float32, (20, 80))], ids=str)
def test_the_gradient_is_exact_where_softmax_has_saturated(dtype, gaps):
    logits = torch.tensor([1_000.0, 1_000 - gaps[0], 1_000 - gaps[1]], dtype=dtype)
    values, direction = random(3, 2, dtype=dtype), random(2, dtype=dtype, seed=1)
    size, sign = exact_gradient(logits.tolist(), (values @ direction).tolist())
    ours = gradient(pool, logits, values, direction).double().numpy()
    np.testing.assert_allclose(np.log(np.abs(ours)), size, atol=1e-5 if dtype == torch.float32 else 1e-13)
    assert (np.sign(ours) == sign).all()
    assert gradient(textbook, logits, values, direction)[0] == 0  # the winner's gradient has cancelled


def test_a_scale_free_gradient_is_exact_where_every_losing_weight_underflows():
    logits, values, direction = torch.tensor([5e3, 3.5, 2.0, -1e3]).double(), random(4, 2), random(2, seed=1)
    size, sign = exact_gradient(logits.tolist(), (values @ direction).tolist())
    ours = gradient(pool, logits, values, direction, scale_free=True).numpy()
    kept = size > size.max() - 700
    np.testing.assert_allclose(
        ours[kept], (sign * np.exp(size - size.max()) * abs(ours).max())[kept], rtol=1e-12
    )
    assert (gradient(pool, logits, values, direction) == 0).all()


def test_a_scale_free_gradient_is_a_multiple_of_the_true_one_and_values_get_theirs():
    logits, mask, direction = random(4, 6), some_mask(4, 6), random(4, 3, seed=2)
    values, twin = random(4, 6, 3, seed=1, grad=True), random(4, 6, 3, seed=1, grad=True)
    true = gradient(pool, logits, values, direction, mask=mask)
    free = gradient(pool, logits, twin, direction, mask=mask, scale_free=True)
    torch.testing.assert_close(free / free.norm(), true / true.norm())
    assert free.norm() > 1.01 * true.norm()
    torch.testing.assert_close(values.grad, twin.grad)


TIED = [(5.0, c, T) for c in (1, 2, 7) for T in (3, 5, 33)]
TIED += [(80.0, 1, 9), (80.0, 7, 3), (300.0, 1, 3), (300.0, 2, 5), (2e3, 2, 3)]


@pytest.mark.parametrize(("far", "c", "T"), TIED)
def test_a_losing_token_with_the_value_of_the_winner_hides_no_other(far, c, T):
    rows = 3
    logits = -far * (1 + random(rows, T, seed=T).abs())
    values, direction = random(rows, T, c, seed=c), random(rows, c, seed=2)
    for i in range(rows):
        winner, tied = (i + 1) % T, (i + 2) % T
        logits[i, winner], logits[i, tied] = 1.0, -0.5
        values[i, tied] = values[i, winner]
    exact = [
        exact_gradient(a.tolist(), (x @ u).tolist())
        for a, x, u in zip(logits, values, direction, strict=True)
    ]
    size, sign = (np.array(part) for part in zip(*exact, strict=True))
    wanted = sign * np.exp(size - size.max())
    ours = gradient(pool, logits, values, direction, scale_free=True).numpy()
    np.testing.assert_allclose(ours / np.abs(ours).max(), wanted, rtol=0, atol=1e-10)


def test_each_head_has_a_winner_of_its_own_and_ties_of_its_own():
    logits = torch.tensor([[[0.0, -1.0, -900.0], [-900.0, -1.0, 0.0]]]).double()
    values, direction = random(1, 1, 3, 2), random(1, 2, 2, seed=1)
    values[..., 1, :] = values[..., 0, :]  # tied for the first head; for the second it pulls, and is all
    ours = gradient(pool, logits, values, direction, scale_free=True)[0].numpy()
    size, sign = exact_gradient(logits[0, 1].tolist(), (values[0, 0] @ direction[0, 1]).tolist())
    np.testing.assert_allclose(ours[1] / np.abs(ours[1]).max(), sign * np.exp(size - size.max()), atol=1e-12)
    alone = gradient(pool, logits[:, :1], values, direction[:, :1], scale_free=True)[0, 0].numpy()
    size, sign = exact_gradient(logits[0, 0].tolist(), (values[0, 0] @ direction[0, 0]).tolist())
    np.testing.assert_allclose(alone / np.abs(alone).max(), sign * np.exp(size - size.max()), atol=1e-12)


# ---------------------------------------------------------------------- the module


def test_each_head_pools_on_its_own_and_ignores_masked_tokens():
    pooling, tokens, mask = AttentionPooling(4, heads=3).double(), random(2, 5, 4), some_mask(2, 5)
    pooled = pooling(tokens, mask=mask)
    assert pooled.shape == (2, 12) and len(pooling.weights) == 3
    torch.testing.assert_close(pooled[:, 4:8], textbook(pooling.logits(tokens)[:, 1], tokens, mask))
    changed = torch.where(mask[..., None], tokens, 99.0)
    assert torch.equal(pooling(changed, mask=mask), pooled)
    assert not torch.equal(pooling(changed), pooling(tokens))


@pytest.mark.parametrize("padding", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("scale_free", [False, True])
def test_what_padding_holds_enters_neither_the_value_nor_a_gradient(scale_free, padding):
    torch.manual_seed(0)
    pooling = AttentionPooling(4, 3, scale_free=scale_free).double()
    tokens, mask = random(2, 5, 4), some_mask(2, 5)
    results = []
    for fill in (0.0, padding):
        filled = torch.where(mask[..., None], tokens, fill).requires_grad_()
        pooled = pooling(filled, mask=mask)
        pooled.square().sum().backward()
        weights = [p.grad.clone() for p in pooling.weights]
        results.append((pooled, filled.grad, pooling.attention(filled, mask=mask), *weights))
        pooling.zero_grad()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other) and torch.isfinite(one).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.ones(2, 5, 3)), r"tokens have shape \(2, 5, 3\)"),
        (lambda m: m(torch.ones(2, 5, 4), torch.ones(2, 4)), "query_width"),
        (lambda m: m(torch.ones(2, 5, 4), mask=torch.ones(2, 5)), "Pass booleans"),
        (lambda m: m(torch.ones(2, 5, 4), mask=torch.zeros(2, 5, dtype=torch.bool)), "False everywhere"),
        (lambda m: m(torch.ones(2, 5, 4), mask=torch.ones(2, 6, dtype=torch.bool)), "one boolean per token"),
        (lambda m: m(torch.ones(2, 5, 4), values=torch.ones(2, 6, 1)), "one row per logit"),
        (lambda m: AttentionPooling(4, query_width=2)(torch.ones(2, 5, 4)), "queries: expected"),
        (lambda m: AttentionPooling(4, heads=0), "heads = 0"),
        (lambda m: attention(torch.ones(3, dtype=torch.int64)), "real numbers"),
    ],
)
def test_wrong_input_is_refused_in_words(call, message):
    with pytest.raises(ValueError, match=message):
        call(AttentionPooling(4))
