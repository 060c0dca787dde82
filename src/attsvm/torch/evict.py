"""Which keys of a cache can go, and what the selections and the outputs of the queries lose without them.

No query can tell a point of the keys' convex hull from its corners: q · k ≤ max_i q · k_i over the kept keys
k_i. A key at the distance r from their hull exceeds that maximum by at most r ‖q‖.

With o' the output over the kept keys, a query's output moves by exactly

    o − o' = Σ_j a_j (v_j − o'),   j over the keys that go, a_j the attention on them before,

so by at most the sum of the parts a_j ‖v_j − o'‖, one for each key that goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm._support.validation import as_integer, is_finite, is_integer
from attsvm.torch.logits import Logits
from attsvm.torch.statistics import BLOCK, statistics_of

EXACT = "donot_use_mm_for_euclid_dist"
"""Distances by differences: ‖a‖² + ‖b‖² − 2ab cancels where a value is near the output."""

HULL_BLOCK = 2**22
"""Weights of corners that are held at once."""


@dataclass(frozen=True, repr=False)
class Eviction:
    """The keys of a cache that stay, and the cost for the given queries, recomputed from the keys.

    key: all keys as they were given; they live as long as this object.
    kept (batch, groups, budget): the keys that stay, in their order.
    lost (batch, heads, t): by how much the largest logit of a query falls; 0 where its key stays, ∞ where no
        key that the query sees stays.
    share (batch, heads, t): the query's attention on the keys that go. Its output moves by at most this share
        times the diameter of the values.
    change (batch, heads, t): by how far the query's output moves, ‖o − o'‖; ∞ where lost is.
    parts (batch, groups, s): a_j ‖v_j − o'‖ of the query where it is largest, for every key that goes; 0 if
        kept. The sum over keys bounds the change of every query.
    lost and share are empty (t = 0) without queries, change and parts without queries or values.
    """

    key: Tensor
    kept: Tensor
    lost: Tensor
    share: Tensor
    change: Tensor
    parts: Tensor

    def __repr__(self) -> str:
        batch, groups, s, _ = self.key.shape
        size = f"{self.kept.shape[2]} of {s} keys of {groups} groups of each of {batch} sequences"
        return f"Eviction(keeps {size}; cost for {self.lost.shape[2]} queries)"

    def reach(self, steps: int = 100) -> Tensor:
        """An upper bound on each key's distance from the hull of the kept keys (batch, groups, s); 0 if kept.

        The bound serves every query: without the keys that go, its largest logit falls by at most
        scale · ‖q‖ · reach. More steps tighten the bound. Padding counts as a key here.
        """
        *_, s, d = self.key.shape
        bounds = torch.zeros(self.key.shape[:3], dtype=torch.float64, device=self.key.device)
        keys_of_groups, retained_keys = self.key.reshape(-1, s, d), self.kept.flatten(0, 1)
        groups = zip(keys_of_groups, retained_keys, bounds.view(-1, s), strict=True)
        for keys, retained, bound in groups:
            evicted = torch.ones(s, dtype=torch.bool, device=keys.device)
            evicted[retained] = False
            bound[evicted] = _hull_distances(keys[evicted], keys[retained], steps)
        return bounds


def evict(
    key: Tensor,
    budget: int,
    query: Tensor | None = None,
    *,
    first: int = 0,
    recent: int = 0,
    scores: Tensor | None = None,
    value: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Eviction:
    """Keep `budget` keys of each head of a cache, so that queries go on selecting what they selected.

        score_j = max_q (q · k_j − max_{i ≠ j} q · k_i),   the largest lead that a query gives key j

    A key with a positive score wins some query; while all winners stay, nothing is lost. Without queries, the
    keys that span the convex hull of all keys stay (`Eviction.reach`).

    key (batch, groups, s, d), query (batch, heads, t, d), heads a multiple of groups, as in
        `attention_statistics`: the last queries before the eviction, say 32; the last stands at the last key.
    first, recent: so many first keys (padding aside) and last keys stay in any case. A tenth of the budget at
        each end, `first=budget // 10, recent=budget // 10`, is what most rankings lack.
    scores (batch, groups, s): a ranking of your own instead, such as `output_costs` or sums of attention.
    value (batch, groups, s, e): for `change` and `parts`.
    mask (batch, s): False on padding, which goes first.
    Reference for the ends: Garcia 2026, "Protection Is (Nearly) All You Need".
    """
    _check_tensors(key=key, query=query, value=value)
    if key.ndim != 4 or 0 in key.shape:
        raise ValueError(f"key has shape {tuple(key.shape)}. Pass (batch, groups, s, d), none of them 0.")
    s = key.shape[2]
    budget, first, recent = map(as_integer, (budget, first, recent))
    protected = is_integer(first) and is_integer(recent) and min(first, recent) >= 0
    if not (is_integer(budget) and protected and 1 <= budget <= s and first + recent <= budget):
        counts = f"budget is {budget}, first {first} and recent {recent} of {s} keys"
        raise ValueError(f"{counts}. Pass a budget from 1 to {s}, and first and recent that fit into it.")
    if scores is not None and scores.shape != key.shape[:3]:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)}. Pass one per key, {tuple(key.shape[:3])}."
        )
    if query is None and scores is None and mask is not None:
        raise ValueError("padding cannot be told from keys without queries. Pass query, or scores.")
    queries = key[:, :, :0] if query is None else query
    logits = _logits(queries, key, mask, causal, scale, soft_cap)
    if value is not None:
        _check_value(value, key, mask)
    with torch.no_grad():
        if scores is None and query is not None:
            scores = _leads(logits)
        if scores is None:
            return _eviction(logits, _hull_keys(key, budget, first, recent), value)
        return _eviction(logits, _largest(scores, budget, first, recent, mask), value)


def key_leads(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """The largest lead that a query gives each key over the best other key (batch, groups, s).

    The ranking of `evict`; arguments as there. Values do not matter. −∞ for a key that no query sees.
    """
    logits = _logits(query, key, mask, causal, scale, soft_cap)
    with torch.no_grad():
        return _leads(logits)


def output_costs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """How far the outputs of the queries move, on average, if a key alone goes (batch, groups, s).

        a_j ‖v_j − o‖ / (1 − a_j)

    A ranking for `evict(…, scores=)`, which knows the values; arguments as there. A key with all of a query's
    attention costs what the values allow, ‖v_j‖ + max_i ‖v_i‖.
    """
    logits, groups = _logits(query, key, mask, causal, scale, soft_cap), key.shape[1]
    _check_value(value, key, mask)
    values, unit = _scaled(_real_values(logits, value))
    centred = _centred(values)
    sizes = values.norm(dim=-1)[:, :, None]
    largest, costs = sizes + sizes.amax(-1, keepdim=True), values.new_zeros(key.shape[:3])
    with torch.no_grad():
        for queries in _query_blocks(logits):
            attention = _attention(logits.block(queries, slice(0, key.shape[2])), groups)
            distance = torch.cdist(attention @ centred, centred, compute_mode=EXACT)
            others = 1 - attention
            sole = others < torch.finfo(others.dtype).eps ** 0.5  # the rest of the attention is rounding
            distance = torch.minimum(distance / others.masked_fill(sole, 1), largest)
            costs += (attention * torch.where(sole, largest, distance)).sum(2)
    return unit * costs / max(1, query.shape[1] // groups * query.shape[2])


# ---------------------------------------------------------------------- leads and costs


def _check_tensors(**arrays: Tensor | None) -> None:
    for name, x in arrays.items():
        if not (x is None or isinstance(x, Tensor)):
            raise TypeError(f"{name} is a {type(x).__name__}. Pass a tensor: torch.as_tensor({name}).")


def _check_value(value: Tensor, key: Tensor, mask: Tensor | None) -> None:
    _check_tensors(value=value)
    if value.ndim != 4 or value.shape[:3] != key.shape[:3]:
        raise ValueError(f"value has shape {tuple(value.shape)}. Pass {(*key.shape[:3], 'e')}.")
    _check_finite("value", value, mask)


def _check_finite(name: str, x: Tensor, mask: Tensor | None) -> None:
    """Refuse NaN and infinity, which would decide every comparison; padding may hold them."""
    not_finite = ~x.isfinite().all(-1)
    if mask is not None and x.ndim == 4 and x.shape[2] <= mask.shape[1]:
        not_finite &= mask[:, None, mask.shape[1] - x.shape[2] :].bool()
    if bool(not_finite.any()):
        where = tuple(not_finite.nonzero()[0].tolist())
        raise ValueError(
            f"{name} has an entry that is NaN or infinite, first at (batch, head, place) {where}. "
            "Look for an overflow in the model, or mask the place as padding."
        )


def _logits(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None, soft_cap: float | None
) -> Logits:
    """The logits of finite queries and keys; the default scale is that of attention, 1/√d."""
    _check_tensors(key=key, query=query, mask=mask)
    if mask is not None and (mask.is_floating_point() or mask.shape != (key.shape[0], key.shape[2])):
        received = f"mask has shape {tuple(mask.shape)} and {mask.dtype}"
        raise ValueError(f"{received}. Pass booleans {(key.shape[0], key.shape[2])}, False on padding.")
    if scale is not None and not is_finite(scale):
        raise ValueError(f"scale is {scale!r}. Pass a number, or None for 1/√d.")
    _check_finite("key", key, mask)
    _check_finite("query", query, mask)
    real = None if mask is None else mask[:, None, None].bool()
    scale = key.shape[-1] ** -0.5 if scale is None else scale
    return Logits(query, key, real, scale, causal, None, soft_cap)


def _leads(logits: Logits) -> Tensor:
    """The largest lead of every key over the best other key, of any query of its heads (batch, groups, s)."""
    batch, _, _, s = logits.shape
    groups, statistics = logits.key.shape[1], statistics_of(logits)
    best = logits.query.new_full((batch, groups, s), -torch.inf, dtype=logits.wide)
    for queries in _query_blocks(logits):
        leads = logits.block(queries, slice(0, s)) - statistics.largest[:, :, queries, None]
        leads.nan_to_num_(-torch.inf, neginf=-torch.inf)  # a query that sees no key
        winner = statistics.where[:, :, queries, None]
        margins = torch.where(winner < 0, -torch.inf, statistics.margin[:, :, queries, None])
        leads.scatter_(3, winner.clamp_min(0), margins)
        best = torch.maximum(best, leads.unflatten(1, (groups, -1)).amax((2, 3)))
    return best


def _query_blocks(logits: Logits) -> Iterator[slice]:
    """Queries in blocks of about BLOCK logits."""
    batch, heads, t, s = logits.shape
    length = max(1, BLOCK // (batch * heads * s))
    return (slice(i, min(i + length, t)) for i in range(0, t, length))


def _largest(scores: Tensor, budget: int, first: int, recent: int, mask: Tensor | None) -> Tensor:
    """The keys of the largest scores, of equal ones the later key; `first` and `recent` keys in any case."""
    scores = scores.clone().to(torch.promote_types(scores.dtype, torch.float32))
    scores.nan_to_num_(-torch.inf, torch.finfo(scores.dtype).max, -torch.inf)
    if mask is None:
        scores[..., :first] = torch.inf
    else:
        scores.masked_fill_(~mask[:, None].bool(), -torch.inf)
        scores.masked_fill_((mask.bool() & (mask.bool().cumsum(1) <= first))[:, None], torch.inf)
    scores[..., scores.shape[-1] - recent :] = torch.inf
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :budget]
    return (scores.shape[-1] - 1 - order).sort(-1).values


def _eviction(logits: Logits, kept: Tensor, value: Tensor | None) -> Eviction:
    """The eviction that keeps these keys (batch, groups, budget), with its cost for the queries."""
    _, heads, _, s = logits.shape
    of_groups = torch.zeros((*kept.shape[:2], s), dtype=torch.bool, device=kept.device)
    of_groups.scatter_(2, kept, True)
    stays = of_groups.repeat_interleave(heads // kept.shape[1], 1)[:, :, None]
    full = statistics_of(logits, ~stays)
    reduced_logits = replace(logits, mask=stays if logits.mask is None else stays & logits.mask)
    reduced = statistics_of(reduced_logits)
    lost = torch.where(full.where < 0, 0, full.largest - reduced.largest)
    if bool(lost.isnan().any()):
        raise ValueError(f"a logit is beyond the range of {lost.dtype}. Pass keys and queries in float64.")
    if value is None or not lost.shape[2]:
        change, parts = lost[:, :, :0], lost.new_zeros((*kept.shape[:2], 0))
    else:
        change, parts = _output_change(logits, reduced_logits, of_groups, value)
        change = torch.where(lost.isinf(), torch.inf, change)
    return Eviction(logits.key.detach(), kept, lost, full.selected, change, parts)  # type: ignore[union-attr]


# ---------------------------------------------------------------------- outputs


def _output_change(logits: Logits, reduced: Logits, stays: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """‖o − o'‖ of every query (batch, heads, t), and the largest part of every key (batch, groups, s)."""
    groups, keys = logits.key.shape[1], slice(0, logits.shape[3])
    values, unit = _scaled(_centred(_real_values(logits, value)))
    # What sums over the keys lose by rounding, so that the parts bound the computed change, too.
    rounding = torch.finfo(values.dtype).eps * (logits.shape[3] + 8)
    slack = 2 * rounding * values.norm(dim=-1).amax(-1)[..., None, None]
    parts = values.new_zeros(stays.shape)
    changes = [parts.new_zeros((*logits.shape[:2], 0))]
    for queries in _query_blocks(logits):
        evicted = _attention(logits.block(queries, keys), groups).masked_fill(stays[:, :, None], 0)
        output = _attention(reduced.block(queries, keys), groups) @ values
        # Not o − o': where little attention goes, the difference would cancel to rounding.
        moved = evicted @ values - evicted.sum(-1, keepdim=True) * output
        changes.append(moved.norm(dim=-1).reshape(*logits.shape[:2], -1))
        part = evicted * (torch.cdist(output, values, compute_mode=EXACT) + slack)
        parts = torch.maximum(parts, part.amax(2))
    return unit * torch.cat(changes, 2), unit * parts


