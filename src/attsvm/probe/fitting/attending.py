"""A compiled pass over sequences, for probes: what NumPy does in many passes, in one within the cache.

Lanes are the prompts of all probes, side by side: K probes with h prompts and k scores have L = K·h lanes and
(1 + k)·L columns, first the logits of every lane, then its token scores of every kind.
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import compiled, exponential, inner, log_one_plus
from attsvm.numbers.halves import single


@compiled
def attending_pass(raw, shift, places, weights, asked, which, rooms, found):  # type: ignore[no-untyped-def]
    """Losses of K probes on b sequences and their gradients, added to what was found before.

    raw (N, d): tokens as they are stored, those of 16 bits as uint16, to be shifted; places: first row and
    number of tokens of every sequence (b,), and the number `at` of the first among all n.
    weights: centre (d,), across (d, columns), intercept (K, k).
    asked: targets (concepts, k, n), training and held-out weights (folds, n); which: concept and fold (K,).
    rooms: memory for some sequences, at least one: tokens (r, d), products and coefficients (r, columns),
    (columns, d); for the longest: attention and worth (T, L); (6 + k, L), and scores and pulls (K, k).
    found: gradients by across (columns, d), losses and held-out losses (K,), derivatives by intercepts
    (K, k); derivatives (b·k, columns, d) and (b·k, K, k). Where there is room for these, nothing else is
    found: √ω √L J, of the scores by columns and intercepts, with ω the training weights and L the curvature
    of the loss.
    """
    (starts, lengths, at), (centre, across, intercept), (K, k) = places, weights, weights[2].shape
    x, products, back, part, attention, worth, few, scores, pulls = rooms
    through, losses, held, pulled, rows, on_intercepts = found
    (targets, training, held_out), (concept, fold), first = asked, which, 0
    while first < len(lengths):
        stop, m = _read(raw, shift, starts, lengths, first, centre, x)
        np.dot(x[:m], across, products[:m])
        begin = 0
        for i in range(first, stop):
            end = begin + lengths[i]
            read, written = products[begin:end], back[begin:end]
            _attend(read, intercept, attention, few, scores)
            if len(rows):
                for j in range(k):
                    for q in range(K):
                        _root(scores[q], j, np.sqrt(training[fold[q], at + i]), pulls[q])
                        for c in range(k):  # a row at once would compile for seconds
                            on_intercepts[i * k + j, q, c] = pulls[q, c]
                    _pull_back(read, pulls, attention, worth, few, written)
                    np.dot(written.T, x[begin:end], rows[i * k + j])
            else:
                _log_losses(scores, targets, concept, at + i, pulls, few[0])
                for q in range(K):
                    weight, loss = training[fold[q], at + i], few[0, q]
                    losses[q] += weight * loss
                    held[q] += held_out[fold[q], at + i] * loss
                    for j in range(k):
                        pulls[q, j] *= weight
                        pulled[q, j] += pulls[q, j]
                _pull_back(read, pulls, attention, worth, few, written)
            begin = end
        if not len(rows):
            np.dot(back[:m].T, x[:m], part)
            for row in range(len(part)):
                for column in range(len(centre)):
                    through[row, column] += part[row, column]
        first = stop


@inner
def _read(raw, shift, starts, lengths, first, centre, x):  # type: ignore[no-untyped-def]
    """Centred tokens of as many sequences as there is memory for; the first one not read, and the rows."""
    stop, m = first, 0
    while stop < len(lengths) and m + lengths[stop] <= len(x):
        for t in range(starts[stop], starts[stop] + lengths[stop]):
            for c in range(len(centre)):
                x[m, c] = single(raw[t, c], shift) - centre[c]
            m += 1
        stop += 1
    return stop, m


@inner
def _attend(products, intercept, attention, few, scores):  # type: ignore[no-untyped-def]
    """Exponentials (T, L) of a sequence with these products (T, columns), their sums, and scores (K, k)."""
    (K, k), T, L = intercept.shape, len(products), attention.shape[1]
    top, total, score = few[0], few[1], few[2]
    for lane in range(L):
        top[lane], total[lane] = products[0, lane], 0.0
    for t in range(1, T):
        for lane in range(L):
            top[lane] = max(top[lane], products[t, lane])
    for t in range(T):
        for lane in range(L):
            relative = exponential(products[t, lane] - top[lane])
            attention[t, lane] = relative
            total[lane] += relative
    for j in range(k):
        for lane in range(L):
            score[lane] = 0.0
        for t in range(T):
            for lane in range(L):
                score[lane] += attention[t, lane] * products[t, (1 + j) * L + lane]
        for q in range(K):
            scores[q, j] = intercept[q, j]
        for lane in range(L):
            scores[lane * K // L, j] += score[lane] / total[lane]


@inner
def _pull_back(products, pulls, attention, worth, few, coefficients):  # type: ignore[no-untyped-def]
    """Coefficients (T, columns) of the tokens in the gradients of Σ_j pull_j score_j; pulls (K, k)."""
    (K, k), T, L = pulls.shape, len(products), attention.shape[1]
    total, mean, others, winners, last = few[1], few[2], few[3], few[4], few[5]
    for lane in range(L):
        mean[lane], others[lane], winners[lane] = 0.0, 0.0, 0.0
    for j in range(k):
        by = few[6 + j]
        for lane in range(L):
            by[lane] = pulls[lane * K // L, j] / total[lane]
        for t in range(T):
            for lane in range(L):
                g = by[lane] * products[t, (1 + j) * L + lane]
                worth[t, lane] = g if j == 0 else worth[t, lane] + g
                coefficients[t, (1 + j) * L + lane] = attention[t, lane] * by[lane]
                mean[lane] += attention[t, lane] * g
    for lane in range(L):
        mean[lane] /= total[lane]
    for t in range(T):
        for lane in range(L):
            one, wins = attention[t, lane] * (worth[t, lane] - mean[lane]), attention[t, lane] == 1.0
            coefficients[t, lane] = one
            others[lane] += 0.0 if wins else one
            winners[lane] += 1.0 if wins else 0.0
            last[lane] = t if wins else last[lane]
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    for lane in range(L):
        if winners[lane] == 1.0:
            coefficients[int(last[lane]), lane] = -others[lane]


@inner
def _log_losses(scores, targets, concept, i, pulls, losses):  # type: ignore[no-untyped-def]
    """Log losses of scores (K, k) on sequence i, and their derivatives, which are written to pulls."""
    K, k = scores.shape
    if k > 1:
        for q in range(K):
            total, top = _chances(scores[q], pulls[q])
            losses[q] = 0.0
            for j in range(k):
                target = targets[concept[q], j, i]
                losses[q] += target * (np.log(total) - (scores[q, j] - top))
                pulls[q, j] -= target
        return
    for q in range(K):
        losses[q] = targets[concept[q], 0, i]
    for q in range(K):  # both tails exactly: no difference of nearly equal numbers
        s, y, small = scores[q, 0], losses[q], exponential(-abs(scores[q, 0]))
        yes, no, rise = (1.0 if s > 0 else small), (small if s > 0 else 1.0), (s if s > 0 else 0.0)
        pulls[q, 0] = ((1 - y) * yes - y * no) / (1 + small)
        losses[q] = (1 - y) * rise + y * (rise - s) + log_one_plus(small)


@inner
def _root(score, row, weight, pull):  # type: ignore[no-untyped-def]
    """A row of R, with R'R the curvature of the log loss by the scores (k,), times a weight, into pull."""
    if len(score) == 1:
        small = np.exp(-abs(score[0]))
        pull[0] = weight * np.sqrt(small) / (1 + small)
        return
    _chances(score, pull)
    weight *= np.sqrt(pull[row])
    for j in range(len(score)):
        pull[j] = weight * ((1.0 if j == row else 0.0) - pull[j])


@inner
def _chances(score, out):  # type: ignore[no-untyped-def]
    """The softmax of scores (k,); the sum of exponentials relative to the largest score, and that score."""
    top, total = score[0], 0.0
    for j in range(1, len(score)):
        top = max(top, score[j])
    for j in range(len(score)):
        out[j] = np.exp(score[j] - top)
        total += out[j]
    for j in range(len(score)):
        out[j] /= total
    return total, top
