"""`statistics.State` on a GPU in one reading of the keys, by Triton, which comes with torch for CUDA.

Logits are in units of log 2, because exp2 is the GPU's own. A key that does not count has the logit NONE.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attsvm.torch.logits import Logits

LOG2E = 1 / math.log(2)
NONE, LEAST = tl.constexpr(-1e30), tl.constexpr(-1e29)
"""The logit of a key that does not count, and what every logit that counts is above."""


def state(logits: Logits, selected: Tensor | None) -> tuple[Tensor, ...]:
    """The fields of `statistics.State` for all queries; `statistics._state` has them in plain torch."""
    query, key, (batch, heads, t, s) = logits.query, logits.key, logits.shape
    numbers = torch.empty((6, batch, heads, t), dtype=torch.float32, device=query.device)
    where = torch.empty((batch, heads, t), dtype=torch.int64, device=query.device)
    width = max(16, triton.next_power_of_2(query.shape[-1]))
    tile = _tile(query.dtype, width)
    cap = logits.soft_cap or 0.0
    with torch.cuda.device(query.device) if query.is_cuda else torch.no_grad():
        _winners[(triton.cdiv(t, tile["ROWS"]), batch * heads)](
            query,
            key,
            *_given(logits.mask, logits.shape),
            *_given(selected, logits.shape),
            numbers,
            where,
            logits.scale / cap if cap else logits.scale * LOG2E,
            cap * LOG2E,
            logits.window or 0,
            heads,
            heads // key.shape[1],
            t,
            s,
            query.shape[-1],
            *query.stride(),
            *key.stride(),
            numbers.stride(0),
            CAUSAL=logits.causal,
            WINDOW=logits.window is not None,
            CAPPED=bool(cap),
            MASK=_kind(logits.mask),
            CHOSEN=selected is not None,
            EXACT="ieee" if query.dtype == torch.float32 else "tf32",
            D=width,
            **tile,
        )
    largest, second = (torch.where(x > LEAST.value, x / LOG2E, -torch.inf) for x in numbers[:2])
    return largest, where, second, numbers[2], numbers[3] / LOG2E, numbers[4], numbers[5]


def _tile(dtype: torch.dtype, width: int) -> dict[str, int]:
    if dtype == torch.float32:
        return {"ROWS": 64, "KEYS": 32, "num_warps": 4, "num_stages": 2}
    return {"ROWS": 128, "KEYS": 64 if width <= 128 else 32, "num_warps": 8, "num_stages": 3}


def _kind(mask: Tensor | None) -> int:
    """0 without a mask, 1 of booleans, 2 of numbers that are added."""
    return 0 if mask is None else 1 if mask.dtype == torch.bool else 2


def _given(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A mask and the strides of its four axes, zero where it is repeated."""
    if mask is None:
        return None, 0, 0, 0, 0
    return mask, *mask.expand(shape).stride()


