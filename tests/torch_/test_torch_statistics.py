"""attention_statistics: what queries select, without the logits of all pairs, equal to dense float64."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

import attsvm.torch.statistics as plain  # noqa: E402
from attsvm.torch import attention_statistics  # noqa: E402

SINGLE = 1e-5
"""Sums of a hundred float32 products of size ten."""

HALVES = (torch.bfloat16, torch.float16)
SHAPES = [(2, 4, 2, 9, 9, 16), (1, 2, 1, 5, 70, 24), (1, 3, 3, 65, 130, 64), (2, 2, 2, 1, 33, 128)]
RULES = [
    {},
    {"causal": True},
    {"causal": True, "window": 4},
    {"window": 7},
    {"causal": True, "soft_cap": 5.0},
]
MASKS = ["none", "tokens", "pairs", "added"]
PAIRS = [(rule, kind) for k, rule in enumerate(RULES) for kind in (MASKS[k % 4], MASKS[(k + 1 + k // 4) % 4])]
"""Every rule with two masks, every mask with two rules."""


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(plain, "BLOCK", 2**11)  # several blocks of queries and keys
    monkeypatch.setattr(plain, "KEYS", 16)
    return request.param


def dense(query, key, *, scale=None, causal=False, mask=None, window=None, soft_cap=None, selected=None):
    """The definitions, with all logits in float64."""
    query, key = query.double(), key.double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    t, s = query.shape[2], key.shape[2]
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask.double()
    ahead = torch.arange(s, device=query.device) - torch.arange(s - t, s, device=query.device)[:, None]
    if causal:
        logits = logits.masked_fill(ahead > 0, -torch.inf)
    if window:
        logits = logits.masked_fill(ahead.abs() >= window, -torch.inf)
    weights, top = torch.softmax(logits, -1), logits.topk(2, -1).values
    found = [top[..., 0], logits.argmax(-1), top[..., 0] - top[..., 1], logits.logsumexp(-1)]
    found += [-torch.special.xlogy(weights, weights).sum(-1), 1 / weights.square().sum(-1), weights[..., 0]]
    return [*found, (weights * selected).sum(-1)]


def drawn(shape, dtype, kind, device="cpu", seed=0):
    """Queries, keys, a mask that leaves every query its last visible key, and a selection."""
    g = torch.Generator().manual_seed(seed)
    n, heads, groups, t, s, d = shape
    query, key = 3 * torch.randn(n, heads, t, d, generator=g), torch.randn(n, groups, s, d, generator=g)
    tokens, pairs = (torch.rand(size, generator=g) < 0.8 for size in ((n, 1, 1, s), (n, heads, t, s)))
    own = torch.arange(s) == torch.arange(s - t, s)[:, None]
    added = torch.randn(1, heads, t, s, generator=g)
    mask = {"none": None, "tokens": tokens | own, "pairs": pairs | own, "added": added}[kind]
    selected = torch.rand(n, heads, t, s, generator=g) < 0.3
    moved = [None if x is None else x.to(device) for x in (mask, selected)]
    return query.to(device, dtype), key.to(device, dtype), *moved


def worst(found, expected):
    """The largest difference, relative to numbers above one; places where the lead is not rounding."""
    off = [float((a != b)[expected[2] > 1e-4].sum()) for a, b in [(found.where, expected[1])]]
    for name, b in zip(found._fields, expected, strict=True):
        if name != "where":
            a = getattr(found, name).double()
            gap = torch.where(a == b, 0, (a - b).abs() / b.abs().clamp_min(1))
            off.append(float(gap.max()))
    return max(off)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_equal_those_of_all_logits_in_float64(device, shape, dtype):
    for rule, kind in PAIRS:
        query, key, mask, selected = drawn(shape, dtype, kind, device)
        how = {**rule, "mask": mask, "selected": selected}
        found = attention_statistics(query, key, **how)
        assert worst(found, dense(query, key, **how)) < SINGLE, (rule, kind)
    other = dense(query, key, **{**how, "scale": 0.1})
    assert worst(found, other) > 100 * SINGLE


def test_float64_is_computed_in_float64(device):
    query, key, _, selected = drawn(SHAPES[2], torch.float64, "none", device)
    how = {"causal": True, "selected": selected}
    assert worst(attention_statistics(query, key, **how), dense(query, key, **how)) < 1e-13
    single = attention_statistics(query.float(), key.float(), **how)
    assert worst(single, dense(query, key, **how)) > 1e-9


def test_entropy_and_sparsity_keep_their_digits_past_saturation(device):
    """Two keys, a gap of 50: s = e⁻⁵⁰ of the loser, which 1 − s in float64 would not see."""
    gap = 50.0
    query, key = torch.ones(1, 1, 1, 1), torch.tensor([gap, 0.0])[None, None, :, None]
    found = attention_statistics(query.to(device), key.to(device), scale=1.0)
    small = math.exp(-gap)
    assert abs(float(found.entropy) / (small * (1 + gap)) - 1) < SINGLE
    weights = torch.softmax(torch.tensor([gap, 0.0], dtype=torch.float64), -1)
    textbook = -torch.special.xlogy(weights, weights)[0]
    assert float(textbook) == 0  # the winner's part of the entropy, small, is lost there
    assert float(found.margin) == pytest.approx(gap, rel=SINGLE) and float(found.soft_sparsity) == 1


def test_equal_logits_a_single_key_and_no_key_at_all(device):
    ones = torch.ones(1, 1, 2, 4, device=device)
    found = attention_statistics(ones, ones.repeat(1, 1, 20, 1))
    assert (found.where == 0).all() and (found.margin == 0).all()
    assert torch.allclose(found.soft_sparsity, torch.tensor(40.0, device=device))
    assert (attention_statistics(ones, ones[:, :, :1]).margin == torch.inf).all()
    nothing = attention_statistics(ones, ones, mask=torch.tensor([[False, False]], device=device))
    assert (nothing.where == -1).all() and (nothing.largest == -torch.inf).all()
    assert all(not x.isnan().any() for x in nothing[:-1])
    assert attention_statistics(ones[:, :, :0], ones).entropy.shape == (1, 1, 0)


def test_torch_compile_keeps_the_operator_whole():
    query, key, mask, _ = drawn(SHAPES[0], torch.float32, "tokens")

    def lead(q, k):
        return 2 * attention_statistics(q, k, mask=mask, causal=True).entropy

    compiled = torch.compile(lead, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(query, key), lead(query, key))
    assert not torch.equal(compiled(query, 2 * key), lead(query, key))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": torch.ones(1, 3, 5, 8)}, "multiple of the groups"),
        ({"key": torch.ones(1, 2, 5, 4)}, r"expected \(batch, heads, t, d\)"),
        ({"key": torch.ones(1, 2, 5, 8).double()}, "one floating type"),
        ({"window": 0}, "at least 1"),
        ({"soft_cap": 0.0}, "positive"),
        ({"mask": torch.ones(4, 4, dtype=torch.bool)}, "does not broadcast"),
        ({"selected": torch.ones(5)}, "booleans"),
    ],
)
def test_what_cannot_be_is_said(change, told):
    how = {"query": torch.ones(1, 4, 5, 8), "key": torch.ones(1, 2, 5, 8), **change}
    with pytest.raises(ValueError, match=told):
        attention_statistics(**how)
