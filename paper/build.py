"""From the repository's records to generated/: the tables, numbers and figures of main.tex, without training.

    python paper/build.py

`make -C paper` runs it and builds main.pdf. A table is a function from a record to lines of LaTeX; a number
of the text is a command, such as \\StopDraws.
"""

from __future__ import annotations

import json
import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

PAPER = Path(__file__).parent
ROOT = PAPER.parent
sys.path[:0] = [str(ROOT / "lab" / folder) for folder in ("benchmarks", "experiments")]

import head_stop_table  # noqa: E402
import law_of_halves  # noqa: E402
from attsvm.plotting.layout import describe, grid  # noqa: E402
from attsvm.plotting.style import BLUE, GREEN, ORANGE, PURPLE, label, plain_powers  # noqa: E402
from attsvm_lab.figures.ours import head_ranks  # noqa: E402
from attsvm_lab.figures.recorded import recorded  # noqa: E402

GENERATED = PAPER / "generated"
RECORDS = ROOT / "lab" / "records"
WHEN, HEADS = RECORDS / "when_it_matters.json", RECORDS / "head_stops.json"
NEAR = 0.1
"""Predicted exponents within this share of the observed ones are near."""
SMALL = 1.2
"""An exponent below it is small: a draw grows little over half of the steps."""


def tables() -> dict[str, str]:
    """File → LaTeX."""
    record = law_of_halves.recorded()
    return {
        "factors": factors(record["factors"]),
        "pairs": pairs(record["pairs"]),
        "exponents": exponents(record["exponents"]),
        "when": when(json.loads(WHEN.read_text(encoding="utf8"))),
        "nets": nets(),
        "heads": heads(json.loads(HEADS.read_text(encoding="utf8"))["runs"]),
        "waits": waits(recorded("waiting")["cells"]),
        "numbers": numbers(record),
    }


def factors(measured: dict[str, Any]) -> str:
    """Shares of each program, one line for the steps of K and Q."""
    lines = []
    for row in measured["rows"]:
        p = exponent(row["p"]) if row["p"] is not None else None
        name = "longest row" if p is None else f"Schatten {shown(p)}{NAMED.get(p, '')}"
        predicted = "max-norm" if p is None else NORMS.get(p / 2, f"Schatten {p / 2:g}")
        lines.append([name, *shares(row["shares"], measured["programs"].index(predicted))])
    heads = [r"$\gamma_2$" if name == "max-norm" else name for name in measured["programs"]]
    return tabular("@{}l" + "c" * len(heads) + "@{}", [["steps of $K$, $Q$", *heads]], lines, gap=3.4)


def pairs(measured: dict[str, Any]) -> str:
    """Shares of each program, one line for a norm of K and another of Q."""
    programs, lines = [exponent(r) for r in measured["programs"]], []
    for row in measured["rows"]:
        p_K, p_Q = (exponent(p) for p in row["p"])
        lines.append(
            [
                f"$({shown(p_K)[1:-1]}, {shown(p_Q)[1:-1]})$",
                shown(harmonic(p_K, p_Q)),
                *shares(row["shares"], place(programs, harmonic(p_K, p_Q))),
            ]
        )
    heads = [NORMS.get(r, f"Schatten~{shown(r)}") for r in programs]
    return tabular("@{}ll" + "c" * len(heads) + "@{}", [["$(p_K, p_Q)$", "$r$", *heads]], lines, gap=3.4)


def exponents(measured: dict[str, Any]) -> str:
    """How often the predicted exponent leads, by size and steps."""
    lines: list[list[str]] = []
    for row in measured["rows"]:
        size, p = "$(" + ", ".join(map(str, row["size"])) + ")$", exponent(row["p"])
        first = not lines or row["size"] != measured["rows"][len(lines) - 1]["size"]
        counts = [f"{row['leads']} of {row['draws']}", str(row["neighbour"]), shown(exponent(row["leader"]))]
        steps = f"Schatten {shown(p)}{NAMED.get(p, '')}"
        lines.append([size if first else "", steps, shown(p / 2), *counts, *shares([row["share"]])])
    heads = ["size", "steps of $K$, $Q$", "$r$", "it leads", "a neighbour", "median", "share in $r$"]
    return tabular("@{}llccccc@{}", [heads], lines)


