"""A compiled pass over sequences, for probes: what NumPy does in many passes, in one within the cache.

K probes with k scores have (1 + k)·K columns: first the logits of every probe, then its token scores of every
kind. The pass pays its compilation where there are many tokens; NumPy computes the same for few
(`objective.block_sums`).
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import exponential, inner, log_one_plus, single, with_blas


@with_blas
def attending_pass(raw, shift, places, weights, data, index, memory, sums):  # type: ignore[no-untyped-def]
    """Losses of K probes on b sequences and their gradients, added to `sums`.

    raw (N, d): tokens as they are stored, those of 16 bits as uint16, to be shifted; places: first row and
    number of tokens of every sequence (b,), and the number `at` of the first among all n.
    weights: centre (d,), matrix (d, columns), intercept (K, k).
    data: targets (concepts, k, n), training and held-out weights (folds, n); index: concept and fold (K,).
    memory, for as many sequences as fit, at least one: tokens (r, d), products and coefficients (r, columns),
    (columns, d); for the longest: attention and its gradient (T, K), probe_sums (6 + k, K), scores and their
    gradient (K, k).
    sums: gradients by the matrix (columns, d), losses and held-out losses (K,), gradients by intercepts
    (K, k); derivatives (b·k, columns, d) and (b·k, K, k). Where these last two are not empty, only they are
    computed: √ω √L J, of the scores by matrix and intercepts, with ω the training weights and L the curvature
    of the loss.
    """
    (starts, lengths, at), (centre, matrix, intercept), (K, k) = places, weights, weights[2].shape
    x, products, coefficients, block_gradient, attention, gain, probe_sums, scores, score_gradient = memory
    matrix_gradient, losses, held_losses, intercept_gradient, rows, intercept_rows = sums
    (targets, training, held_out), (concept, fold), first = data, index, 0
    while first < len(lengths):
        stop, m = _read(raw, shift, starts, lengths, first, centre, x)
        np.dot(x[:m], matrix, products[:m])
        begin = 0
        for i in range(first, stop):
            end = begin + lengths[i]
            of_sequence, of_tokens = products[begin:end], coefficients[begin:end]
            _attend(of_sequence, intercept, attention, probe_sums, scores)
            if len(rows):
                for j in range(k):
                    for q in range(K):
                        _curvature_root(scores[q], j, np.sqrt(training[fold[q], at + i]), score_gradient[q])
                        for c in range(k):  # a row at once would compile for seconds
                            intercept_rows[i * k + j, q, c] = score_gradient[q, c]
                    _back_propagate(of_sequence, score_gradient, attention, gain, probe_sums, of_tokens)
                    np.dot(of_tokens.T, x[begin:end], rows[i * k + j])
            else:
                _log_losses(scores, targets, concept, at + i, score_gradient, probe_sums[0])
                for q in range(K):
                    weight, loss = training[fold[q], at + i], probe_sums[0, q]
                    losses[q] += weight * loss
                    held_losses[q] += held_out[fold[q], at + i] * loss
                    for j in range(k):
                        score_gradient[q, j] *= weight
                        intercept_gradient[q, j] += score_gradient[q, j]
                _back_propagate(of_sequence, score_gradient, attention, gain, probe_sums, of_tokens)
            begin = end
        if not len(rows):
            np.dot(coefficients[:m].T, x[:m], block_gradient)
            for row in range(len(block_gradient)):
                for column in range(len(centre)):
                    matrix_gradient[row, column] += block_gradient[row, column]
        first = stop


@inner
def _read(raw, shift, starts, lengths, first, centre, x):  # type: ignore[no-untyped-def]
    """Centred tokens of as many sequences as fit in x; the first one that does not fit, and the rows."""
    stop, m = first, 0
    while stop < len(lengths) and m + lengths[stop] <= len(x):
        for t in range(starts[stop], starts[stop] + lengths[stop]):
            for c in range(len(centre)):
                x[m, c] = single(raw[t, c], shift) - centre[c]
            m += 1
        stop += 1
    return stop, m


@inner
def _attend(products, intercept, attention, probe_sums, scores):  # type: ignore[no-untyped-def]
    """Exponentials (T, K) of a sequence with these products (T, columns), their sums, and scores (K, k)."""
    (K, k), T = intercept.shape, len(products)
    top, total, score = probe_sums[0], probe_sums[1], probe_sums[2]
    for q in range(K):
        top[q], total[q] = products[0, q], 0.0
    for t in range(1, T):
        for q in range(K):
            top[q] = max(top[q], products[t, q])
    for t in range(T):
        for q in range(K):
            relative = exponential(products[t, q] - top[q])
            attention[t, q] = relative
            total[q] += relative
    for j in range(k):
        for q in range(K):
            score[q] = 0.0
        for t in range(T):
            for q in range(K):
                score[q] += attention[t, q] * products[t, (1 + j) * K + q]
        for q in range(K):
            scores[q, j] = intercept[q, j] + score[q] / total[q]


@inner
def _back_propagate(products, score_gradient, attention, gain, probe_sums, coefficients):  # type: ignore[no-untyped-def]
    """Coefficients (T, columns) of the tokens in the gradients of Σ_j g_j score_j, g (K, k)."""
    (K, k), T = score_gradient.shape, len(products)
    total, mean, losing = probe_sums[1], probe_sums[2], probe_sums[3]
    winners, last = probe_sums[4], probe_sums[5]
    for q in range(K):
        mean[q], losing[q], winners[q] = 0.0, 0.0, 0.0
    for j in range(k):
        slope = probe_sums[6 + j]
        for q in range(K):
            slope[q] = score_gradient[q, j] / total[q]
        for t in range(T):
            for q in range(K):
                g = slope[q] * products[t, (1 + j) * K + q]
                gain[t, q] = g if j == 0 else gain[t, q] + g
                coefficients[t, (1 + j) * K + q] = attention[t, q] * slope[q]
                mean[q] += attention[t, q] * g
    for q in range(K):
        mean[q] /= total[q]
    for t in range(T):
        for q in range(K):
            coefficient, wins = attention[t, q] * (gain[t, q] - mean[q]), attention[t, q] == 1.0
            coefficients[t, q] = coefficient
            losing[q] += 0.0 if wins else coefficient
            winners[q] += 1.0 if wins else 0.0
            last[q] = t if wins else last[q]
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    for q in range(K):
        if winners[q] == 1.0:
            coefficients[int(last[q]), q] = -losing[q]


@inner
def _log_losses(scores, targets, concept, i, score_gradient, losses):  # type: ignore[no-untyped-def]
    """Log losses of scores (K, k) on sequence i, and their derivatives, written to score_gradient."""
    K, k = scores.shape
    if k > 1:
        for q in range(K):
            total, top = _softmax(scores[q], score_gradient[q])
            losses[q] = 0.0
            for j in range(k):
                target = targets[concept[q], j, i]
                losses[q] += target * (np.log(total) - (scores[q, j] - top))
                score_gradient[q, j] -= target
        return
    for q in range(K):
        losses[q] = targets[concept[q], 0, i]
    for q in range(K):  # both tails exactly: no difference of nearly equal numbers
        s, y, small = scores[q, 0], losses[q], exponential(-abs(scores[q, 0]))
        yes, no, rise = (1.0 if s > 0 else small), (small if s > 0 else 1.0), (s if s > 0 else 0.0)
        score_gradient[q, 0] = ((1 - y) * yes - y * no) / (1 + small)
        losses[q] = (1 - y) * rise + y * (rise - s) + log_one_plus(small)


@inner
def _curvature_root(score, row, weight, out):  # type: ignore[no-untyped-def]
    """A row of R, with R'R the curvature of the log loss by the scores (k,), times a weight, into out."""
    if len(score) == 1:
        small = np.exp(-abs(score[0]))
        out[0] = weight * np.sqrt(small) / (1 + small)
        return
    _softmax(score, out)
    weight *= np.sqrt(out[row])
    for j in range(len(score)):
        out[j] = weight * ((1.0 if j == row else 0.0) - out[j])


@inner
def _softmax(score, out):  # type: ignore[no-untyped-def]
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
