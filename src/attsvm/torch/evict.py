"""Which keys of a cache can go, and what the selections of the queries lose without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attsvm.given import whole
from attsvm.torch.hull import distances, spanning
from attsvm.torch.logits import Logits
from attsvm.torch.statistics import BLOCK, statistics_of


@dataclass(frozen=True)
class Eviction:
    """What is kept of a cache, with its cost for the queries that were given, recomputed from the keys.

    key: all keys as they were given, which live as long as this does.
    kept (batch, groups, budget): the keys that stay, in their order.
    lost (batch, heads, t): by how much the largest logit of a query falls; 0 where its key stays, ∞ where it
        sees none any more.
    share (batch, heads, t): its attention on the keys that go. Its output moves by at most this share times
        the diameter of the values.
    Both are empty (t = 0) where no queries were given.
    """

    key: Tensor
    kept: Tensor
    lost: Tensor
    share: Tensor

    def reach(self, steps: int = 100) -> Tensor:
        """How far each key is at most from the convex hull of those kept (batch, groups, s); 0 if it stays.

        It holds for every query, seen or not: without the keys that go the largest logit falls by at most
        scale · ‖q‖ · reach. More steps tighten the bound. Padding counts as a key here.
        """
        batch, groups, s, d = self.key.shape
        found = torch.zeros((batch * groups, s), dtype=torch.float64, device=self.key.device)
        lines = zip(self.key.reshape(-1, s, d), self.kept.reshape(batch * groups, -1), found, strict=True)
        for keys, kept, out in lines:
            gone = torch.ones(s, dtype=torch.bool, device=keys.device)
            gone[kept] = False
            out[gone] = distances(keys[gone], keys[kept], steps)
        return found.unflatten(0, (batch, groups))


def evict(
    key: Tensor,
    budget: int,
    query: Tensor | None = None,
    *,
    recent: int = 0,
    scores: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Eviction:
    """Keep `budget` keys of each head of a cache, so that queries go on selecting what they selected.

        score_j = max_q (q · k_j − max_{i ≠ j} q · k_i),   the largest lead that a query gives key j

    A key with a positive score wins some query; while all winners stay, nothing is lost. Without queries the
    keys stay that span the convex hull of all of them (`Eviction.reach`).

    key (batch, groups, s, d), query (batch, heads, t, d), heads a multiple of groups, as in
        `attention_statistics`: the last queries before the eviction, say 32; the last stands at the last key.
    recent: so many last keys stay. scores (batch, groups, s): a ranking of your own instead, such as the sum
        of attention. mask (batch, s): True where a key is no padding, which goes first.
    """
    if key.ndim != 4:
        raise ValueError(f"key has shape {tuple(key.shape)}. Pass (batch, groups, s, d).")
    most = key.shape[2]
    if not (whole(budget) and whole(recent) and 1 <= budget <= most and 0 <= recent <= budget):
        told = f"budget is {budget} and recent {recent} of {most} keys"
        raise ValueError(f"{told}. Pass a budget from 1 to {most}, and recent from 0 to the budget.")
    if scores is not None and scores.shape != key.shape[:3]:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)}. Pass one per key, {tuple(key.shape[:3])}."
        )
    if query is None and scores is None and mask is not None:
        raise ValueError("padding cannot be told from keys without queries. Pass query, or scores.")
    asking = key[:, :, :0] if query is None else query
    _finite("key", key, mask)
    _finite("query", asking, mask)
    real = None if mask is None else mask[:, None, None].bool()
    logits = Logits(
        asking, key, real, key.shape[-1] ** -0.5 if scale is None else scale, causal, None, soft_cap
    )
    with torch.no_grad():
        if scores is None and query is not None:
            scores = _leads(logits)
        kept = _spanning(key, budget, recent) if scores is None else _largest(scores, budget, recent, mask)
        return Eviction(key.detach(), kept, *_cost(logits, kept))


# ---------------------------------------------------------------------- details


def _finite(name: str, x: Tensor, mask: Tensor | None) -> None:
    """Refuse NaN and infinity, which would decide every comparison; padding may be so."""
    wrong = ~x.isfinite().all(-1)
    if mask is not None and x.ndim == 4 and x.shape[2] <= mask.shape[1]:
        wrong &= mask[:, None, mask.shape[1] - x.shape[2] :].bool()
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{name} has an entry that is NaN or infinite, first at (batch, head, place) {where}. "
            "Look for an overflow in the model, or mask the place as padding."
        )


def _leads(logits: Logits) -> Tensor:
    """The largest lead of every key over the best other one, of any query of its heads (batch, groups, s)."""
    batch, heads, t, s = logits.shape
    groups, found = logits.key.shape[1], statistics_of(logits)
    best = logits.query.new_full((batch, groups, s), -torch.inf, dtype=logits.wide)
    length = max(1, BLOCK // (batch * heads * s))
    for i in range(0, t, length):
        own = slice(i, min(i + length, t))
        leads = logits.block(own, slice(0, s)) - found.largest[:, :, own, None]
        leads.nan_to_num_(-torch.inf, neginf=-torch.inf)  # a query that sees no key
        won = found.where[:, :, own, None]
        leads.scatter_(3, won.clamp_min(0), torch.where(won < 0, -torch.inf, found.margin[:, :, own, None]))
        best = torch.maximum(best, leads.unflatten(1, (groups, -1)).amax((2, 3)))
    return best


def _largest(scores: Tensor, budget: int, recent: int, mask: Tensor | None) -> Tensor:
    """The keys of the largest scores, of equal ones the later; the last `recent` in any case."""
    scores = scores.clone().to(torch.promote_types(scores.dtype, torch.float32))
    scores.nan_to_num_(-torch.inf, torch.finfo(scores.dtype).max, -torch.inf)
    if mask is not None:
        scores.masked_fill_(~mask[:, None].bool(), -torch.inf)
    scores[..., scores.shape[-1] - recent :] = torch.inf
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :budget]
    return (scores.shape[-1] - 1 - order).sort(-1).values


def _spanning(key: Tensor, budget: int, recent: int) -> Tensor:
    found = [spanning(keys, budget, recent) for keys in key.flatten(0, 1)]
    return torch.stack(found).sort(-1).values.unflatten(0, key.shape[:2])


def _cost(logits: Logits, kept: Tensor) -> tuple[Tensor, Tensor]:
    """What the queries lose: of their largest logit, and of their attention."""
    _, heads, _, s = logits.shape
    stays = torch.zeros((*kept.shape[:2], s), dtype=torch.bool, device=kept.device).scatter_(2, kept, True)
    stays = stays.repeat_interleave(heads // kept.shape[1], 1)[:, :, None]
    before = statistics_of(logits, ~stays)
    after = statistics_of(replace(logits, mask=stays if logits.mask is None else stays & logits.mask))
    lost = torch.where(before.where < 0, 0, before.largest - after.largest)
    return lost, before.selected  # type: ignore[union-attr]
