"""The presets of the page: every two-dimensional instance of the papers, with the numbers of `datasets`."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm import datasets
from attsvm.data.tokens import Tokens
from attsvm.datasets import published
from attsvm.explorer.state import state_of
from attsvm.numbers import Float

FIRST_PAPER = "Max-Margin Token Selection"
SECOND_PAPER = "Transformers as SVMs"
MIRROR_PAPER = "Mirror Descent"
OURS = "Law of halves"
RING = {"ring": 64, "radius": 1.5}


def presets() -> list[dict[str, Any]]:
    """Each preset with id, title, paper, two sentences of advice, state, and the starts of the paper."""
    return [*_prompts(), *_losses(), *_joint(), *_weights(), _law_of_halves(), _waiting(), _six_inputs()]


def _preset(
    name: str,
    paper: str,
    title: str,
    advice: str,
    problem: tuple[Tokens, Float],
    published_starts: Any = (),
    **state: Any,
) -> dict[str, Any]:
    starts = {"points": [list(start) for start in published_starts]} if published_starts else None
    return {
        "id": name,
        "paper": paper,
        "title": title,
        "advice": advice,
        "state": state_of(*problem) | ({} if starts is None else {"starts": starts}) | state,
        "published": starts,
    }


def _prompts() -> list[dict[str, Any]]:
    return [
        _preset(
            "one-input-global",
            FIRST_PAPER,
            "Fig. 1a: one input, one end",
            "Every start turns to the same direction, that of token 1a. Drag 1c to the right until a second "
            "end appears, or lower its score by hand.",
            datasets.single_input(0.9),
            published.SINGLE_INPUT_STARTS,
            starts=RING,
        ),
        _preset(
            "one-input-local",
            FIRST_PAPER,
            "Fig. 1b: one input, two ends",
            "Two selections are locally optimal, and the starts divide between them: blue and orange. Drag a "
            "token and watch the border between the two basins move.",
            datasets.single_input(0.0),
            published.SINGLE_INPUT_STARTS,
            starts=RING,
        ),
        _preset(
            "several-inputs",
            FIRST_PAPER,
            "Fig. 1c: three inputs of seven tokens",
            "One direction must serve three inputs at once; the ringed tokens are those that hold it. Change "
            "the optimizer: sign descent tends to the l∞ program, coordinate descent to the l1 program.",
            datasets.several_inputs(),
            published.SEVERAL_INPUTS_STARTS,
            starts=RING,
        ),
    ]


def _losses() -> list[dict[str, Any]]:
    losses = (
        ("linear", "correlation", "The linear loss leans to the input with the high score on its way"),
        ("logistic", "logistic", "The logistic loss leans to the input with the low score on its way"),
    )
    return [
        _preset(
            f"two-scores-{name}",
            FIRST_PAPER,
            f"The loss decides how training leans: {name}",
            f"{sentence}, though both tend to (1, 0). Set the score of token 1b to 100 and play again.",
            datasets.two_scores(),
            [(0.0, 0.0)],
            loss=loss,
        )
        for name, loss, sentence in losses
    ]


def _joint() -> list[dict[str, Any]]:
    tight = (
        "Prompt p and head v train together; every input supports the head, so p follows the p-SVM and v "
        "(dotted) the v-SVM. Drag token 3b up: once input 3 has label margin to spare, p turns to p relax."
    )
    loose = (
        "Input 3 has label margin to spare, so the prompt follows p relax, which asks of it only the right "
        "order, and not the p-SVM. Drag token 3b down to height 1 and the two become one."
    )
    return [
        _preset(
            f"joint-{name}",
            FIRST_PAPER,
            f"Fig. 3: head and prompt together, {name}",
            advice,
            datasets.joint_training(third),
            [published.JOINT_TRAINING_START],
            joint=True,
            **_selected_by_hand([1, 1, 1], datasets.joint_training(third)),
        )
        for name, third, advice in (("tight", (0.5, 1.0), tight), ("loose", (0.5, 1.5), loose))
    ]


def _weights() -> list[dict[str, Any]]:
    return [
        _preset(
            "two-clouds",
            SECOND_PAPER,
            "Fig. 1: two clouds, a weight W",
            "Each input has a query z of its own, and W z is the direction in which it looks; training turns "
            "both to the rays of the Frobenius program. Drag tokens of one input and see the other turn.",
            datasets.two_clouds(),
        ),
        _preset(
            "two-fans",
            SECOND_PAPER,
            "Fig. 3: two fans, attention as a separator",
            "The lines orthogonal to W z cut the chosen token of each input from its others. Click another "
            "token at the edge of a fan: it has a program too, but training does not end there.",
            datasets.two_fans(),
        ),
        _preset(
            "joint-mirror",
            MIRROR_PAPER,
            "Joint mirror descent: the tokens depend on p",
            "Weight and head train together by mirror descent with p = 3 and select tokens 1a and 2a. Slide "
            "its p down to 2 and play again: input 1 changes to token 1b.",
            datasets.joint_mirror(),
            joint=True,
            rule="mirror",
            ruleP=3,
            **_selected_by_hand([0, 0], datasets.joint_mirror()),
        ),
    ]


def _law_of_halves() -> dict[str, Any]:
    """One input with the same support token for every norm, so that the direction depends on the norm."""
    tokens = Tokens(np.array([[[1.0, 0.5], [0.0, 0.0], [-0.6, 0.2]]]))
    return _preset(
        "law-of-halves",
        OURS,
        "Factors of a prompt: p = k ⊙ q",
        "Steps in l4 on the factors k and q tend to the l2 program of p = k ⊙ q: half of p. Slide the "
        "optimizer’s p and watch path and program turn together, or train p itself and see it go elsewhere.",
        (tokens, np.array([1.0, 0.3])),
        trained="kq",
        rule="steepest",
        ruleP=4,
        starts=RING | {"radius": 0.5},
    )


def _waiting() -> dict[str, Any]:
    """Three inputs of two tokens with a stop of rank one: beside W = σ₁ e₁e₁ᵀ the gradient is diag(1, 3).

    The first two inputs have differences (1, ±1.5) and queries (1, ±2), so that their gradients add up to
    diag(2, 6). The third, difference (4, 0) and query (1, 0), has a smaller margin from σ₂ > σ₁ on: the
    nuclear, the l2 and the spectral program have the same direction, the identity.
    """
    keys = np.array([[[0.5, 0.75], [-0.5, -0.75]], [[0.5, -0.75], [-0.5, 0.75]], [[2.0, 0.0], [-2.0, 0.0]]])
    queries = np.array([[1.0, 2.0], [1.0, -2.0], [1.0, 0.0]])
    return _preset(
        "waiting",
        OURS,
        "Waiting at rank one: W = K Qᵀ",
        "Three optimizers begin beside rank one and end at the same direction, but gradient descent on K and "
        "Q waits 4,490 steps there, Schatten-4 174 and Muon 80. Slide σ₂/σ₁ at the start, or drag token 1a "
        "up, and see who waits how long.",
        (Tokens(keys, queries), np.array([1.0, 0.0])),
        trained="kq",
        rule="normalised",
        lr=0.01,
        starts={"points": [[3.0, 0.0, 0.0, 3e-6]]},
        time=20_000,
    )


def _six_inputs() -> dict[str, Any]:
    """Six inputs of eight random tokens: the first token is shifted to one side, the second to another."""
    rng = np.random.Generator(np.random.PCG64(5))
    keys = 0.3 * rng.standard_normal((6, 8, 2))
    keys[:, 0] += (1.3, 0.35)
    keys[:, 1] += (-0.2, 1.3)
    return _preset(
        "six-inputs",
        "Random tokens",
        "Six inputs of eight tokens",
        "Forty-eight random tokens and three selections that training can end at, each with starts of its "
        "own. Turn the head v and see which stay locally optimal; drag a token far out and see them vanish.",
        (Tokens(keys.round(3)), np.array([0.9, 1.0])),
        starts=RING | {"radius": 3},
    )


def _selected_by_hand(tokens: list[int], problem: tuple[Tokens, Float]) -> dict[str, Any]:
    """The fields of the state that select one token per input by hand."""
    inputs = state_of(*problem)["inputs"]
    selected = [fields | {"chosen": [token]} for fields, token in zip(inputs, tokens, strict=True)]
    return {"choose": "hand", "inputs": selected}
