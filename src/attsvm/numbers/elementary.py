"""Elementary functions inside compiled loops that vectorise, which those of the library do not."""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import inner


@inner
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0, to about |x| units in the last place."""
    x = -708.0 if x < -708.0 else x
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
    total = 1.0 / 479001600.0
    for factor in (39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        total = total * r + 1.0 / factor
    return total * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@inner
def log_one_plus(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for 0 ≤ x ≤ 1, to rounding: 2 artanh(x / (2 + x)), whose series ends soon."""
    w = x / (2.0 + x)
    square, total = w * w, 1.0 / 35.0
    for odd in (33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1):
        total = total * square + 1.0 / odd
    return 2.0 * w * total
