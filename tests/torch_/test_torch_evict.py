"""evict: keys go from a cache, and what is said to be lost is what dense attention loses."""

import pytest

torch = pytest.importorskip("torch", reason="needs attsvm[torch]")

import attsvm as att  # noqa: E402
from attsvm.torch import evict, key_leads, output_costs  # noqa: E402

EXACT = 1e-9
"""Of float64 sums over dozens of keys, with a factor of a thousand."""

SOLVED = 1e-5
"""Of a distance after hundreds of accelerated steps, beside the certified program's."""


def cache(seed=0, heads=4, groups=2, t=6, s=30, d=5, size=2.0):
    draw = torch.Generator().manual_seed(seed)
    query = size * torch.randn(2, heads, t, d, generator=draw, dtype=torch.float64)
    return query, torch.randn(2, groups, s, d, generator=draw, dtype=torch.float64)


def dense(query, key, mask=None):
    """All logits (batch, heads, t, s), −∞ ahead of a query and on padding."""
    group, t, s = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    logits = query @ key.repeat_interleave(group, 1).mT / key.shape[-1] ** 0.5
    there = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    return logits.masked_fill(~(there if mask is None else there & mask[:, None, None]), -torch.inf)


def staying(gone, heads):
    """Which keys stay, for every head (batch, heads, 1, s)."""
    stays = torch.zeros(gone.key.shape[:3], dtype=torch.bool).scatter_(2, gone.kept, True)
    return stays.repeat_interleave(heads // stays.shape[1], 1)[:, :, None]


@pytest.mark.parametrize("budget", [4, 12, 30])
def test_the_loss_is_that_of_dense_attention(budget):
    query, key = cache()
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, :9] = False
    gone = evict(key, budget, query, mask=mask, recent=2)
    logits, stays = dense(query, key, mask), staying(gone, 4)
    fall = logits.amax(-1) - logits.masked_fill(~stays, -torch.inf).amax(-1)
    share = logits.softmax(-1).masked_fill(stays, 0).sum(-1)
    assert torch.allclose(gone.lost, fall, rtol=EXACT, atol=EXACT)
    assert torch.allclose(gone.share, share, rtol=EXACT, atol=EXACT)
    assert gone.kept.shape == (2, 2, budget) and (gone.kept.diff(dim=-1) > 0).all()
    assert (gone.kept[..., -2:] == torch.tensor([28, 29])).all()
    if budget <= 12:
        assert (gone.kept[1] >= 9).all()  # padding goes first
        assert not torch.allclose(gone.share.flip(2), share, rtol=0.01)


def test_nothing_is_lost_while_every_winner_stays_and_then_the_least_lead_goes():
    query, key = (x[:1, :1] for x in cache(size=4.0))
    top = dense(query, key).topk(2, -1)
    leads = top.values.diff(dim=-1).neg()[0, 0, :, 0]
    winners = top.indices[0, 0, :, 0]
    best = {int(key): float(leads[winners == key].max()) for key in winners.unique()}
    assert float(evict(key, len(best), query).lost.max()) == 0
    short = evict(key, len(best) - 1, query)
    weakest = min(best, key=best.get)
    assert set(short.kept.flatten().tolist()) == best.keys() - {weakest}
    lost = short.lost[0, 0]
    assert (lost[winners == weakest] >= leads[winners == weakest] - EXACT).all()
    assert (lost[winners != weakest] == 0).all() and float(lost.max()) > 0


def test_a_needle_that_one_query_wants_stays_by_its_lead_and_goes_by_its_sum_of_attention():
    key = torch.zeros(1, 1, 64, 2, dtype=torch.float64)
    key[:, :, :24, 0], key[:, :, 30, 1] = 1, 1  # 24 keys that all want, one that one query wants
    query = torch.tensor([20.0, 0.0], dtype=torch.float64).repeat(1, 1, 32, 1)
    query[:, :, 7] = query[:, :, 7].flip(-1)
    sums = dense(query, key).softmax(-1).sum(2)
    by_lead, by_sum = evict(key, 24, query), evict(key, 24, query, scores=sums)
    assert 30 in by_lead.kept and float(by_lead.lost.max()) == 0
    assert 30 not in by_sum.kept and float(by_sum.lost[0, 0, 7]) == pytest.approx(20 / 2**0.5)


