"""What is recorded of a head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadRecord:
    """One head at one step, over the batch of the last forward pass.

    norm: ‖W_QK‖_F, with the scaling of the logits in it. entropy: mean entropy of the attention, in nats.
    top_mass: mean attention on the attended token, the one with the largest logit.
    margin: least logit gap between the attended and the next token, over ‖W_QK‖_F; median_margin: the
    median gap instead. Infinite where no query has two tokens to choose from.
    """

    step: int
    module: str
    head: int
    norm: float
    entropy: float
    top_mass: float
    margin: float
    median_margin: float
