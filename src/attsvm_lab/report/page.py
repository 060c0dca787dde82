"""report.html: one self-contained page from a plain template; every text is escaped, every figure inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from itertools import groupby
from pathlib import Path as File

from attsvm import __version__
from attsvm._support import strict_json
from attsvm._support.pages import asset, code, escaped, page as in_one_file, prose, shared_style
from attsvm.explorer.page import page as explorer_page
from attsvm.numbers.atomic_write import write_text
from attsvm_lab.claims import claims as known_claims
from attsvm_lab.claims.run import Row
from attsvm_lab.figures import KINDS, Check, Paper, Provenance, Status
from attsvm_lab.figures.figure import AGREES, POWERLESS, PUBLISHED, RECIPE, SHORT, UNEXPLAINED
from attsvm_lab.report.drawings import Drawings
from attsvm_lab.report.html import line, table
from attsvm_lab.report.summary import Report, broken
from attsvm_lab.reproduce import Result

ROOM = "attsvm_lab.report"
TITLE = "Attention as max-margin token selection, reproduced"
MARKS: dict[Status, tuple[str, str]] = {
    AGREES: ("good", "A"),
    POWERLESS: ("weak", "B"),
    RECIPE: ("reason", "R"),
    SHORT: ("open", "N"),
    UNEXPLAINED: ("bad", "D"),
}
"""The class and the letter of each status, in the order of the columns of the counts."""
MEANINGS: dict[Status, str] = {
    AGREES: "agrees",
    POWERLESS: "agrees, but a comparison so coarse could not have failed",
    RECIPE: "differs, because the paper computed otherwise: its recipe, repeated here, gives its number",
    SHORT: "not comparable yet: the comparison still lacks runs or epochs",
    UNEXPLAINED: "differs, not explained",
}
HEADS = ("Quantity", "Reference", "Ours", "Status")
CLASSES: dict[Provenance, str] = {
    "printed": "printed",
    "read off a plot": "plot",
    "stated": "stated",
    "derived": "derived",
    "conjectured": "conjectured",
    "independent run": "run",
}
"""The class of each kind of references in the style sheet."""


def page(report: Report, out: File) -> str:
    """The whole page; `out` is the folder with the figures' .svg files."""
    drawings = Drawings()
    papers = "\n".join(_paper(paper, group, out, drawings) for paper, group in report.papers)
    return in_one_file(
        ROOM,
        "page.html",
        title=escaped(TITLE),
        style="\n".join((shared_style(), asset(ROOM, "page.css"), drawings.style)),
        script=asset(ROOM, "page.js"),
        shapes=drawings.shared,
        repeated=prose(report.repeated),
        sentence=prose(report.sentence),
        others=prose(report.power),
        statuses=_statuses(),
        letters=_letters(),
        kinds=_kinds(),
        choices=_choices(report),
        counts=_counts(report),
        contents=_contents(report),
        rows=_rows(report),
        summary=_summary(report),
        papers=papers,
        claims=_claims(report.claims),
        scale=escaped(report.scale),
        versions=escaped(
            f"attsvm {__version__}, NumPy {version('numpy')}, JAX {version('jax')}, "
            f"matplotlib {version('matplotlib')}"
        ),
    )


def write_report(report: Report, out: File) -> File:
    """Write report.html, report.json and the explorer beside the figures; returns the page's file."""
    text = strict_json.dumps(report.record(), indent=1, ensure_ascii=False)
    write_text(out / "report.json", text + "\n", "backslashreplace")
    write_text(out / "explorer.html", explorer_page())
    write_text(out / "report.html", page(report, out))
    return out / "report.html"


# ---------------------------------------------------------------------- top of the page


def _counts(report: Report) -> str:
    """How many numbers of each kind of reference have each status: rows and columns add up."""
    heads = ("Reference", *(letter for _, letter in MARKS.values()), "all")
    by_kind = report.by_kind
    rows = [_count_row(kind, by_kind[kind]) for kind in PUBLISHED if kind in by_kind]
    rows += [_count_row("published", report.items, "sum")] if len(rows) > 1 else []
    rows += [_count_row(kind, counts) for kind, counts in by_kind.items() if kind not in PUBLISHED]
    rows += [_count_row("all", sum(by_kind.values(), Counter[Status]()), "sum")]
    return table(heads, rows, "How many numbers agree", "counts")


