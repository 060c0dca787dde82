"""SelectiveAttention against the plain formula."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from attsvm.torch import AttentionPooling, MarginMonitor, SelectiveAttention  # noqa: E402

TOLERANCE = 1e-12  # float64; sums of ten terms


@pytest.fixture
def problem():
    torch.manual_seed(0)
    module = SelectiveAttention(5, heads=2, query_width=3, token_part=True).double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_()
    tokens, queries = torch.randn(4, 6, 5).double(), torch.randn(4, 3).double()
    mask = torch.arange(6) < torch.tensor([6, 3, 2, 5])[:, None]
    return module, tokens, queries, mask


def by_hand(module, tokens, queries, mask, positions):
    """Softmax written out, number by number."""
    module.requires_grad_(False)
    out = torch.zeros(len(tokens), module.heads, module.d, dtype=torch.float64)
    for n, i in enumerate(positions):
        for h, W in enumerate(module.weights):
            rate = math.exp(-math.exp(float(module.beta[h])))
            tau = 1 + rate * math.log(i) + math.tanh(float(module.token[h] @ queries[n]))
            kept = [t for t in range(tokens.shape[1]) if mask[n, t]]
            terms = [math.exp(tau * float(tokens[n, t] @ W @ queries[n])) for t in kept]
            out[n, h] = sum(e * tokens[n, t] for e, t in zip(terms, kept, strict=True)) / sum(terms)
    return out.flatten(1)


def test_it_is_the_plain_formula(problem):
    module, tokens, queries, mask = problem
    positions = [9, 1, 4, 2]
    found = module(tokens, queries, mask, positions=torch.tensor(positions))
    expected = by_hand(module, tokens, queries, mask, positions)
    assert torch.allclose(found, expected, atol=TOLERANCE, rtol=0)
    shifted = by_hand(module, tokens, queries, mask, [p + 1 for p in positions])
    assert not torch.allclose(found, shifted, atol=1e-4, rtol=0)


def test_without_positions_the_tokens_that_count_are_the_position(problem):
    module, tokens, queries, mask = problem
    given = module(tokens, queries, mask, positions=torch.tensor([6, 3, 2, 5]))
    assert torch.equal(module(tokens, queries, mask), given)


def test_with_a_rate_of_zero_it_is_attention_pooling(problem):
    _, tokens, queries, mask = problem
    selective, plain = SelectiveAttention(5, 2, query_width=3), AttentionPooling(5, 2, query_width=3)
    selective, plain = selective.double(), plain.double()
    plain.load_state_dict({name: w for name, w in selective.state_dict().items() if name != "beta"})
    assert not torch.allclose(selective(tokens, queries, mask), plain(tokens, queries, mask), atol=1e-6)
    with torch.no_grad():
        selective.beta.fill_(6.0)  # exp(−e⁶) is below 1e-170
    assert torch.equal(selective(tokens, queries, mask), plain(tokens, queries, mask))


def test_its_gradient_is_that_of_finite_differences(problem):
    module, tokens, queries, mask = problem
    assert torch.autograd.gradcheck(
        lambda beta, token: _with(module, beta, token)(tokens, queries, mask), (module.beta, module.token)
    )


def _with(module, beta, token):
    return lambda *given: torch.func.functional_call(module, {"beta": beta, "token": token}, given)


def test_the_monitor_reads_its_logits_with_the_temperature(problem):
    module, tokens, queries, mask = problem
    with MarginMonitor(module) as monitor:
        module(tokens, queries, mask)
        mass = [record.top_mass for record in monitor.record(0)]
    expected = module.attention(tokens, queries, mask).amax(-1).mean(0)
    assert torch.allclose(torch.tensor(mass, dtype=torch.float64), expected, atol=TOLERANCE)


@pytest.mark.parametrize("positions", [torch.zeros(4), torch.ones(4, 1)], ids=["zero", "two axes"])
def test_positions_count_from_one(problem, positions):
    module, tokens, queries, mask = problem
    with pytest.raises(ValueError, match="counted from 1"):
        module(tokens, queries, mask, positions=positions)


def test_a_prompt_has_no_token_part():
    with pytest.raises(ValueError, match="query_width"):
        SelectiveAttention(5, token_part=True)


def test_a_value_temperature_scales_each_value_by_what_its_token_says(problem):
    _, tokens, queries, mask = problem
    module = SelectiveAttention(5, heads=2, query_width=3, value_part=True).double()
    plain = SelectiveAttention(5, heads=2, query_width=3).double()
    plain.load_state_dict({name: w for name, w in module.state_dict().items() if name != "value"})
    assert torch.equal(module(tokens, queries, mask), plain(tokens, queries, mask))  # c = 0: factors of one
    with torch.no_grad():
        module.value.normal_()
    weights, padded = module.attention(tokens, queries, mask), torch.where(mask[..., None], tokens, torch.nan)
    expected = torch.zeros(4, 2, 5).double()
    for n, h, t in zip(*torch.nonzero(weights, as_tuple=True), strict=True):
        factor = 1 + math.tanh(float(tokens[n, t] @ module.value[h]))
        expected[n, h] += weights[n, h, t] * factor * tokens[n, t]
    found = module(padded, queries, mask)
    assert torch.allclose(found, expected.flatten(1), atol=TOLERANCE, rtol=0)
    assert not torch.allclose(found, plain(tokens, queries, mask), atol=1e-3, rtol=0)


def test_only_a_value_temperature_silences_a_text_of_noise():
    torch.manual_seed(0)
    noise = torch.randn(1, 6, 3).double()
    noise[..., 0] = 5.0  # what tells noise from other tokens
    module = SelectiveAttention(3, value_part=True).double()
    floor = module(noise).norm().detach()
    with torch.no_grad():
        module.value[:, 0] = -2.0
    assert module(noise).norm() < 1e-7 * floor and floor > 1