def test_the_output_moves_by_at_most_the_share_times_the_diameter_of_the_values():
    query, key = cache(size=3.0)
    value = torch.randn(2, 2, 30, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gone, logits, each = evict(key, 8, query), dense(query, key), value.repeat_interleave(2, 1)
    before = logits.softmax(-1) @ each
    after = logits.masked_fill(~staying(gone, 4), -torch.inf).softmax(-1) @ each
    moved = (after - before).norm(dim=-1)
    bound = gone.share * torch.cdist(each, each).amax((-1, -2))[..., None]
    assert (moved <= bound * (1 + EXACT)).all()
    assert (moved > 0.1 * bound).any()  # a bound ten times as small would be false


def test_no_query_at_all_loses_more_than_the_reach_and_the_certified_direction_loses_that():
    _, key = cache(s=20, d=4)
    gone = evict(key, 9)
    reach = gone.reach(300)
    assert gone.lost.shape == (2, 2, 0) and (reach.gather(2, gone.kept) == 0).all()
    keys, kept = key[1, 0], gone.kept[1, 0]
    far = int(reach[1, 0].argmax())
    solution = att.separate((keys[far] - keys[kept]).numpy())
    assert solution.certified
    assert float(reach[1, 0, far]) == pytest.approx(solution.margin, rel=SOLVED)
    query = torch.cat([torch.randn(500, 4, dtype=torch.float64), torch.as_tensor(solution.W).reshape(1, 4)])
    logits = query @ keys.T
    fall = (logits.amax(1) - logits[:, kept].amax(1)) / query.norm(dim=1)
    assert (fall <= float(reach[1, 0].max()) * (1 + EXACT)).all()
    assert (fall > 0.99 * float(reach[1, 0].max())).any()


def test_keys_that_are_mixtures_of_others_are_free():
    draw = torch.Generator().manual_seed(2)
    corners = torch.randn(8, 6, generator=draw, dtype=torch.float64)
    mixtures = torch.rand(24, 8, generator=draw, dtype=torch.float64)
    key = torch.cat([mixtures / mixtures.sum(1, keepdim=True) @ corners, corners])[None, None]
    gone = evict(key, 8)
    assert gone.kept[0, 0].tolist() == list(range(24, 32))
    assert float(gone.reach(500).max()) < 2e-3
    assert float(evict(key, 8, scores=-torch.arange(32.0)[None, None]).reach(500).max()) > 0.5


def test_of_equal_scores_the_later_key_stays_and_half_precision_is_taken():
    query, key = cache()
    assert (evict(key, 3, scores=torch.zeros(2, 2, 30)).kept == torch.tensor([27, 28, 29])).all()
    half = evict(key.bfloat16(), 12, query.bfloat16())
    assert half.lost.dtype == torch.float32 and float(half.lost.max()) < float(half.share.max()) * 100


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget": 0}, "budget is 0"),
        ({"budget": 31}, "of 30 keys"),
        ({"budget": 3, "recent": 4}, "recent 4"),
        ({"budget": 3, "first": 2, "recent": 2}, "first 2 and recent 2"),
        ({"budget": 3, "first": -1}, "first -1"),
        ({"budget": 3, "scores": torch.zeros(2, 30)}, "Pass one per key"),
        ({"budget": 3, "mask": torch.ones(2, 30)}, "Pass query"),
        ({"budget": 2.5}, "budget is 2.5"),
    ],
)
def test_what_cannot_be_evicted_is_said(how, said):
    with pytest.raises(ValueError, match=said):
        evict(cache()[1], **how)
    with pytest.raises(ValueError, match="groups"):
        evict(cache()[1][0], 3)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("asked", [True, False])
def test_a_key_or_query_that_is_no_number_is_said_and_as_padding_changes_nothing(wrong, asked):
    query, key = cache()
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, 4] = False
    expected = evict(key, 8, query, mask=mask)
    key[1, 0, 4, 2] = wrong
    with pytest.raises(ValueError, match=r"key has .* \(1, 0, 4\)"):
        evict(key, 8, query if asked else None)
    gone = evict(key, 8, query, mask=mask)
    assert torch.equal(gone.kept, expected.kept) and torch.equal(gone.lost, expected.lost)
    query[0, 3, 5] = wrong
    with pytest.raises(ValueError, match=r"query has .* \(0, 3, 5\)"):
        evict(cache()[1], 8, query)


@pytest.mark.parametrize("recent", [0, 30])
def test_with_room_for_all_keys_all_stay_and_nothing_is_lost(recent):
    query, key = cache()
    gone = evict(key, 30, query, recent=recent)
    assert (gone.kept == torch.arange(30)).all()
    assert not gone.lost.any() and not gone.share.any() and not gone.reach().any()
    assert evict(key, 29, query).share.any()


# ---------------------------------------------------------------------- both ends


