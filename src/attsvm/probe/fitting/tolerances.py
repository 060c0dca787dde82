"""Every number of a fit that somebody chose, with its reason, in one record.

The laboratory's page about the probe says on which data the ridges and the features were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerances:
    """Of the ridges that are tried, of the descent, of its curvature, and of features."""

    # ---- the ridges that are tried, from strong to weak

    head_ridges: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4)
    """Of the head. The mean of T tokens varies √T times less than one token, so mean pooling needs the weak
    ones."""
    attending_ridges: int = 6
    """Heads that attend get the first, stronger ridges alone: with weaker ones they fit noise."""
    ridge_ratios: tuple[float, ...] = (10.0, 1.0)
    """Prompt ridge / head ridge where a probe attends."""
    pooling_ridges: tuple[float, ...] = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 30.0, 30.0)
    """Of the prompt of mean pooling, beside every ridge of the head: the prompt cannot learn."""
    prompt_ridges: tuple[float, ...] = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    """Of the prompt, where the ridge of the head is fixed."""
    unsearched: tuple[float, float] = (0.1, 1.0)
    """Head and prompt ridge where there are too few sequences to choose."""
    weak_ridge: float = 0.1
    """Probes whose ridges are at most this also start from the tokens of largest norm: descent from mean
    pooling misses one informative token among very many. With stronger ridges both starts end alike."""
    strong_ridge: float = 1000.0
    """Ridges above this give most of the curvature, and the descent is told of them."""

    # ---- when a candidate's ridges are given up

    stages_without_gain: int = 2
    worse: float = 1.05
    """A lane ends after so many stages without a lower held-out loss, or with so many times the lowest."""
    passes_before_giving_up: int = 4
    """After so many a candidate that is `worse` than its lane's best, and getting worse, is given up."""
    candidate_slope: float = 1e-3
    candidate_decrease: float = 2e-3
    candidate_steps: int = 10
    """A candidate is fitted until no partial derivative is larger, or a step lowers its objective by at most
    this share, or for so many steps: it is compared, not kept."""

    # ---- L-BFGS

    remembered_steps: int = 12
    tried_steps: int = 15
    """Steps, with the change of the gradient, that L-BFGS remembers; lengths tried along one direction."""
    decrease: float = 1e-4
    curvature: float = 0.9
    """Wolfe's constants (Nocedal & Wright 2006)."""
    stale_steps: int = 8
    """A search ends after so many steps that lower neither the slope nor the value above its rounding."""
    rival_passes: int = 5
    rival_stays: float = 0.95
    rival_wins: float = 0.8
    """After so many passes a rival start is given up if its value is above the first share of the other
    start's; the other start is given up if the rival's value is below the second share."""

    # ---- the Gauss–Newton matrix

    newton_slope: float = 2e-2
    newton_passes: int = 20
    """It is computed where no partial derivative is above the first number, and again after so many passes:
    near the optimum L-BFGS would need many steps to learn it."""
    matrix_numbers: int = 1 << 25
    row_numbers: int = 1 << 23
    """Numbers of all matrices together, and of derivatives at a time: 128 and 32 MB in float32."""
    matrix_cost: int = 50
    """A matrix may cost this many times the multiplications of an evaluation, of which it saves many."""

    # ---- features

    landmarks: int = 600
    spread: float = 0.5
    """Landmarks of a kernel; γ times the number of features, on standardised tokens."""
    least_gain: float = 0.005
    """Share by which another kind of features, or layer, must lower the held-out loss of the mean to join."""


TOLERANCES = Tolerances()