def _count_row(label: str, counts: Counter[Status], kind: str = "") -> str:
    cells = [f"<td>{escaped(label)}</td>"]
    cells += [f"<td>{counts[s]:,}</td>" if counts[s] else '<td class="none">0</td>' for s in MARKS]
    return f'<tr class="{kind}">{"".join(cells)}<td>{counts.total():,}</td></tr>'


def _letters() -> str:
    """The meaning of each status."""
    items = (f"<li>{_badge(status)} {escaped(MEANINGS[status])}</li>" for status in MARKS)
    return f'<ul class="meanings">{"".join(items)}</ul>'


def _kinds() -> str:
    """The definition of each kind of reference."""
    terms = (f"<dt>{_chip(kind)}</dt><dd>{prose(meaning)}</dd>" for kind, meaning in KINDS.items())
    return f"<dl>{''.join(terms)}</dl>"


def _choices(report: Report) -> str:
    return "".join(f'<option value="{CLASSES[kind]}">{escaped(kind)}</option>' for kind in report.by_kind)


def _statuses() -> str:
    return "".join(
        f'<option value="{mark}">{letter}: {escaped(status)}</option>'
        for status, (mark, letter) in MARKS.items()
    )


def _chip(kind: Provenance) -> str:
    return f'<span class="chip {CLASSES[kind]}">{escaped(kind)}</span>'


def _rows(report: Report) -> str:
    """The heading of the folded table: it has more rows than there are numbers."""
    numbers = sum(counts.total() for counts in report.by_kind.values())
    return (
        f"{len(report.checks):,} rows for {numbers:,} numbers: a number has several rows where the paper's "
        "recipe is repeated beside ours"
    )


def _contents(report: Report) -> str:
    entries = []
    for paper, group in report.papers:
        inner = "".join(f'<li><a href="#{r.name}">{prose(r.figure.title)}</a></li>' for r in group)
        entries.append(f'<li><a href="#{paper.name}">{prose(paper.title)}</a><ul>{inner}</ul></li>')
    entries.append('<li><a href="#claims">The papers’ statements</a></li>')
    entries.append('<li><a href="#summary">All numbers</a></li>')
    return f"<ul>{''.join(entries)}</ul>"


def _summary(report: Report) -> str:
    rows = (
        _check_row(check, f'<a href="#{result.name}">{prose(check.what)}</a>')
        for result, check in report.checks
    )
    return table(HEADS, rows, "All numbers beside their references", "sortable tall checks")


# ---------------------------------------------------------------------- one paper, one figure


def _paper(paper: Paper, group: Iterable[Result], out: File, drawings: Drawings) -> str:
    inner = "\n".join(_figure(result, out, drawings) for result in group)
    return (
        f'<section id="{paper.name}"><h2>{prose(paper.title)}</h2>'
        f'<p class="reference">{prose(paper.reference)}</p>\n{inner}</section>'
    )


def _figure(result: Result, out: File, drawings: Drawings) -> str:
    figure = result.figure
    elements = [
        f'<article id="{result.name}" class="figure"><h3>{prose(figure.title)}</h3>',
        f"<p>{prose(figure.shows)}</p>",
        f'<p class="note"><b>Recorded.</b> {prose(figure.recorded)}</p>' if figure.recorded else "",
        f'<p class="note bad" role="alert">Not computed. {escaped(result.error)}</p>' if result.error else "",
        _picture(result, out, drawings),
        _checks(result),
        f'<p class="note"><b>Where we differ.</b> {prose(figure.notes)}</p>' if figure.notes else "",
        _recipe(result, out),
        "</article>",
    ]
    return "\n".join(filter(None, elements))


def _checks(result: Result) -> str:
    """The numbers that differ, and a table of all numbers, which is closed below a picture."""
    if not result.checks:
        return ""
    differ = [check for check in result.checks if check.agreement != "agrees"]
    title, opened = result.figure.title, "" if result.figure.draw is not None else " open"
    shown = _check_table(differ, f"Numbers of {title} that differ") if differ and not opened else ""
    complete = _check_table(result.checks, f"Checks of {title}")
    heading = escaped(f"{result.outcome}: {result.kinds}")
    return f"{shown}<details{opened}><summary>{heading}</summary>{complete}</details>"