@triton.jit
def _winners(  # type: ignore[no-untyped-def]
    query, key,
    mask, mask_n, mask_h, mask_t, mask_s,
    chosen, chosen_n, chosen_h, chosen_t, chosen_s,
    numbers, where,
    scale, cap, window, heads, group, t, s, d,
    query_n, query_h, query_t, query_d,
    key_n, key_h, key_s, key_d,
    plane,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr,
    CHOSEN: tl.constexpr, EXACT: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # Late queries see most keys under causality: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    n, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    i, c = block * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    inside = (i[:, None] < t) & (c[None, :] < d)
    q = tl.load(
        query + n * query_n + h * query_h + i[:, None].to(tl.int64) * query_t + c[None, :] * query_d,
        inside,
        0.0,
    )
    keys = key + n * key_n + (h // group) * key_h
    masks, picks = mask, chosen
    if MASK > 0:
        masks += n * mask_n + h * mask_h
    if CHOSEN:
        picks += n * chosen_n + h * chosen_h

    low, high = 0, s
    first = block * ROWS + s - t  # the position of the block's first query
    if CAUSAL:
        high = tl.minimum(s, first + ROWS)
    if WINDOW:
        low = tl.maximum(0, first - window + 1) // KEYS * KEYS
        if not CAUSAL:
            high = tl.minimum(s, first + ROWS + window - 1)

    best, place = tl.full((ROWS,), NONE, tl.float32), tl.full((ROWS,), -1, tl.int32)
    second = tl.full((ROWS,), NONE, tl.float32)
    E, F, G, share = best * 0, best * 0, best * 0, best * 0
    for start in range(low, high, KEYS):
        j = start + tl.arange(0, KEYS)
        k = tl.load(
            keys + j[None, :].to(tl.int64) * key_s + c[:, None] * key_d,
            (j[None, :] < s) & (c[:, None] < d),
            0.0,
        )
        x = tl.dot(q, k, input_precision=EXACT) * scale
        if CAPPED:
            x = cap * (1 - 2 / (1 + tl.exp2(x * (2 * 1.4426950408889634))))  # c · tanh
        ahead = j[None, :] - (i[:, None] + s - t)
        counts = j[None, :] < s
        if CAUSAL:
            counts = counts & (ahead <= 0)
        if WINDOW:
            counts = counts & (ahead < window) & (ahead > -window)
        if MASK > 0:
            both = (i[:, None] < t) & (j[None, :] < s)
            m = tl.load(masks + i[:, None].to(tl.int64) * mask_t + j[None, :].to(tl.int64) * mask_s, both, 0)
            if MASK == 1:
                counts = counts & (m != 0)
            else:
                added = m.to(tl.float32)
                counts = counts & (added > -1e28)
                x += added * 1.4426950408889634
        x = tl.where(counts, x, NONE)

        # What this block says, relative to its own winner.
        top = tl.max(x, 1)
        at = tl.min(tl.where(x == top[:, None], j[None, :], 2147483647), 1)
        losing = tl.where(j[None, :] == at[:, None], NONE, x)
        next_one = tl.max(losing, 1)
        r = losing - tl.maximum(top, LEAST)[:, None]
        e = tl.exp2(r)
        e_sum, f_sum, g_sum = tl.sum(e, 1), tl.sum(e * r, 1), tl.sum(e * e, 1)

        # Merged with the blocks before, of which an equal logit comes first.
        ahead_of = top > best
        won, lost = tl.maximum(best, top), tl.minimum(best, top)
        gap = lost - won
        factor = tl.where(lost > LEAST, tl.exp2(gap), 0.0)
        e_won, e_lost = tl.where(ahead_of, e_sum, E), tl.where(ahead_of, E, e_sum)
        f_won, f_lost = tl.where(ahead_of, f_sum, F), tl.where(ahead_of, F, f_sum)
        g_won, g_lost = tl.where(ahead_of, g_sum, G), tl.where(ahead_of, G, g_sum)
        if CHOSEN:
            both = (i[:, None] < t) & (j[None, :] < s)
            p = tl.load(
                picks + i[:, None].to(tl.int64) * chosen_t + j[None, :].to(tl.int64) * chosen_s, both, 0
            )
            weight = tl.where(j[None, :] == at[:, None], tl.where(top > LEAST, 1.0, 0.0)[:, None], e)
            mine = tl.sum(tl.where(p != 0, weight, 0.0), 1)
            share = tl.where(ahead_of, mine, share) + factor * tl.where(ahead_of, share, mine)
        E = e_won + factor * (1 + e_lost)
        F = f_won + factor * (f_lost + gap * (1 + e_lost))
        G = g_won + factor * factor * (1 + g_lost)
        second = tl.maximum(tl.where(ahead_of, next_one, second), lost)
        place = tl.where(ahead_of, at, place)
        best = won

    out = tl.program_id(1).to(tl.int64) * t + i
    tl.store(where + out, place.to(tl.int64), i < t)
    tl.store(numbers + out, best, i < t)
    tl.store(numbers + plane + out, second, i < t)
    tl.store(numbers + 2 * plane + out, E, i < t)
    tl.store(numbers + 3 * plane + out, F, i < t)
    tl.store(numbers + 4 * plane + out, G, i < t)
    tl.store(numbers + 5 * plane + out, share, i < t)
