"""The picture of the first page: training past saturation, and the law of halves beside it. Two CPU minutes.

    python docs/first_picture.py            # writes docs/images/first.svg

Left: the figure `past-saturation`, its direction. Right: steps in Schatten(p) on K and Q, 20 draws from seed
3000 on with the settings of the claims, against the programs of Schatten(q): the best share is at q = p/2.
"""

import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import attsvm as att
import attsvm_lab as lab
from attsvm.plotting.layout import band, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label, plain_powers
from attsvm_lab.claims.law_of_halves import FACTORS, SIZE

SEEDS = range(3000, 3020)
NORMS = {1.0: "nuclear", 1.5: "1.5", 2.0: "Frobenius", 3.0: "3", 4.0: "4", math.inf: "spectral"}
STEPS = {2.0: ("gradient descent", ORANGE), 4.0: ("Schatten 4", GREEN), math.inf: ("Muon", BLUE)}


def shares(p: float) -> np.ndarray:
    """Trained margin as a percentage of the certified best, (norms, draws)."""
    tokens, v = att.datasets.sphere(*SIZE, seed=SEEDS)
    lr, steps = FACTORS[p]
    rule, weight = att.steepest(att.Schatten(p), lr), att.KeyQuery(separate=True)
    path = att.train(tokens, att.Linear(v), weight=weight, optimizer=rule, steps=steps, record=[steps])
    found = []
    for q in NORMS:
        solution = att.max_margin(path.tokens, path.selected, att.Schatten(q))
        assert np.all(solution.certified), (p, q)
        found.append(100 * att.margin_ratio(path, solution)[:, -1])
    return np.array(found)


def draw(past: dict[str, np.ndarray], halves: dict[float, np.ndarray]) -> Figure:
    figure, ((left, right),) = grid(1, 2, 3.1, width=8.6)
    left.set_xscale("log")
    left.set_yscale("log")
    names = {"usual": ("usual softmax gradient", ORANGE, (0, 8)), "ours": ("attsvm", BLUE, (-34, 2))}
    for name, (text, color, shift) in names.items():
        middle = band(left, past["steps"], past[name], color)
        place = {"ha": "right", "textcoords": "offset points", "xytext": shift}
        label(left, past["steps"][-1], middle[-1], text, color, **place)
    left.set_title("Training goes on past saturation", fontsize=10)
    left.set_xlabel("steps of normalised gradient descent", fontsize=8)
    left.set_ylabel("1 − cosine to the certified limit", fontsize=8)
    plain_powers(left)
    x = range(len(NORMS))
    places = {2.0: (4, "right", (-8, -10)), 4.0: (2, "center", (0, 7)), math.inf: (5, "right", (0, 7))}
    for p, (text, color) in STEPS.items():
        middle = band(right, x, halves[p].T, color)
        best = int(middle.argmax())
        right.plot(best, middle[best], "o", color=color)
        at, side, shift = places[p]
        place = {"ha": side, "textcoords": "offset points", "xytext": shift}
        label(right, at, middle[at], text, color, **place)
    right.set_xticks([*x], NORMS.values(), fontsize=8)
    right.set_ylim(None, 108)
    right.set_title("Law of halves: Schatten p on K and Q, p/2 on W", fontsize=10)
    right.set_xlabel("norm of W = K Qᵀ (Schatten q)", fontsize=8)
    right.set_ylabel("% of the certified best margin", fontsize=8)
    right.axhline(100, color=GREY, lw=0.6, ls=":")
    return figure


def main(out: str = "") -> None:
    past = lab.figures.ALL["past-saturation"].compute("default")
    picture = draw(past, {p: shares(p) for p in STEPS})
    file = Path(out) if out else Path(__file__).parent / "images" / "first.svg"
    picture.savefig(file, metadata={"Date": None})
    if file.suffix == ".svg":  # a picture of its own in both themes, without trailing blanks
        text = file.read_text(encoding="utf8")
        file.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf8")


if __name__ == "__main__":
    main(*sys.argv[1:])
