"""The record of `scaling.py` as tables and a chart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scaling_cases import OURS, SERIES, SVM

LARGE = 5_000
"""The slope of log time against log n is fitted from here on."""
HEAVY = 100_000
"""From here on the keys outweigh what a process holds besides."""

Record = dict[str, Any]

# ---------------------------------------------------------------------- tables


def page(records: list[Record]) -> Iterator[str]:
    """What the docs say: the chart, a summary of each record, the peers of the first."""
    first, *further = records
    yield "![CPU time against the number of examples, log-log](images/scaling.svg)\n"
    yield from head(first)
    yield from summary(first)
    yield from peer_table(_lines(first["rows"]))
    yield from thread_table(first)
    for record in further:
        yield f"\nThe same on another machine: {_where(record)}\n"
        yield from summary(record)
        yield from thread_table(record)


def tables(record: Record) -> Iterator[str]:
    """A record as Markdown."""
    yield from head(record)
    lines = _lines(record["rows"])
    ours = [line for line in lines if line[0]["who"] == OURS]
    yield from _table("program", [line for line in ours if not line[0]["prompt"]])
    yield from _table("prompt", [line for line in ours if line[0]["prompt"]])
    yield from peer_table(lines)
    yield from thread_table(record)


def head(record: Record) -> Iterator[str]:
    """The machine, and how many answers are certified."""
    yield f"{_where(record)}\n"
    ours = [row for row in record["rows"] if row["who"] == OURS and "seconds" in row]
    proven = sum(row.get("certified", True) for row in ours)
    yield f"Of our {len(ours)} answers {proven} are certified, or proven to have no solution."


def _where(record: Record) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    where = (
        f"{machine['processor']}, load {machine['load']} at the start, Python {machine['python']}, {versions}"
    )
    where += f", commit {machine['commit']}" if machine.get("commit") else ""
    left_out = f" Not installed: {', '.join(record['missing'])}." if record["missing"] else ""
    return f"{where}; a series ends where a call needs more than {record['cap']} CPU s.{left_out}"


def _lines(rows: list[Record]) -> list[list[Record]]:
    """The rows of each series in the order of the programs, n growing."""
    order = {series.name: k for k, series in enumerate(SERIES)}
    names = sorted({row["name"] for row in rows}, key=lambda name: order.get(name, len(order)))
    return [sorted((row for row in rows if row["name"] == name), key=lambda row: row["n"]) for name in names]


def _table(title: str, lines: list[list[Record]]) -> Iterator[str]:
    if not lines:
        return
    sizes = sorted({row["n"] for line in lines for row in line})
    head = [f"{title}, CPU s", "T, d", *(f"n = {n:,}" for n in sizes), "slope", "passes", "memory"]
    yield f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|"
    for line in lines:
        by_n = {row["n"]: cell_of(row) for row in line}
        last = next((row for row in reversed(line) if "seconds" in row), {})
        passes = f"{last['passes']:.0f}" if "passes" in last else ""
        memory = f"{last['memory']:.1f}×" if last.get("n", 0) >= HEAVY else ""
        cells = [line[0]["program"], f"{line[0]['T']}, {line[0]['d']}", *(by_n.get(n, "") for n in sizes)]
        yield f"| {' | '.join([*cells, _slope_cell(line), passes, memory])} |"


def cell_of(row: Record) -> str:
    if "error" in row:
        return row["error"]
    if "one" in row:
        return f"{row['one']['wall']:.3g} s, with {row['threads']} threads {row['many']['wall']:.3g} s"
    seconds = f"{row['seconds']:.2g}" if row["seconds"] < 10 else f"{row['seconds']:.0f}"
    return (
        seconds if row.get("certified", True) else f"{seconds} **not certified, gap {row.get('gap', 1):.0e}**"
    )


def slope(line: list[Record]) -> float | None:
    """Least-squares slope of log CPU time against log n, over n from LARGE on; None below two points."""
    points = [(math.log(row["n"]), math.log(row["seconds"])) for row in line if _counts(row)]
    if len(points) < 2:
        return None
    centre, height = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - centre) * (y - height) for x, y in points) / sum((x - centre) ** 2 for x, _ in points)


def _counts(row: Record) -> bool:
    return row["n"] >= LARGE and "seconds" in row


def _slope_cell(line: list[Record]) -> str:
    steepness = slope(line)
    return "" if steepness is None else f"{steepness:.2f}"


def peer_table(lines: list[list[Record]]) -> Iterator[str]:
    """Ours and the peers on the programs that peers were run on, and by how much their answers are worse."""
    peers = {_program(line[0]) for line in lines if line[0]["who"] != OURS}
    compared = sorted((line for line in lines if _program(line[0]) in peers), key=lambda x: _program(x[0]))
    if not peers:
        return
    sizes = sorted({row["n"] for line in compared for row in line})
    head = ["program", "T, d", "solver", *(f"n = {n:,}" for n in sizes), "slope"]
    yield f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|"
    for line in compared:
        best = {row["n"]: row.get("value") for row in lines_of(compared, line[0], OURS)}
        by_n = {row["n"]: cell_of(row) + _excess(row, best.get(row["n"])) for row in line}
        first = line[0]
        cells = [
            first["program"],
            f"{first['T']}, {first['d']}",
            first["who"],
            *(by_n.get(n, "") for n in sizes),
        ]
        yield f"| {' | '.join([*cells, _slope_cell(line)])} |"


def _program(row: Record) -> tuple[str, int, int]:
    return row["program"], row["T"], row["d"]


def lines_of(lines: list[list[Record]], row: Record, solver: str) -> list[Record]:
    """The rows of the same program by another solver."""
    of_program = (line for line in lines if _program(line[0]) == _program(row) and line[0]["who"] == solver)
    return next(of_program, [])


def _excess(row: Record, best: float | None) -> str:
    """By which share a peer's answer is worse than ours, where more than a certificate allows."""
    if row["who"] == OURS or best is None or "value" not in row:
        return ""
    excess = row["value"] / best - 1
    return f" (+{excess:.0e})" if abs(excess) > 1e-8 else ""


