"""Even pairs: the head learns first, then the attention, and then both norms grow without bound.

"How Transformers Learn Regular Language Recognition" (Huang, Liang, Yang 2025), even pairs, two phases.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, colours
from attsvm_lab import datasets
from attsvm_lab.claims.even_pairs import PHASE_ONE, attended, by_place, separator, trained
from attsvm_lab.figures.accuracy import Accuracy, significant, within
from attsvm_lab.figures.figure import DERIVED, RUN, STATED, Arrays, Check, scales
from attsvm_lab.figures.papers import EVEN_PAIRS

LONGEST, LR, SHARP = 6, 0.1, 2.0
"""The paper's longest string, η and λ; its t₀ is 100."""
REFERENCE = {
    6_000: {"loss_t": 117.0, "head": 20.6, "weight": 18.1},
    20_000: {"loss_t": 89.0},
    60_000: {"loss_t": 75.0},
    200_000: {"loss_t": 66.0, "head": 29.3, "weight": 24.1, "first": 0.86, "second": 0.55},
}
"""Results of an earlier script of ours, which shares no code with the package."""
NAMES = {
    "loss_t": "loss · t",
    "head": "‖u‖",
    "weight": "‖W‖",
    "first": "attention of token 1, positive strings",
    "second": "attention of token 2, negative strings",
}
WORDS = {0: ("place 1: +", 6.0), 1: ("place 2: −", -4.0), LONGEST - 1: (f"place {LONGEST}: −", 0.0)}
"""Names of curves of the head, shifted where two would overlap."""
SOURCE, PAPER = "independent sketch, from zero", "Huang et al. 2025, phases 1 and 2"


@EVEN_PAIRS.figure(
    "even-pairs",
    "Even pairs: two phases",
    shows=(
        "Every string of up to six symbols, u and W from zero. First the head likes the first place, "
        "linearly in t, and dislikes the others quadratically; then positive strings attend their first "
        "token, negative ones their second, and ‖u‖ grows like log t towards the max-margin separator of "
        "what attention puts out. The loss falls like 1/t."
    ),
    notes=(
        "The paper says that W moves by O(1) in the second phase; ours goes on, by about c/log t per "
        "e-fold of the steps, which is growth like log log t. A summary of the paper has a loss of 1/√t; "
        "its abstract and our runs have 1/t."
    ),
    sizes=scales(steps=(6_000, 20_000, 200_000)),
    seconds=8,
)
def experiment(steps: int) -> Arrays:
    """Per record (k,): loss summed over lengths, ‖u‖, ‖W‖ in the paper's units, attention, accuracy."""
    tokens, _ = datasets.even_pairs(LONGEST)
    inner = {*REFERENCE, 600, *np.unique(np.geomspace(1, steps, 80).astype(int)).tolist()}
    path = trained(tokens, steps, sorted(k for k in inner if k <= steps), lr=LR, sharp=SHARP)
    early = by_place(trained(tokens, PHASE_ONE[1], PHASE_ONE, lr=1e-3, sharp=SHARP))[1:]
    assert path.v is not None
    first, second = attended(path)
    outputs = np.einsum("knt,ntd,kd->kn", path.attention, tokens.values, path.v)
    return {
        "steps": path.index,
        "loss": path.loss * LONGEST,
        "head": np.linalg.norm(path.v, axis=-1),
        "weight": SHARP * path.norm(),
        "first": first.mean(-1),
        "second": second.mean(-1),
        "accuracy": (outputs * tokens.labels > 0).mean(-1),
        "places": by_place(path),
        "exponents": np.log(early[1] / early[0]) / np.log(PHASE_ONE[1] / PHASE_ONE[0]),
        "cosine": att.cosine(path.v[-1:, :, None], separator(path).W),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The head by place, attention, the loss, and both norms."""
    figure, ((places, attention), (loss, norm)) = grid(2, 2, 5.2)
    steps = arrays["steps"][1:]
    for place, color in enumerate(colours(LONGEST)):
        curve = np.abs(arrays["places"][1:, place])
        places.plot(steps, curve, color=color)
        if place in WORDS:
            label_end(places, steps[-1], curve[-1], WORDS[place][0], color, WORDS[place][1])
    places.set(yscale="log", ylim=(1e-5, 100))
    for name, color, text in (
        ("first", BLUE, "token 1 of\npositives"),
        ("second", ORANGE, "token 2 of\nnegatives"),
    ):
        attention.plot(steps, arrays[name][1:], color=color)
        label_end(attention, steps[-1], arrays[name][-1], text, color)
    loss.plot(steps, arrays["loss"][1:], color=BLUE)
    late = steps >= steps[-1] / 20
    for power, text in ((-1.0, "1/t"), (-0.5, "1/√t")):
        guide = arrays["loss"][1:][late][0] * (steps[late] / steps[late][0]) ** power
        loss.plot(steps[late], guide, color=GREY, ls=":", lw=1.2)
        label_end(loss, steps[-1], guide[-1], text, GREY)
    loss.set_yscale("log")
    for name, color, text in (("head", BLUE, "$\\Vert u\\Vert$"), ("weight", GREEN, "$\\Vert W\\Vert$")):
        norm.plot(steps, arrays[name][1:], color=color)
        label_end(norm, steps[-1], arrays[name][-1], text, color)
    for ax in (places, attention, loss, norm):
        ax.set_xscale("log")
    describe(places, "the head, place by place", "", "score of a place, |·|")
    describe(attention, "attention", "", "mean attention")
    describe(loss, "loss", "steps t", "loss")
    describe(norm, "norms", "steps t", "norm")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The independent run at its steps, and the statements on both phases."""
    rows: list[Check] = []
    quantities = {**arrays, "loss_t": arrays["loss"] * arrays["steps"]}
    for step, numbers in REFERENCE.items():
        at = arrays["steps"] == step
        for name, reference in numbers.items() if at.any() else ():
            accuracy = significant(reference, 3 if name in ("head", "weight") or reference >= 100 else 2)
            quantity = f"{NAMES[name]} after {step:,} steps"
            rows.append(Check(quantity, RUN, SOURCE, reference, quantities[name][at][0], accuracy))
    first, further = float(arrays["exponents"][0]), arrays["exponents"][1:]
    far = float(further[np.argmax(np.abs(further - 2))])
    near = within(0.1, "Θ, measured between 20 and 200 steps of 0.001")
    right = float(arrays["accuracy"][arrays["steps"] == 600][0])
    close = within(0.03, "the direction still turns with the attention")
    return [
        *rows,
        Check("exponent of ⟨u, E_1⟩ in t, phase 1", STATED, PAPER, 1.0, first, near),
        Check("exponent of ⟨u, E_l⟩ farthest from 2, phase 1", STATED, PAPER, 2.0, far, near),
        Check("accuracy after 600 steps", RUN, SOURCE, 1.0, right, Accuracy(words="all strings")),
        Check("cosine of u and the separator", DERIVED, PAPER, 1.0, arrays["cosine"][0], close),
    ]
