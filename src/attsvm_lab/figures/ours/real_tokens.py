"""The theorem on real tokens: MiniLM's states of eight movie reviews, trained from many starts.

`review_tokens.npz` holds the states, without the texts; `lab/experiments/real_tokens.py` made it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid
from attsvm.plotting.style import GREY, colours
from attsvm_lab.figures.accuracy import exactly, within
from attsvm_lab.figures.figure import DERIVED, Arrays, Check, certified, scales
from attsvm_lab.figures.papers import OURS

NEAR = 1e-4
"""A run has converged when 1 − cosine is at most this."""


class Training(NamedTuple):
    """A training: the norm of its limit, another norm as a control, the weight and the rule.

    queries: whether the training has queries, or only a prompt.
    """

    norm: att.Norm
    other_norm: att.Norm
    weight: Any
    rule: Any
    queries: bool = False


TRAININGS: dict[str, Training] = {
    "prompt, p = 1.1": Training(att.Entrywise(1.1), att.frobenius, att.FullWeight(), att.mirror(1.1, 10.0)),
    "prompt, p = 2": Training(
        att.frobenius, att.Entrywise(3), att.FullWeight(), att.steepest(att.frobenius, 10.0)
    ),
    "prompt, p = 3": Training(att.Entrywise(3), att.frobenius, att.FullWeight(), att.mirror(3.0, 1000.0)),
    "W": Training(att.frobenius, att.nuclear, att.FullWeight(), att.steepest(att.frobenius, 10.0), True),
    "(K, Q)": Training(att.nuclear, att.frobenius, att.KeyQuery(8), att.steepest(att.frobenius, 5.0), True),
}
"""Step lengths were chosen for speed among two to four on these reviews; shorter steps converge later."""


SHOWS = (
    "Tokens as a language model makes them: last states of MiniLM on eight movie reviews (9 to 12 tokens, "
    "384 wide) and a sentiment head fitted on others. From every random start the trained weight tends to "
    "the certified program of the tokens it selects, in the norm of its own optimizer and in no other."
)
NOTES = (
    "Nothing published to compare with. Starts are N(0, 1), so that several selections occur. For W and "
    "(K, Q), keys and queries are in coordinates of their span."
)


@OURS.figure(
    "real-tokens",
    "The theorem on real tokens",
    shows=SHOWS,
    sizes=scales(
        starts=(8, 20, 100),
        steps=(10_000, 10_000, 10_000),
        trainings=(("prompt, p = 2", "prompt, p = 3", "(K, Q)"), tuple(TRAININGS), tuple(TRAININGS)),
    ),
    notes=NOTES,
    long_runs=True,
    seconds=42,
)
def experiment(starts: int, steps: int, trainings: tuple[str, ...]) -> Arrays:
    """1 − cosine to the certified program of each run's own selection, (ways, starts, k)."""
    record = np.unique(np.geomspace(10, steps, 30).astype(int))
    results = [_train(TRAININGS[name], starts, record) for name in trainings]
    arrays: Arrays = {"ways": np.array(trainings), "steps": record}
    return arrays | {name: np.array([result[name] for result in results]) for name in results[0]}


def reviews(queries: bool = False) -> tuple[att.Tokens, Float]:
    """Eight reviews of 9 to 12 tokens, 384 wide, at mean length one, and the head.

    queries: [CLS] is the query, and keys and queries have coordinates in orthonormal bases of their spans.
    Frobenius and nuclear norms and the descent of W and of (K, Q) do not change, and W is smaller.
    """
    packed = files("attsvm_lab.figures.ours").joinpath("review_tokens.npz")
    with packed.open("rb") as opened, np.load(opened) as file:
        states, lengths, labels, head = (file[name] for name in ("states", "lengths", "labels", "head"))
    states, v = states.astype(float), head.astype(float)
    states /= np.linalg.norm(states, axis=1).mean()
    texts = np.split(states, np.cumsum(lengths)[:-1])
    if not queries:
        return att.Tokens.from_sequences(texts, labels=labels), v
    first = np.stack([text[0] for text in texts])
    key_basis, query_basis = np.linalg.qr(states.T).Q, np.linalg.qr(first.T).Q
    return att.Tokens.from_sequences(
        [text @ key_basis for text in texts], first @ query_basis, labels=labels
    ), v @ key_basis


