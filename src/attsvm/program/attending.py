"""A compiled pass over sequences, for probes: what NumPy does in many passes, in one within the cache."""

from __future__ import annotations

import numpy as np

from attsvm.program.compiled import compiled, inner
from attsvm.program.halves import exponential, single


@compiled
def attending_pass(raw, shift, places, weights, asked, which, rooms, found):  # type: ignore[no-untyped-def]
    """Losses of K probes on b sequences and their gradients, added to what was found before.

    raw (N, d): tokens as they are stored, those of 16 bits as uint16, to be shifted; places: first row and
    number of tokens of every sequence (b,), and the number `at` of the first among all n.
    weights: centre (d,), across (d, K·c) with h prompts, then h·k heads, of every probe; intercept (K, k).
    asked: targets (concepts, k, n), training and held-out weights (folds, n); which: concept and fold (K,).
    rooms: memory for some sequences, at least one: tokens (r, d), products (r, K·c), (K·c, d), and
    (c + 3, at least k and the longest sequence).
    found: gradients by across (K·c, d), losses and held-out losses (K,), derivatives by intercepts (K, k).
    """
    (starts, lengths, at), (centre, across, intercept) = places, weights
    (x, products, part, room), (through, losses, held, pulled) = rooms, found
    first, d = 0, len(centre)
    while first < len(lengths):
        stop, m = first, 0
        while stop < len(lengths) and m + lengths[stop] <= len(x):
            for t in range(starts[stop], starts[stop] + lengths[stop]):
                for c in range(d):
                    x[m, c] = single(raw[t, c], shift) - centre[c]
                m += 1
            stop += 1
        np.dot(x[:m], across, products[:m])
        _attend(products, lengths, (first, stop, at), intercept, asked, which, room, (losses, held, pulled))
        np.dot(products[:m].T, x[:m], part)
        for row in range(len(part)):
            for c in range(d):
                through[row, c] += part[row, c]
        first = stop


@inner
def _attend(products, lengths, span, intercept, asked, which, room, found):  # type: ignore[no-untyped-def]
    """Losses, and in place of every product the coefficient of its token in the gradient."""
    (targets, training, held_out), (concept, fold) = asked, which
    (losses, held, pulled), (K, k), (first, last, at) = found, intercept.shape, span
    c = products.shape[1] // K
    h, start = c // (1 + k), 0
    worth, score, pull = room[c], room[c + 1], room[c + 2]
    for i in range(first, last):
        T = lengths[i]
        for q in range(K):
            for column in range(c):
                for t in range(T):
                    room[column, t] = products[start + t, q * c + column]
            for j in range(k):
                score[j] = intercept[q, j]
            for head in range(h):
                a = room[head]
                softmax(a, T)
                for j in range(k):
                    own, total = room[h + head * k + j], 0.0
                    for t in range(T):
                        total += a[t] * own[t]
                    score[j] += total
            loss = _log_loss(score, targets[concept[q], :, at + i], pull, k)
            weight = training[fold[q], at + i]
            losses[q] += weight * loss
            held[q] += held_out[fold[q], at + i] * loss
            for j in range(k):
                pull[j] *= weight
                pulled[q, j] += pull[j]
            for head in range(h):
                a = room[head]
                for t in range(T):
                    worth[t] = 0.0
                for j in range(k):
                    own, by = room[h + head * k + j], pull[j]
                    for t in range(T):
                        worth[t] += by * own[t]
                        products[start + t, q * c + h + head * k + j] = a[t] * by
                _through_softmax(a, worth, T)
                for t in range(T):
                    products[start + t, q * c + head] = worth[t]
        start += T


@inner
def softmax(logits, T):  # type: ignore[no-untyped-def]
    """The softmax of T logits, in their place."""
    top, total = logits[0], 0.0
    for t in range(1, T):
        top = max(top, logits[t])
    for t in range(T):
        logits[t] = exponential(logits[t] - top)
        total += logits[t]
    for t in range(T):
        logits[t] /= total


@inner
def _log_loss(score, target, pull, k):  # type: ignore[no-untyped-def]
    """The log loss of scores (k,), whose derivatives are written to pull."""
    if k == 1:  # both tails exactly: no difference of nearly equal numbers
        s, y, small = score[0], target[0], np.exp(-abs(score[0]))
        yes, no = (1.0, small) if s > 0 else (small, 1.0)
        pull[0] = ((1 - y) * yes - y * no) / (1 + small)
        rise = s if s > 0 else 0.0
        return (1 - y) * rise + y * (rise - s) + np.log1p(small)
    top, total, loss = score[0], 0.0, 0.0
    for j in range(1, k):
        top = max(top, score[j])
    for j in range(k):
        pull[j] = np.exp(score[j] - top)
        total += pull[j]
    for j in range(k):
        loss += target[j] * (np.log(total) - (score[j] - top))
        pull[j] = pull[j] / total - target[j]
    return loss


@inner
def _through_softmax(a, worth, T):  # type: ignore[no-untyped-def]
    """a_t (g_t − Σ a g) of T tokens in place of g_t, the worth of attending to it."""
    mean, top, others, winners = 0.0, 0.0, 0.0, 0
    for t in range(T):
        mean += a[t] * worth[t]
        top = max(top, a[t])
    for t in range(T):
        worth[t] = a[t] * (worth[t] - mean)
        others += 0.0 if a[t] == top else worth[t]
        winners += a[t] == top
    if winners > 1:
        return
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    for t in range(T):
        worth[t] = -others if a[t] == top else worth[t]