def _attention(logits: Tensor, groups: int) -> Tensor:
    """Weights of a block (batch, groups, heads of a group × queries, s), 0 for a query that sees no key."""
    return logits.softmax(-1).nan_to_num_(0).unflatten(1, (groups, -1)).flatten(2, 3)


def _real_values(logits: Logits, value: Tensor) -> Tensor:
    """The values in the type of the computation, 0 on padding, which may hold NaN."""
    values = value.detach().to(logits.wide)
    return values if logits.mask is None else values.masked_fill(~logits.mask[:, :, 0, :, None], 0)


def _scaled(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of at most one, and the largest: squares of values beyond 1e±19 leave single precision."""
    unit = values.abs().amax() if values.numel() else values.new_zeros(())
    return values / unit.masked_fill(unit == 0, 1), unit


def _centred(values: Tensor) -> Tensor:
    """The values (batch, groups, s, e) minus their median: what all share moves no output, and rounds."""
    # Contiguous: torch's median along an expanded axis is wrong (2.13).
    return values - values.contiguous().median(dim=2, keepdim=True).values


# ---------------------------------------------------------------------- the convex hull of the keys


def _hull_distances(points: Tensor, corners: Tensor, steps: int) -> Tensor:
    """An upper bound on the distance of every point (p, d) from the hull of the corners (c, d), float64 (p,).

        min ‖x − Σ λ_i k_i‖  subject to  λ ≥ 0, Σ λ = 1

    by accelerated projected gradients. Any λ of the simplex gives a bound; the last λ is used. Too few
    steps loosen the bound and cannot break it.
    Reference: Beck, Teboulle 2009, FISTA; Duchi et al. 2008, projection onto the simplex.
    """
    if not len(points):
        return points.new_zeros(0, dtype=torch.float64)
    mean = corners.double().mean(0)  # a mean that all keys share would only slow the steps
    corners = corners.double() - mean
    rate = 1 / torch.linalg.eigvalsh(corners.T @ corners)[-1].clamp_min(torch.finfo(mean.dtype).tiny)
    blocks = points.split(max(1, HULL_BLOCK // len(corners)))
    return torch.cat([_block_distances(x.double() - mean, corners, rate, steps) for x in blocks])


def _block_distances(x: Tensor, corners: Tensor, rate: Tensor, steps: int) -> Tensor:
    gram, products = corners @ corners.T, x @ corners.T
    nearest = (gram.diagonal() - 2 * products).argmin(1)
    weights = torch.nn.functional.one_hot(nearest, len(corners)).to(x)
    ahead, momentum = weights, 1.0
    for _ in range(steps):
        new = _on_simplex(ahead - rate * (ahead @ gram - products))
        next_momentum = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, weights = new + (momentum - 1) / next_momentum * (new - weights), new
        momentum = next_momentum
    weights = weights.clamp_min(0)
    weights = weights / weights.sum(1, keepdim=True)
    distance = torch.linalg.vector_norm(x - weights @ corners, dim=1)
    distance = torch.minimum(distance, torch.linalg.vector_norm(x - corners[nearest], dim=1))
    # The weights sum to one up to rounding, which moves the point by at most the added term.
    slack = len(corners) * torch.finfo(x.dtype).eps * corners.abs().amax() * corners.shape[1] ** 0.5
    return distance + slack


def _on_simplex(y: Tensor) -> Tensor:
    """The projection of every row onto the simplex: weights ≥ 0 of sum 1."""
    falling = y.sort(dim=1, descending=True).values
    counts = torch.arange(1, y.shape[1] + 1, device=y.device, dtype=y.dtype)
    heights = (falling.cumsum(1) - 1) / counts
    positive = (falling > heights).sum(1, keepdim=True)
    return (y - heights.gather(1, positive - 1)).clamp_min(0)


def _hull_keys(key: Tensor, budget: int, first: int, recent: int) -> Tensor:
    """For every head's keys, the indices of those that span their hull, among them the protected ones."""
    indices = [_hull_corners(keys, budget, first, recent) for keys in key.flatten(0, 1)]
    return torch.stack(indices).sort(-1).values.unflatten(0, key.shape[:2])


def _hull_corners(points: Tensor, count: int, first: int, recent: int) -> Tensor:
    """Indices of `count` points (p, d), among them `first` and `recent`, whose hull is near all other points.

    Greedy: the point farthest from the hull so far joins, and each point's nearest point of the hull takes a
    step towards it.
    Reference: Blum, Har-Peled, Raichel 2016, Sparse approximation via generating point sets.
    """
    x = points.to(torch.float64 if points.dtype == torch.float64 else torch.float32)
    required = [*range(first), *range(len(x) - recent, len(x))]
    start = required[0] if required else int((x - x.mean(0)).square().sum(1).argmax())
    corners, residual = [start], x - x[start]
    for k in range(1, count):
        distance = residual.square().sum(1)
        distance[corners] = -1  # of two equal points one is a corner
        new = required[k] if k < len(required) else int(distance.argmax())
        direction = x[new] - (x - residual)
        share = (residual * direction).sum(1)
        share = share / direction.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
        residual = residual - share.clamp(0, 1)[:, None] * direction
        corners.append(new)
    return torch.tensor(corners, device=points.device)