def when(record: dict[str, Any]) -> str:
    """Share of fresh inputs on which the planted winner is picked, without noise."""
    names, lines = list(record["rows"][0]["trained"]), []
    for row in sorted(record["rows"], key=lambda row: (row["n"], row["rank"])):
        if row["noise"]:
            continue
        best, cells = max(names, key=lambda name: row["trained"][name][0]), []
        for name in names:
            mean, error = row["trained"][name]
            program = row["program"][name]
            text = rf"{mean:.1f} $\pm$ {error:.1f}"
            text = rf"\textbf{{{mean:.1f}}} $\pm$ {error:.1f}" if name == best else text
            cells.append(text + (f" ({program[0]:.1f})" if program else ""))
        lines.append([str(row["n"]), str(row["rank"]), *cells])
    return tabular("@{}ll" + "l" * len(names) + "@{}", [["$n$", "rank", *names]], lines)


def nets() -> str:
    """Ranks of what an optimizer of W_Q and W_K added to a head."""
    arrays, lines = head_ranks.experiment(), []
    for rule, name, norm in NETS:
        cells = []
        for measure in ("stable rank", "effective rank"):
            values = head_ranks.seeds(arrays, rule, measure)
            digits = 2 if measure == "stable rank" and values.mean() < 10 else 1
            low, high = head_ranks.interval(values)
            cells.append(f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
        lines.append([name, norm, *cells])
    heads = [r"optimizer of $W_Q$, $W_K$", "norm by the law", "stable rank"]
    return tabular("@{}llll@{}", [[*heads, r"$(\sum\sigma)^2/\sum\sigma^2$"]], lines)


def heads(runs: dict[str, Any]) -> str:
    """Where heads of small encoders stand: one line for a start and an optimizer."""
    columns = {
        "start": "start",
        "W_Q, W_K by": "optimizer of $W_Q$, $W_K$",
        "stable rank of what was added": "added",
        "of the sum of gradients on the same path": "gradients",
        "alignment": "alignment",
        "largest at any look": "largest",
        "stops": "stops",
        "test, %": "test",
    }
    places, starts, lines = [head_stop_table.HEADS.index(name) for name in columns], [], []
    for row in head_stop_table.rows(runs):
        start, *cells = (row[place].replace("−", "$-$").replace(", epoch ", " after ") for place in places)
        start, cells[0] = start.replace("then all else", "rest"), cells[0].replace(", head by head", "")
        lines.append(["" if start in starts else start, *cells])
        starts.append(start)
    return tabular("@{}ll" + "c" * (len(columns) - 2) + "@{}", [list(columns.values())], lines, gap=3.4)


def waits(cells: list[dict[str, Any]]) -> str:
    """Steps to leave a stop, measured over predicted, one line for all starts of a setting."""
    lines = []
    for name, group in settings(cells).items():
        starts = [cell["start"] for cell in group]
        ratios = [cell["ratio"][0] for cell in group if cell["ratio"][0] is not None]
        ends = [f"{x:.2f}" for x in sorted({min(ratios), max(ratios)})] if ratios else ["none left"]
        counts = [str(sum(cell[key] for cell in group)) for key in ("stops", "left", "agree")]
        span = power_of_ten(min(starts)) + (f" to {power_of_ten(max(starts))}" if len(starts) > 1 else "")
        lines.append([name, span, *counts, " to ".join(dict.fromkeys(ends))])
    heads = ["training", r"$\varepsilon$", "at a stop", "left", "as predicted", "ratio"]
    return tabular("@{}llcccl@{}", [heads], lines, gap=4)


def settings(cells: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Cells that differ in their start only, by a name of what they have in common."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        p_K, p_Q = (
            exponent(p) if p == "inf" else float(Fraction(p)) for p in cell.get("p", "2, 2").split(", ")
        )
        pair = f"$({shown(p_K)[1:-1]}, {shown(p_Q)[1:-1]})$"
        steps = ["gradient descent"] if p_K == p_Q == 2 else [f"Schatten {pair}"]
        added = [
            rf"{name} {plain(cell[name])}"
            for name in ("decay", "momentum", "batch", "noise")
            if cell.get(name)
        ]
        if cell.get("weights"):
            numbers_held = cell["weights"].replace(" at random", ", at random")
            added.append(numbers_held + (", columns mixed" if cell.get("turned") else ""))
        groups.setdefault(", ".join(added or steps), []).append(cell)
    return dict(sorted(groups.items(), key=lambda item: item[0].startswith("decay")))


def plain(x: float) -> str:
    """A setting: a power of ten where it is small."""
    return power_of_ten(x) if x < 0.01 else f"{x:g}"


NETS = (
    ("adam+gd", "gradient descent", "nuclear"),
    ("adam+schatten4-heads", "Schatten-4 steps, head by head", "Frobenius"),
    ("adam+muon", "Muon, heads together", "spectral"),
    ("adam+muon-heads", "Muon, head by head", "spectral"),
    ("adam+sign", "sign descent", r"within a factor of $\gamma_2$"),
    ("adam", "Adam", "none"),
)
NORMS = {1.0: "nuclear", 2.0: "Frobenius", math.inf: "spectral"}
NAMED = {2.0: " (GD)", math.inf: " (Muon)"}


def numbers(record: dict[str, Any]) -> str:
    """The commands of the text."""
    planted = json.loads(WHEN.read_text(encoding="utf8"))
    commands = {
        "FactorDraws": record["factors"]["draws"],
        **pair_numbers(record["pairs"]),
        **diagonal_numbers(record["diagonals"]),
        "GridSize": len(record["exponents"]["grid"]) + 1,
        **stop_numbers(record["stops"]),
        **picture_numbers(record["picture"]["predicted"]),
        **waiting_numbers(recorded("waiting")["cells"]),
        "WhenD": planted["d"],
        "WhenT": planted["T"],
        "WhenDraws": planted["draws"],
        "WhenSteps": f"{planted['steps']:,}",
    }
    return "".join(rf"\newcommand{{\{name}}}{{{value}}}" + "\n" for name, value in commands.items())


def pair_numbers(measured: dict[str, Any]) -> dict[str, Any]:
    """Settings of the pairs, and in how many the predicted program has the largest share."""
    programs, steps = [exponent(r) for r in measured["programs"]], [row["steps"] for row in measured["rows"]]
    leads = []
    for row in measured["rows"]:
        predicted = place(programs, harmonic(*(exponent(p) for p in row["p"])))
        leads.append(np.argmax(row["shares"], axis=0) == predicted)
    least, median = np.sum(leads, axis=0)
    return {
        "PairDraws": measured["draws"],
        "PairLr": measured["lr"],
        "PairSteps": f"{min(steps):,}",
        "PairLongSteps": f"{max(steps):,}",
        "PairRows": len(leads),
        "PairLeastLeads": least,
        "PairLeads": median,
    }


def diagonal_numbers(measured: dict[str, Any]) -> dict[str, Any]:
    """In how many rows the predicted program has the largest median, and the least of these medians."""
    leads, medians = [], []
    for row in measured["rows"]:
        p, of_programs = exponent(row["p"]), [median for _, median in row["shares"]]
        predicted = measured["programs"].index("l∞" if p == math.inf else f"l{p / 2:g}")
        leads.append(int(np.argmax(of_programs)) == predicted)
        medians.append(of_programs[predicted])
    return {
        "DiagonalDraws": measured["draws"],
        "DiagonalRows": len(leads),
        "DiagonalLeads": sum(leads),
        "DiagonalMedian": f"{min(medians):.1f}",
    }


def stop_numbers(measured: dict[str, Any]) -> dict[str, Any]:
    """Runs at stops, and how near their observed exponents are to the predicted ones."""
    predicted, observed = np.array(measured["powers"])[:, :2].T
    quotient = predicted / observed
    off = np.abs(quotient - 1) > NEAR
    return {
        "StopDraws": measured["draws"],
        "StopsAtHalf": measured["at_half"]["stop"],
        "StopPowers": len(predicted),
        "StopHalf": f"{measured['steps'] // 2:,}",
        "StopSteps": f"{measured['steps']:,}",
        "StopLeast": f"{predicted.min():.2f}",
        "StopLargest": f"{predicted.max():.2f}",
        "StopRatio": f"{np.median(quotient):.3f}",
        "StopNear": (~off).sum(),
        "StopOff": off.sum(),
        "StopOffBelow": (observed[off] < predicted[off]).sum(),
        "StopSmall": SMALL,
        "StopOffSmall": (predicted[off] < SMALL).sum(),
        "StopAbove": f"{100 * (observed / predicted).max() - 100:.1f}",
    }


def picture_numbers(forecast: dict[str, Any]) -> dict[str, Any]:
    """What one run at a stop is predicted to do."""
    return {
        "PictureAt": f"{forecast['at']:,}",
        "PictureExponent": f"{forecast['exponent']:.2f}",
        "PictureLeaves": power_of_ten(forecast["at"] + forecast["steps_to_leave"]),
    }


def waiting_numbers(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of all runs at a stop did as predicted, how nearly, and what batches of one do to a wait."""
    ratios = [cell["ratio"][0] for cell in cells if is_plain(cell, ("decay",)) and cell["ratio"][0]]
    waits_of = [
        cell["all"]["measured"][0]
        for batch in (None, 1)
        for cell in cells
        if (cell.get("decay"), cell["start"], cell.get("batch")) == (0.05, 1e-8, batch)
        and is_plain(cell, ()) != bool(batch)
    ]
    return {
        "WaitStops": f"{sum(cell['stops'] for cell in cells):,}",
        "WaitAgree": f"{sum(cell['agree'] for cell in cells):,}",
        "WaitLow": f"{min(ratios):.2f}",
        "WaitHigh": f"{max(ratios):.2f}",
        "WaitAll": f"{waits_of[0]:,.0f}",
        "WaitOne": f"{waits_of[1]:,.0f}",
    }


def is_plain(cell: dict[str, Any], also: tuple[str, ...]) -> bool:
    """Whether a cell of the study of waiting has none of these, and no momentum, batch, noise or rounding."""
    return not any(cell.get(name) for name in ("momentum", "batch", "noise", "weights", *also))


def harmonic(p_K: float, p_Q: float) -> float:
    """r of 1/r = 1/p_K + 1/p_Q."""
    return 1 / (1 / p_K + 1 / p_Q)


def place(programs: list[float], r: float) -> int:
    """Where a program stands, up to rounding."""
    return int(np.argmin([abs(1 / r - 1 / program) for program in programs]))


def exponent(p: float | str) -> float:
    """An exponent of the record."""
    return math.inf if p == law_of_halves.INFINITE else float(p)


def shown(p: float) -> str:
    """$\\infty$, a short decimal, or a fraction."""
    short = r"\infty" if p == math.inf else f"{p:g}"
    return f"${short if p == math.inf or len(short) < 6 else Fraction(p).limit_denominator(12)}$"


def power_of_ten(x: float) -> str:
    """10⁻⁸, or a short decimal times such a power."""
    digits = math.floor(math.log10(x) + 1e-9)
    first = f"{x / 10**digits:.1f}".removesuffix(".0")
    return f"$10^{{{digits}}}$" if first == "1" else rf"${first}\cdot10^{{{digits}}}$"


def shares(cells: list[list[float]], bold: int | None = None) -> list[str]:
    """Median (least) of each, the one that the law predicts in bold."""
    texts = []
    for k, (least, median) in enumerate(cells):
        texts.append(
            rf"\textbf{{{median:.1f}}} ({least:.1f})" if k == bold else f"{median:.1f} ({least:.1f})"
        )
    return texts


def tabular(columns: str, heads: list[list[str]], lines: list[list[str]], gap: float = 6) -> str:
    """A table with three rules; space before a line with a first cell, where other lines have none."""
    grouped = any(not line[0] for line in lines)
    rows = []
    for k, line in enumerate(lines):
        if grouped and k and line[0]:
            rows.append(r"\addlinespace")
        rows.append(" & ".join(line) + r" \\")
    above = [" & ".join(head) + r" \\" for head in heads]
    inner = [*above, r"\midrule", *rows]
    opening = rf"\setlength{{\tabcolsep}}{{{gap}pt}}\begin{{tabular}}{{{columns}}}"
    return "\n".join([opening, r"\toprule", *inner, r"\bottomrule", r"\end{tabular}"]) + "\n"


def figures() -> dict[str, Figure]:
    """File → drawing."""
    record = law_of_halves.recorded()
    waiting = law_of_halves.drawing(record["picture"], 3.7, 2.5, explained=False)
    waits = waited(recorded("waiting")["cells"])
    return {"waiting": waiting, "stops": stops(record["stops"]), "waits": waits}


def stops(measured: dict[str, Any]) -> Figure:
    """Predicted against observed exponents, and the line where they are equal."""
    figure, ((ax,),) = grid(1, 1, 2.5, width=2.7)
    predicted, observed = np.array(measured["powers"])[:, :2].T
    ends = [0.05, 1.2 * predicted.max()]
    ax.loglog(ends, ends, color="#999999", lw=0.8)
    ax.loglog(predicted, observed, "o", color=ORANGE, ms=4, alpha=0.7, mew=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(FixedLocator([0.1, 0.3, 1, 3, 9]))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    describe(ax, "", "exponent predicted, 2(σ/s − 1)", "exponent observed")
    return figure


def waited(cells: list[dict[str, Any]]) -> Figure:
    """Median steps to leave against the start: circles are measured, dashed lines predicted."""
    figure, (axes,) = grid(1, 3, 2.3, width=6.5)
    for ax, (title, kind, curves) in zip(axes, PANELS, strict=True):
        for color, (pair, decay, name) in zip((ORANGE, BLUE, GREEN, PURPLE), curves, strict=False):
            _curve(ax, [cell for cell in cells if _of(cell, pair, decay)], kind, color, name)
        ax.set(xscale="log", yscale="linear" if title.endswith("logarithm") else "log")
        plain_powers(ax)
        describe(ax, title, "ε", "steps to leave" if ax is axes[0] else "")
    axes[0].set_xlim(right=10)
    axes[1].set_xlim(right=30)
    axes[1].yaxis.set_major_locator(FixedLocator([300, 500, 1000, 2000]))
    axes[1].yaxis.set_minor_locator(NullLocator())
    for ax in axes[1:]:
        ax.yaxis.set_major_formatter("{x:,.0f}")
    return figure


PANELS: tuple[tuple[str, str, tuple[tuple[str, float, str], ...]], ...] = (
    ("r = 1: a power", "clear", (("2, 2", 0, "(2, 2)"), ("4, 4/3", 0, "(4, 4/3)"))),
    (
        "r > 1: a constant",
        "all",
        (("3, 3", 0, "(3, 3)"), ("4, 4", 0, "(4, 4)"), ("8, 8", 0, "(8, 8)"), ("inf, inf", 0, "(∞, ∞)")),
    ),
    ("(2, 2), decay: a logarithm", "all", (("2, 2", 0.05, "decay 0.05"), ("2, 2", 0.1, "decay 0.1"))),
)
"""Title, draws (all, or those with a clear pull), and exponents, decay and name of each curve."""


def _of(cell: dict[str, Any], pair: str, decay: float) -> bool:
    """Whether a cell has these exponents and this decay, and nothing else."""
    has_settings = cell.get("p", "2, 2") == pair and (cell.get("decay") or 0.0) == decay
    return has_settings and is_plain(cell, ())


def _curve(ax: Any, group: list[dict[str, Any]], kind: str, color: str, name: str) -> None:
    """Medians over the starts: measured and predicted, None for never."""
    rows = sorted((cell["start"], cell[kind]["measured"][0], cell[kind]["predicted"][0]) for cell in group)
    foreseen = [(start, predicted) for start, _, predicted in rows if predicted]
    if not foreseen:
        return
    ax.plot(*zip(*foreseen, strict=True), "--", color=color, lw=1)
    medians = [(start, measured) for start, measured, _ in rows if measured]
    ax.plot(*zip(*medians, strict=True), "o", color=color, ms=3.5)
    start, steps = foreseen[-1]
    if not name.startswith("decay"):
        label(ax, start, steps, name, color, xytext=(5, 0), textcoords="offset points", va="center")
        return
    across, up = (0.4, 0.88) if color == ORANGE else (0.04, 0.2)
    label(ax, across, up, name, color, xycoords="axes fraction")


def main() -> None:
    GENERATED.mkdir(exist_ok=True)
    for name, text in tables().items():
        (GENERATED / f"{name}.tex").write_text(text, encoding="utf8")
    with rc_context({"pdf.fonttype": 42}):
        for name, figure in figures().items():
            figure.savefig(GENERATED / f"{name}.pdf", metadata={"CreationDate": None})


if __name__ == "__main__":
    main()