def _train(training: Training, starts: int, record: Any) -> Arrays:
    tokens, v = reviews(training.queries)
    head, init, steps = att.Linear(v), att.gaussian(range(starts)), record.tolist()
    path = att.train(
        tokens,
        head,
        weight=training.weight,
        optimizer=training.rule,
        steps=steps[-1],
        init=init,
        record=steps,
    )
    return _compared(path, tokens, v, training)


def _compared(path: att.Path, tokens: att.Tokens, v: Float, training: Training) -> Arrays:
    """1 − cosine of every run to the programs of its selection; each selection is solved once."""
    selected = path.selected.argmax(-1)
    selections, index = np.unique(selected, axis=0, return_inverse=True)
    index = index.reshape(-1)
    programs = [att.max_margin(tokens, selection, training.norm) for selection in selections]
    other_programs = [att.max_margin(tokens, selection, training.other_norm) for selection in selections]
    W = path.W[:, path.index > 0]
    return {
        "error": np.stack([1 - att.cosine(W[r], programs[k].W) for r, k in enumerate(index)]),
        "other": np.stack([1 - att.cosine(W[r], other_programs[k].W) for r, k in enumerate(index)]),
        "selection": index,
        "local": np.array([bool(att.locally_optimal(tokens, v, program)) for program in programs])[index],
        "certified": np.array([bool(program.certified) for program in programs])[index],
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Errors against steps, and the selections at which the starts end."""
    figure, ((errors, ends),) = grid(1, 2, 3.4)
    steps, names = arrays["steps"], [str(name) for name in arrays["ways"]]
    for name, color, error, other_error in zip(
        names, colours(len(names)), arrays["error"], arrays["other"], strict=True
    ):
        band(errors, steps, error, color, label=name)
        errors.plot(steps, np.median(other_error, axis=0), ":", color=color, lw=1)
    errors.axhline(NEAR, color=GREY, lw=0.7)
    errors.set_xscale("log")
    errors.set_yscale("log")
    errors.legend(fontsize=7, frameon=False, title="dotted: to another norm's program", title_fontsize=7)
    describe(errors, "the direction", "steps", "1 − cosine to the certified program")
    _ends(ends, names, arrays)
    return figure


def _ends(ax: Axes, names: list[str], arrays: Arrays) -> None:
    """One bar per training: shares of the starts by the selection at which they end, largest first."""
    for row, (color, selections) in enumerate(zip(colours(len(names)), arrays["selection"], strict=True)):
        shares, start = np.sort(np.bincount(selections))[::-1] / len(selections), 0.0
        for share in shares:
            ax.barh(row, share, left=start, color=color, alpha=0.75, edgecolor="white", height=0.7)
            start += share
        arrived = f"{arrays['local'][row].mean():.0%} locally optimal"
        ax.text(1.0, row - 0.46, arrived, fontsize=7, ha="right", va="center", color=GREY)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    describe(ax, "the selection that a start ends at", "share of the starts, one piece per selection")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """At least 80 % of the locally optimal starts converge to their program, none to that of another norm."""
    rows = [certified(arrays)]
    for row, name in enumerate(arrays["ways"]):
        local = arrays["local"][row]
        near = float((arrays["error"][row, local, -1] <= NEAR).mean()) if local.any() else 0.0
        wrong = float((arrays["other"][row, local, -1] <= NEAR).mean()) if local.any() else 1.0
        for statement, reference, share, accuracy in (
            ("share of locally optimal starts at 1 − cosine ≤ 1e-4", 1.0, near, within(0.2, ASKED)),
            ("the same to the program of another norm", 0.0, wrong, exactly("no run")),
        ):
            rows.append(Check(f"{name}: {statement}", DERIVED, THEOREM, reference, share, accuracy))
    return rows


THEOREM = "local convergence theorems"
ASKED = "1 − cosine ≤ 1e-4 of at least 80 %: some starts need more steps than others"