def summary(record: Record) -> Iterator[str]:
    """The largest n of every program, by width: CPU seconds and the slope."""
    ours = [line for line in _lines(record["rows"]) if line[0]["who"] == OURS and line[0]["T"] != SVM.T]
    for prompt in (False, True):
        lines = [line for line in ours if line[0]["prompt"] == prompt]
        widths = sorted({line[0]["d"] for line in lines})
        if not lines:
            continue
        yield f"\n| CPU s at the largest n (slope) | {' | '.join(f'd = {d}' for d in widths)} |"
        yield f"{'|---' * (1 + len(widths))}|"
        for program in dict.fromkeys(line[0]["program"] for line in lines):
            by_width = {line[0]["d"]: line for line in lines if line[0]["program"] == program}
            yield f"| {program} | {' | '.join(_last(by_width.get(d, [])) for d in widths)} |"


def _last(line: list[Record]) -> str:
    solved = [row for row in line if "seconds" in row]
    if not solved:
        return ""
    steepness = _slope_cell(line)
    return f"n = {solved[-1]['n']:,}: {cell_of(solved[-1])}" + (f" ({steepness})" if steepness else "")


def thread_table(record: Record) -> Iterator[str]:
    """Wall seconds on one core and on several."""
    rows = [row for row in record.get("threads", []) if "error" not in row]
    if not rows:
        return
    head = ["wall s", "T, d", "n", "one thread", f"{rows[0]['threads']} threads", "gain"]
    yield f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|"
    for row in rows:
        one_thread, all_threads = row["one"]["wall"], row["many"]["wall"]
        cells = (
            row["program"],
            f"{row['T']}, {row['d']}",
            f"{row['n']:,}",
            f"{one_thread:.2g}",
            f"{all_threads:.2g}",
        )
        yield f"| {' | '.join(cells)} | {one_thread / all_threads:.1f}× |"


# ---------------------------------------------------------------------- chart


