"""docs/gallery.md: a page with every figure, its picture and its numbers, written from the results."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path as File
from typing import Any

from attsvm._support import strict_json
from attsvm_lab.figures import Check
from attsvm_lab.report.summary import Report
from attsvm_lab.reproduce import Result

IMAGES = File("images") / "gallery"
NUMBERS = "numbers.json"
"""The file beside the page with all its numbers."""

_TOP = """# Gallery

{repeated} {sentence}

{others}

Each paper's page says what it states and what we could and could not verify; the report that
`attsvm reproduce` writes has every number, and where the one beside it comes from.
This page is written by `attsvm reproduce --scale {scale} --gallery docs`; do not edit it.
"""


def write_gallery(report: Report, out: File, docs: File) -> File:
    """Copy the drawings to docs/images/gallery, write gallery.md and numbers.json; returns the page."""
    images = docs / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    text = [
        _TOP.format(
            repeated=report.repeated,
            sentence=report.sentence,
            others=f"{report.unpublished} {report.power}",
            scale=report.scale,
        )
    ]
    for paper, group in report.papers:
        link = f" · [what we verified](papers/{paper.name}.md)" if paper.name != "ours" else ""
        text.append(f"## {paper.title}\n\n{paper.reference}{link}\n")
        for result in group:
            picture = out / f"{result.name}.svg"
            if result.figure.draw is not None and picture.exists():
                shutil.copyfile(picture, images / picture.name)
            text.append(_entry(result, images))
    file = docs / "gallery.md"
    file.write_text("\n".join(text), encoding="utf8")
    (docs / NUMBERS).write_text(
        strict_json.dumps(_numbers(report), indent=0, ensure_ascii=False) + "\n", encoding="utf8"
    )
    return file


def _numbers(report: Report) -> dict[str, Any]:
    """Every number of the page, by figure, to six digits. Tests compare the docs with these numbers."""
    figures = {
        result.name: {
            name: [*(float(f"{x:.6g}") for x in (check.reference, check.ours)), check.agreement]
            for name, check in named(result.checks).items()
        }
        for _, group in report.papers
        for result in group
    }
    return {"headline": report.sentence, "shuffled": report.shuffled, "figures": figures}


def named(checks: Sequence[Check]) -> dict[str, Check]:
    """Every check of a figure by a unique name: its quantity, and its kind where two share it."""
    counts = Counter(check.what for check in checks)
    names = [c.what if counts[c.what] == 1 else f"{c.what} ({c.provenance})" for c in checks]
    if len(set(names)) < len(names):
        twice = ", ".join(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"rows of one name and kind: {twice}. Give each row a name of its own.")
    return dict(zip(names, checks, strict=True))


def _entry(result: Result, images: File) -> str:
    figure = result.figure
    lines = [f"### {figure.title}\n", f"{figure.shows}\n"]
    if (images / f"{figure.name}.svg").exists():
        lines.append(f"![{figure.title}]({IMAGES.as_posix()}/{figure.name}.svg)\n")
    if figure.recorded:
        lines.append(f"**Recorded.** {figure.recorded}\n")
    if figure.notes:
        lines.append(f"**Where we differ.** {figure.notes}\n")
    lines.append(f"`attsvm reproduce --only {figure.name}` · {result.outcome}: {result.kinds}\n")
    return "\n".join(lines)
