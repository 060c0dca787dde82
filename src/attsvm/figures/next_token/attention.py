"""Next-token prediction: the direction of attention, the loss gap, and the collapse of a text.

"Non-asymptotic Convergence of Training Transformers for Next-token Prediction", Figure 2, stage 2;
"From Self-Attention to Markov Models", distribution collapse.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.figures.figure import Arrays, Check, Figure
from attsvm.figures.style import BLUE, GREY, ORANGE, canvas, label
from attsvm.next_token.excess import log_excess
from attsvm.next_token.generators import log2_toy, random_corpus, random_embeddings
from attsvm.next_token.likelihood import graph_finite_part_by_query
from attsvm.next_token.markov import ContextChain, collapse_exponent
from attsvm.next_token.programs import attention_program
from attsvm.next_token.two_stage import train_two_stages
from attsvm.verdict import cosine

WEIGHTS = (0.7, 0.3)


def experiment(steps: tuple[int, int]) -> Arrays:
    """Direction error and log loss gap (k,) of both kinds of tokens; mean counts (k, 2) of 200 texts."""
    corpus = random_corpus(120, 5, 20, seed=0)
    arrays: Arrays = {}
    for name, E in (("orthonormal", np.eye(20)), ("random", random_embeddings(20, 20, seed=0))):
        path = train_two_stages(corpus, E, steps=steps).attention
        arrays["steps"] = path.index
        arrays[f"error_{name}"] = 1 - cosine(path.W, attention_program(corpus, E).W)
        arrays[f"gap_{name}"] = log_excess(path, corpus)
        arrays[f"norm_{name}"] = path.norm()
    chain = ContextChain(np.log([WEIGHTS] * 2))
    _, counts = chain.simulate([0, 1], steps=30_000, chains=200)
    arrays["counts"] = np.exp(np.log(counts).mean(0))
    arrays["exponent"] = np.array(collapse_exponent(counts, weak=1, strong=0))
    finite = graph_finite_part_by_query(log2_toy())[:, 3]
    arrays["finite_odds"] = np.array(finite[0] - finite[1])
    return arrays


def draw(arrays: Arrays) -> Canvas:
    """Direction, loss gap, collapse."""
    figure, (direction, gap, collapse) = canvas(3, width=9.6)
    steps = arrays["steps"][1:]
    for name, color in (("orthonormal", BLUE), ("random", ORANGE)):
        direction.loglog(steps, arrays[f"error_{name}"][1:], color=color)
        gap.plot(steps, arrays[f"gap_{name}"][1:], color=color)
        label(direction, steps[0], arrays[f"error_{name}"][1], name, color, va="bottom")
    direction.set_title("W tends to its program")
    direction.set_ylabel("1 − cosine")
    gap.set_title("the loss gap falls exponentially")
    gap.set_ylabel("log (L − L*)")
    for ax in (direction, gap):
        ax.set_xlabel("steps of normalised GD")
    strong, weak = arrays["counts"].T
    collapse.loglog(strong, weak, color=BLUE)
    predicted = weak[-1] * (strong / strong[-1]) ** (WEIGHTS[1] / WEIGHTS[0])
    collapse.loglog(strong, predicted, color=GREY, ls="--", lw=1)
    label(collapse, strong[0], predicted[0], "slope q/p", GREY, va="bottom")
    collapse.set_title("the weak token fades")
    collapse.set_xlabel("count of the strong token")
    collapse.set_ylabel("count of the weak one")
    return figure


def checks(arrays: Arrays) -> list[Check]:
    """Closed forms: the collapse exponent q/p, log 2 of the toy, and linear growth of the norm."""
    growth = np.corrcoef(arrays["steps"], arrays["norm_orthonormal"])[0, 1] ** 2
    return [
        Check("collapse exponent", "derived", WEIGHTS[1] / WEIGHTS[0], float(arrays["exponent"]), 0.021),
        Check("finite odds of the toy", "derived", float(np.log(2)), float(arrays["finite_odds"]), 1e-12),
        Check("R² of linear norm growth", "Huang et al. 2024, Fig. 2", 1.0, float(growth), 1e-3),
    ]


SHOWS = "Attention tends to the program of its corpus, the loss gap falls exponentially, weak tokens fade."
FIGURE = Figure(
    "next-token",
    "Next-token prediction",
    SHOWS,
    experiment,
    {
        "quick": {"steps": (500, 5_000)},
        "default": {"steps": (1_000, 50_000)},
        "paper": {"steps": (1_000, 200_000)},
    },
    draw,
    checks,
)
