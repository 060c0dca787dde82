"""The softmax of growing sequences, for all probes at once: what was read counts as one more token."""

from __future__ import annotations

import torch
from torch import Tensor

ENDED = 2**40
"""What the end of a text takes off the number of its tokens, so that no later one counts."""


class Running:
    """Scores of n growing sequences from H columns of logits l and values v.

        L = log Σ_t e^{l_t},   m = Σ_t e^{l_t − L} v_t,   scores = m member + intercept

    To a softmax all tokens read so far are one token of logit L and value m; before the first, L is the
    smallest number there is. member (H, K), intercept (K,): K scores as sums of columns.
    float64 where the device has it: L is rounded at every read, and may be read at every token.
    """

    def __init__(self, member: Tensor, intercept: Tensor, n: int, device: torch.device) -> None:
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.member, self.intercept = (x.to(device, wide) for x in (member, intercept))
        self.alone = len(member) == len(intercept)  # every column is a score
        self.nothing = torch.tensor([[-torch.inf], [0.0]], dtype=wide, device=device)
        empty = self.nothing.clamp_min(torch.finfo(wide).min).expand(n, 1, 2, len(member))
        self.total, self.mean = empty.unbind(2)  # L and m, (n, 1, H)
        self.scores: list[Tensor] = []

    def read(self, products: Tensor, counts: Tensor, each: bool) -> None:
        """Some more tokens, products (n, t, 2, H) and which of them count (n, t).

        each: a score after every one. Else one score, after the last.
        """
        logits, values = torch.where(counts[..., None, None], products, self.nothing).unbind(2)
        if counts.shape[1] == 1:
            total = torch.logaddexp(self.total, logits)
            pooled = torch.lerp(self.mean, values, torch.sigmoid(logits - self.total))
        else:
            logits, values = torch.cat([self.total, logits], 1), torch.cat([self.mean, values], 1)
            total = logits.logcumsumexp(1)
            pooled = _trail(logits, values, total) if each else (logits.softmax(1) * values).sum(1, True)
        found = pooled if self.alone else pooled @ self.member
        scores = (found + self.intercept).float()
        # Only now: a read that fails, for want of memory, has changed nothing and can be tried again.
        self.total, self.mean = total[:, -1:], pooled[:, -1:]
        self.scores.append(scores)

    def told(self, last: int | None) -> Tensor:
        """The scores (n, passes, K): all, or those after the last so many passes."""
        if not self.scores:
            raise RuntimeError("the model has not run since the watch began. Call it, or generate, first.")
        needed, begin = last, 0
        if needed is not None:
            begin = len(self.scores)
            while needed > 0 and begin:
                begin -= 1
                needed -= self.scores[begin].shape[1]
        whole = joined(self.scores[begin:], 1)
        return whole if last is None else whole[:, -last:]


def counting(
    seen: Tensor, count: int, real: Tensor | None, said: Tensor | None, ends: Tensor, skip: int
) -> tuple[Tensor, Tensor]:
    """Which of the next tokens count (n, count), and how many each sequence has seen then (n, 1).

    No padding (real (n, count) is 0 there), none of the first `skip` of a text, nothing from its end on:
    said (n, count) are the tokens where they were generated, ends those that end a text.
    """
    real = None if real is None else real.bool()
    place = seen + (torch.arange(1, count + 1, device=seen.device) if real is None else real.cumsum(1))
    if said is not None:
        place = torch.add(place, torch.isin(said, ends).cumsum(1), alpha=-ENDED)
    counts = place > skip
    return (counts if real is None else counts & real), place[:, -1:]


def _trail(logits: Tensor, values: Tensor, totals: Tensor) -> Tensor:
    """The pooled values after every token but the first, of t + 1.

    Sums are kept as logarithms, values above and below 0 apart, so that none loses digits to a later and
    larger logit.
    """
    sums = (logits + torch.stack([values, -values]).clamp_min(0).log()).logcumsumexp(2)
    above, below = (sums - totals).exp()
    return (above - below)[:, 1:]


def joined(parts: list[Tensor], axis: int) -> Tensor:
    """Side by side; of one it is that one, uncopied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)