@pytest.mark.parametrize("ranked", ["leads", "scores", "hull"])
def test_both_ends_stay_and_padding_is_no_end(ranked):
    query, key = cache()
    scores = torch.zeros(2, 2, 30)
    scores[..., 10:20] = 1
    how = {"leads": {"query": query}, "scores": {"scores": scores}, "hull": {}}[ranked]
    gone = evict(key, 8, first=3, recent=2, **how)
    assert (gone.kept[..., :3] == torch.arange(3)).all() and (
        gone.kept[..., -2:] == torch.arange(28, 30)
    ).all()
    assert not (evict(key, 8, **how).kept[..., :3] == torch.arange(3)).all()
    if ranked != "hull":
        mask = torch.ones(2, 30, dtype=torch.bool)
        mask[1, :9] = False
        gone = evict(key, 8, first=3, recent=2, mask=mask, **how)
        assert (gone.kept[1, :, :3] == torch.arange(9, 12)).all()
        assert (gone.kept[0, :, :3] == torch.arange(3)).all()


# ---------------------------------------------------------------------- outputs


def values(seed=5, e=3):
    return torch.randn(2, 2, 30, e, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("budget", [1, 4, 12, 30])
def test_the_change_of_the_output_is_that_of_dense_attention_and_within_its_bound(budget, padded):
    (query, key), value, mask = cache(), values(), None
    if padded:
        mask = torch.ones(2, 30, dtype=torch.bool)
        mask[1, :9] = False
        value[1, :, :9] = torch.nan
    gone = evict(key, budget, query, value=value, mask=mask, scores=torch.rand(2, 2, 30))
    stays, each = staying(gone, 4), value.nan_to_num(0).repeat_interleave(2, 1)
    logits = dense(query, key, mask)
    reduced = logits.masked_fill(~stays, -torch.inf)
    sees = reduced.amax(-1) > -torch.inf
    moved = (logits.softmax(-1) @ each - reduced.softmax(-1).nan_to_num(0) @ each).norm(dim=-1)
    assert torch.allclose(gone.change[sees], moved[sees], rtol=EXACT, atol=EXACT)
    assert (gone.change[~sees] == torch.inf).all()
    bound = gone.parts.sum(2).repeat_interleave(2, 1)[..., None].expand_as(moved)
    assert (gone.change[sees] <= bound[sees] * (1 + EXACT)).all()
    assert not gone.parts.gather(2, gone.kept).any()
    if budget < 30:  # without its largest part the sum is no bound
        rest = (gone.parts.sum(2) - gone.parts.amax(2)).repeat_interleave(2, 1)[..., None].expand_as(moved)
        assert budget == 1 or (gone.change[sees] > 0.05 * rest[sees]).any()


def test_of_one_key_that_goes_the_part_is_the_change():
    (query, key), value = cache(), values()
    scores = torch.ones(2, 2, 30)
    scores[..., 7] = 0
    gone = evict(key, 29, query, value=value, scores=scores)
    worst = gone.change.unflatten(1, (2, 2)).amax((2, 3))
    assert torch.allclose(gone.parts[..., 7], worst, rtol=EXACT)
    assert torch.allclose(gone.parts.sum(2), worst, rtol=EXACT)
    halved = evict(key, 29, query, value=value / 2, scores=scores)
    assert torch.allclose(halved.parts, gone.parts / 2, rtol=EXACT)


def test_output_costs_are_the_changes_of_evicting_each_key_alone():
    (query, key), value = cache(), values()
    costs = output_costs(query, key, value)
    for j in (0, 7, 29):
        scores = torch.ones(2, 2, 30)
        scores[..., j] = 0
        alone = evict(key, 29, query, value=value, scores=scores).change
        assert torch.allclose(costs[..., j], alone.unflatten(1, (2, 2)).mean((2, 3)), rtol=EXACT)
    assert not output_costs(query, key, torch.ones_like(value)).gt(EXACT).any()  # equal values: nothing moves


def test_a_key_of_small_attention_and_large_value_stays_only_where_values_are_known():
    (query, key), value = cache(size=1.0), values()
    lowest = key_leads(query, key).argmin(2)
    value.scatter_(2, lowest[..., None, None].expand(-1, -1, -1, 3), 1e4)
    knowing = evict(key, 15, query, value=value, scores=output_costs(query, key, value))
    blind = evict(key, 15, query, value=value)
    assert (knowing.kept == lowest[..., None]).any(2).all()
    assert not (blind.kept == lowest[..., None]).any(2).any()


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_a_key_with_all_attention_has_a_finite_cost(size):
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[1e4, 0.0], [0.0, 1.0], [0.0, 2.0]]]])
    value = size * torch.tensor([[[[1.0], [2.0], [4.0]]]])
    costs = output_costs(query, key, value)[0, 0] / size
    assert costs[0] == pytest.approx(5.0) and not costs[1:].any()
    assert output_costs(query, key[:, :, :1], value[:, :, :1]).isfinite().all()


