"""Instance of "Optimizing Attention with Mirror Descent" (Julistiono et al. 2024)."""

from __future__ import annotations

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.numbers import Float


def joint_mirror() -> tuple[Tokens, Float]:
    """Two inputs of three tokens in the plane, queries = first tokens, head trained from zero.

    Joint normalised lp steps (0.1) from W = 0, v = 0 select tokens (1, 0) for p = 1.75 and p = 2, and
    (0, 0) for p = 3. Returns the paper's initial head (0, 0). Serves the joint experiment.
    """
    keys = np.array(
        [
            [[-2.7, 1.2], [1.4, 2.1], [1.3, -0.1]],
            [[0.4, -2.2], [-1.1, -0.4], [0.9, 0.1]],
        ]
    )
    return Tokens.self_attention(keys, at=0, labels=np.array([1.0, -1.0])), np.zeros(2)