COLOURS = {
    "daqp": "#e69f00",
    "Clarabel": "#009e73",
    "SCS": "#cc79a7",
    "Moreau": "#d55e00",
    "liblinear": "#56b4e9",
    OURS: "#0072b2",
}


PER_EXAMPLE = 3e-6
"""CPU seconds per example on the dotted line of slope one."""


def chart(record: Record, file: Path) -> None:
    """Time against n, log-log: above every program of ours by width, below ours beside the peers."""
    from matplotlib.figure import Figure

    lines = _lines(record["rows"])
    figure = Figure(figsize=(10.2, 6.0), layout="constrained")
    by_width = {
        d: [x for x in lines if x[0]["who"] == OURS and not x[0]["prompt"] and x[0]["d"] == d]
        for d in (6, 12, 32)
    }
    measured = [d for d in by_width if by_width[d]]
    upper, lower = figure.subfigures(2, 1)
    axes = [upper.subplots(1, max(len(measured), 1), sharey=True, squeeze=False)[0]]
    axes.append(lower.subplots(1, 3, sharey=True))
    for ax, d in zip(axes[0], measured, strict=False):
        _draw_norms(ax, by_width[d])
        ax.set_title(f"attsvm, matrices, d = e = {d}", fontsize=9)
    compared = {
        "Frobenius, d = e = 12": ("Frobenius", 10, 12),
        "prompt, d = 16": ("prompt l2", 8, 16),
        "soft prompt, T = 2, d = 16: linear SVM": ("soft prompt", SVM.T, SVM.d),
    }
    for ax, (title, program) in zip(axes[1], compared.items(), strict=True):
        _draw_solvers(ax, [line for line in lines if _program(line[0]) == program])
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("examples n")
    for ax in (*axes[0], *axes[1]):
        _frame(ax) if ax.lines else ax.set_visible(False)
    for axes_row, row in zip((upper, lower), axes, strict=True):
        row[0].set_ylabel("CPU seconds, one core")
        labelled = {
            name: line for ax in row for line, name in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        if labelled:
            axes_row.legend(
                labelled.values(), labelled, loc="outside right center", fontsize=8, frameon=False
            )
    figure.savefig(file, metadata={"Date": None})


def _points(line: list[Record]) -> tuple[list[int], list[float]]:
    solved = [row for row in line if "seconds" in row]
    return [row["n"] for row in solved], [row["seconds"] for row in solved]


def _draw_norms(ax: Any, lines: list[list[Record]]) -> None:
    from matplotlib import colormaps

    for k, line in enumerate(lines):
        style = {"soft margin": "--", "contradiction": ":"}.get(line[0]["program"], "-")
        colour = "#333333" if style != "-" else colormaps["tab10"](k % 10)
        ax.plot(*_points(line), style, marker=".", ms=4, lw=1.2, color=colour, label=line[0]["program"])
        _mark_uncertified(ax, line)


def _draw_solvers(ax: Any, lines: list[list[Record]]) -> None:
    for line in lines:
        solver = line[0]["who"]
        width = 2.2 if solver == OURS else 1.3
        ax.plot(*_points(line), marker=".", ms=5, lw=width, color=COLOURS[solver], label=solver)
        _mark_uncertified(ax, line)


def _mark_uncertified(ax: Any, line: list[Record]) -> None:
    doubtful = [row for row in line if not row.get("certified", True)]
    ax.plot(*_points(doubtful), "x", ms=6, color="black", zorder=5)


def _frame(ax: Any) -> None:
    ax.set(xscale="log", yscale="log")
    ax.grid(True, which="major", lw=0.4, color="#dddddd")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    limits = ax.get_xlim(), ax.get_ylim()
    ends = (1e2, 1e7)
    ax.plot(ends, [PER_EXAMPLE * n for n in ends], color="#888888", lw=0.8, ls=(0, (1, 2)), zorder=0)
    ax.annotate(
        "∝ n", (2e4, PER_EXAMPLE * 2e4), (3, -9), textcoords="offset points", fontsize=8, color="#666666"
    )
    ax.set(xlim=limits[0], ylim=limits[1])