def test_leads_are_the_ranking_of_evict_and_other_leads_are_not():
    query, key = cache()
    assert torch.equal(evict(key, 9, scores=key_leads(query, key)).kept, evict(key, 9, query).kept)
    assert not torch.equal(evict(key, 9, scores=key_leads(-query, key)).kept, evict(key, 9, query).kept)


def test_values_that_do_not_fit_are_refused_and_without_queries_nothing_is_said():
    (query, key), value = cache(), values()
    with pytest.raises(ValueError, match=r"value has shape \(2, 2, 29, 3\)"):
        evict(key, 9, query, value=value[:, :, 1:])
    value[0, 1, 3, 0] = torch.nan
    with pytest.raises(ValueError, match=r"value has .* \(0, 1, 3\)"):
        evict(key, 9, query, value=value)
    gone = evict(key, 9, value=values())
    assert gone.change.shape == (2, 2, 0) and gone.parts.shape == (2, 2, 0)
    assert evict(key, 9, query).parts.shape == (2, 2, 0)


ROUNDING = 1e-4
"""Of sums in single precision over a few keys, with a factor of a hundred."""


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 1), (4, 2, 3, 7, 1, 2), (2, 2, 9, 4, 3, 1)], ids=str)
def test_the_bound_holds_at_every_size_and_for_a_single_key(size, dtype, shape):
    heads, groups, t, s, d, e = shape
    draw = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, *x, d, generator=draw).to(dtype) for x in ((heads, t), (groups, s)))
    value = (size * torch.randn(1, groups, s, e, generator=draw)).to(dtype)
    gone = evict(key, max(1, s // 2), query, value=value, scores=output_costs(query, key, value))
    bound = gone.parts.sum(2).repeat_interleave(heads // groups, 1)[..., None]
    finite = gone.change.isfinite()
    assert (~finite | (gone.change <= bound * (1 + ROUNDING))).all()
    assert s == 1 or (gone.change[finite] > 0.01 * size).any()
    assert s > 1 or not gone.change.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_all_values_share_moves_no_output_and_breaks_no_bound(dtype):
    (query, key), value = cache(), values()
    query, key = query.to(dtype), key.to(dtype)
    equal = evict(key, 7, query, value=value[:, :, :1].expand_as(value).to(dtype))
    assert not equal.change.any() and not equal.parts.any()
    for share in (1e3, 1e9):
        gone = evict(key, 7, query, value=(value + share).to(dtype))
        bound = gone.parts.sum(2).repeat_interleave(2, 1)[..., None]
        assert (gone.change <= bound).all()  # no tolerance: the parts count what sums lose
    exact, shifted = (evict(key.double(), 7, query.double(), value=v) for v in (value, value + 1024.0))
    assert torch.allclose(exact.change, shifted.change, rtol=1e-9) and exact.change.any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mask": torch.zeros(2, 30)}, r"mask has shape \(2, 30\) and torch.float32. Pass booleans"),
        ({"mask": torch.ones(2, 29, dtype=torch.bool)}, r"Pass booleans \(2, 30\)"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"scale": 1e308}, "beyond the range"),
        ({"value": "values"}, "value is a str. Pass a tensor"),
    ],
)
def test_a_mask_that_adds_and_numbers_out_of_range_are_refused(options, said):
    query, key = cache()
    with pytest.raises((ValueError, TypeError), match=said):
        evict(key * (1e10 if options.get("scale") == 1e308 else 1), 9, query, **options)
    with pytest.raises(TypeError, match=r"key is a ndarray\. Pass a tensor"):
        evict(key.numpy(), 9, query)
    with pytest.raises(ValueError, match=r"value has shape \(2, 2, 29, 3\)"):
        output_costs(query, key, values()[:, :, 1:])


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_change_of_values_whose_squares_leave_single_precision_is_theirs(size):
    (query, key), value = cache(), values()
    query, key, value = query.float(), key.float(), value.float()
    gone, scaled = (evict(key, 9, query, value=v) for v in (value, size * value))
    assert torch.allclose(scaled.change / size, gone.change, rtol=ROUNDING) and gone.change.any()
    assert torch.allclose(scaled.parts / size, gone.parts, rtol=ROUNDING)
    costs, larger = (output_costs(query, key, v) for v in (value, size * value))
    assert torch.allclose(larger / size, costs, rtol=ROUNDING)
