"""`statistics.WinnerSums` on a GPU in one pass over the keys, by Triton, which comes with torch for CUDA.

Logits are in units of log 2, because exp2 is the GPU's own. A key that does not count has the logit NONE.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1 / math.log(2)
NONE, LEAST = tl.constexpr(-1e30), tl.constexpr(-1e29)
"""The logit of a key that does not count, and a lower bound on the logits that count."""


def winner_sums(logits: Any, selected: Tensor | None) -> tuple[Tensor, ...]:
    """The fields of `statistics.WinnerSums`; `statistics._winner_sums` computes them in plain torch."""
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
            *_with_strides(logits.mask, logits.shape),
            *_with_strides(selected, logits.shape),
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
            SELECTED=selected is not None,
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


def _with_strides(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A mask and the strides of its four axes, zero where it is repeated."""
    if mask is None:
        return None, 0, 0, 0, 0
    return mask, *mask.expand(shape).stride()


@triton.jit
def _winners(  # type: ignore[no-untyped-def]
    query, key,
    mask, mask_n, mask_h, mask_t, mask_s,
    selected, selected_n, selected_h, selected_t, selected_s,
    numbers, where,
    scale, cap, window, heads, group, t, s, d,
    query_n, query_h, query_t, query_d,
    key_n, key_h, key_s, key_d,
    plane,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, MASK: tl.constexpr,
    SELECTED: tl.constexpr, EXACT: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # Under causality late queries see more keys, so that their blocks start first.
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
    head_mask, head_selected = mask, selected
    if MASK > 0:
        head_mask += n * mask_n + h * mask_h
    if SELECTED:
        head_selected += n * selected_n + h * selected_h

    low, high = 0, s
    position = block * ROWS + s - t  # of the block's first query
    if CAUSAL:
        high = tl.minimum(s, position + ROWS)
    if WINDOW:
        low = tl.maximum(0, position - window + 1) // KEYS * KEYS
        if not CAUSAL:
            high = tl.minimum(s, position + ROWS + window - 1)

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
            exists = (i[:, None] < t) & (j[None, :] < s)
            m = tl.load(
                head_mask + i[:, None].to(tl.int64) * mask_t + j[None, :].to(tl.int64) * mask_s, exists, 0
            )
            if MASK == 1:
                counts = counts & (m != 0)
            else:
                added = m.to(tl.float32)
                counts = counts & (added > -1e28)
                x += added * 1.4426950408889634
        x = tl.where(counts, x, NONE)

        # The sums of this block, relative to its own winner.
        top = tl.max(x, 1)
        at = tl.min(tl.where(x == top[:, None], j[None, :], 2147483647), 1)
        losing = tl.where(j[None, :] == at[:, None], NONE, x)
        runner_up = tl.max(losing, 1)
        r = losing - tl.maximum(top, LEAST)[:, None]
        e = tl.exp2(r)
        e_sum, f_sum, g_sum = tl.sum(e, 1), tl.sum(e * r, 1), tl.sum(e * e, 1)

        # Merge with the earlier blocks; of equal logits the earlier one wins.
        wins = top > best
        larger, smaller = tl.maximum(best, top), tl.minimum(best, top)
        gap = smaller - larger
        factor = tl.where(smaller > LEAST, tl.exp2(gap), 0.0)
        e_winner, e_loser = tl.where(wins, e_sum, E), tl.where(wins, E, e_sum)
        f_winner, f_loser = tl.where(wins, f_sum, F), tl.where(wins, F, f_sum)
        g_winner, g_loser = tl.where(wins, g_sum, G), tl.where(wins, G, g_sum)
        if SELECTED:
            exists = (i[:, None] < t) & (j[None, :] < s)
            p = tl.load(
                head_selected + i[:, None].to(tl.int64) * selected_t + j[None, :].to(tl.int64) * selected_s,
                exists,
                0,
            )
            weight = tl.where(j[None, :] == at[:, None], tl.where(top > LEAST, 1.0, 0.0)[:, None], e)
            block_share = tl.sum(tl.where(p != 0, weight, 0.0), 1)
            share = tl.where(wins, block_share, share) + factor * tl.where(wins, share, block_share)
        E = e_winner + factor * (1 + e_loser)
        F = f_winner + factor * (f_loser + gap * (1 + e_loser))
        G = g_winner + factor * factor * (1 + g_loser)
        second = tl.maximum(tl.where(wins, runner_up, second), smaller)
        place = tl.where(wins, at, place)
        best = larger

    out = tl.program_id(1).to(tl.int64) * t + i
    tl.store(where + out, place.to(tl.int64), i < t)
    tl.store(numbers + out, best, i < t)
    tl.store(numbers + plane + out, second, i < t)
    tl.store(numbers + 2 * plane + out, E, i < t)
    tl.store(numbers + 3 * plane + out, F, i < t)
    tl.store(numbers + 4 * plane + out, G, i < t)
    tl.store(numbers + 5 * plane + out, share, i < t)