def _check_table(checks: Iterable[Check], label: str) -> str:
    """The checks, with each explanation once above the rows that share it."""
    rows = []
    for because, group in groupby(checks, key=lambda check: check.because):
        if because:
            cell = f'<td colspan="{len(HEADS)}"><span>{prose(because)}</span></td>'
            rows.append(f'<tr class="because">{cell}</tr>')
        rows += [_check_row(check, prose(check.what)) for check in group]
    return table(HEADS, rows, label, "checks")


def _picture(result: Result, out: File, drawings: Drawings) -> str:
    file = out / f"{result.name}.svg"
    if result.error or result.figure.draw is None or not file.exists():
        return ""
    return drawings.figure(file, f"{result.figure.title}. {result.figure.shows}")


def _recipe(result: Result, out: File) -> str:
    """The command, the sizes, the time and the files of a figure."""
    command = f"attsvm reproduce --only {result.name} --scale {result.scale}"
    sizes = ", ".join(f"{name} = {_value(value)}" for name, value in result.sizes.items())
    files = [f"{result.name}.{ending}" for ending in ("svg", "npz") if not result.error]
    links = [f'<a href="{name}">{name}</a>' for name in files if (out / name).exists()]
    facts = [
        f"<code>{escaped(command)}</code>",
        f"{escaped(sizes)}" if sizes else "one size at every scale",
        f"{result.seconds:g} s of processor time",
        *links,
    ]
    return f'<p class="how">{"<span> · </span>".join(facts)}</p>'


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_value, value)) + ")"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------- claims


def _claims(rows: tuple[Row, ...]) -> str:
    refuted = sum(claim.refuted for claim in known_claims.values())
    text = (
        f"<p>{len(known_claims)} statements of the papers are experiments here, each beside a twin with one "
        f"hypothesis removed, which must not hold. {refuted} of them are refuted as recalled, with their "
        "counterexamples in <code>docs/claims.md</code>."
    )
    if not rows:
        return (
            f"{text} They were not run for this page: <code>attsvm reproduce --claims</code> adds them.</p>"
        )
    lines = (_claim_row(row) for row in rows)
    fresh = sum(row.fresh for row in rows)
    runs = sum(len(row.seeds) for row in rows)
    text += (
        f" Each was run on {len(rows[0].seeds)} seed{'s' if len(rows[0].seeds) > 1 else ''}. Of the {runs} "
        f"runs, {fresh or 'none'} used a seed that had no part in choosing the settings; the page "
        "<code>docs/claims.md</code> has 20 such seeds."
    )
    heads = ("Statement", "Holds", "Twin fails", "Status")
    return f"{text}</p>{table(heads, lines, 'Statements of the papers', 'sortable tall checks')}"


def _claim_row(row: Row) -> str:
    claim = known_claims[row.name]
    holds, seeds = row.held, len(row.verdicts)
    if claim.refuted:
        verdict = _letter("reason", "R", "refuted as recalled")
    elif broken(row):
        verdict = _letter("bad", "✗", "fails")
    else:
        every = holds == seeds
        verdict = _letter("good", "✓", "holds") if every else _letter("reason", "≈", "not on all seeds")
    source = f"{prose(claim.reference)} [{escaped(claim.mark)}]"
    cells = (
        f"{prose(claim.statement)}<small>{source} · {code(row.name)}</small>",
        f"{holds} of {seeds}<small>{row.fresh} held out</small>",
        f"{row.detected} of {len(row.twins)}",
        verdict,
    )
    return line(cells)


# ---------------------------------------------------------------------- tables


def _check_row(check: Check, label: str) -> str:
    spread = f'<small title="{escaped(check.accuracy.words)}">± {_number(check.tolerance, 3)}</small>'
    why = f"<small>{escaped(check.reason)}</small>" if check.reason else ""
    cells = (
        f"{label}<small>{_chip(check.provenance)} · {prose(check.source)}</small>{why}",
        _number(check.reference) + spread,
        _number(check.ours),
        _badge(check.agreement),
    )
    return line(cells)


def _number(value: float, digits: int = 5) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


def _badge(status: Status) -> str:
    return _letter(*MARKS[status], status)


def _letter(kind: str, letter: str, meaning: str) -> str:
    """A status as a letter in its colour: the words are its title, and are read aloud in its place."""
    return (
        f'<span class="badge {kind}" title="{escaped(meaning)}"><span aria-hidden="true">{letter}</span>'
        f'<span class="unseen">{escaped(meaning)}</span></span>'
    )
