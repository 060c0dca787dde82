"""An audit on paper: one self-contained HTML page, JSON for machines, CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attsvm import strict_json
from attsvm.heads.audit import Audit, HeadReport, Settings
from attsvm.heads.kinds import KINDS
from attsvm.pages import page

MARGINS = ("own", "best", "ratio", "cosine", "rank")


def write(audit: Audit, out: Path) -> list[Path]:
    """Write heads.html, heads.json and heads.csv into a folder, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    pages = {"heads.html": html(audit), "heads.json": as_json(audit), "heads.csv": as_csv(audit)}
    for name, text in pages.items():
        # Half a surrogate pair, which UTF-8 cannot write, is an escape that JSON reads back.
        (out / name).write_text(text, encoding="utf8", errors="backslashreplace")
    return [out / name for name in pages]


def row(report: HeadReport, settings: Settings) -> dict[str, Any]:
    """The numbers of one head, flat, one name per column; no column for what was not asked for."""
    flat: dict[str, Any] = {"layer": report.layer, "head": report.head, "space": report.space}
    flat |= report.shares | report.scores
    flat |= {
        "mass": report.mass,
        "entropy": report.entropy,
        "soft sparsity": report.soft_sparsity,
        "confident": report.confident,
    }
    if settings.ablation:
        flat["ablation"] = report.ablation
    flat |= {
        "stable rank": report.stable_rank,
        "eigenvalue mean": report.eigenvalue_mean,
        "eigenvalue variance": report.eigenvalue_variance,
    }
    if settings.margins:
        flat |= _margins(report)
    return dict(strict_json.plain(flat))


def _margins(report: HeadReport) -> dict[str, Any]:
    flat: dict[str, Any] = {"queries used": report.used}
    for norm, found in (("Frobenius", report.frobenius), ("nuclear", report.nuclear)):
        for name in MARGINS:
            flat[f"{norm} {name}"] = None if found is None else getattr(found, name)
    conflict, sure = (report.frobenius.conflict, report.certified) if report.frobenius else ("", None)
    return flat | {"attention error": report.error, "certified": sure, "conflict": conflict}


def as_json(audit: Audit) -> str:
    """Everything the audit knows; what is not a number is null."""
    return strict_json.dumps(_record(audit), ensure_ascii=False)


def _record(audit: Audit) -> dict[str, Any]:
    heads = [row(h, audit.settings) | {"examples": [asdict(e) for e in h.examples]} for h in audit.heads]
    read = {"model": audit.model, "texts": audit.texts, "tokens": audit.tokens}
    read |= {"cut": [asdict(cut) for cut in audit.cut], "settings": asdict(audit.settings)}
    return read | {"kinds": list(KINDS), "scores": [*audit.heads[0].scores], "heads": heads}


def as_csv(audit: Audit) -> str:
    """One line per head."""
    rows = [row(h, audit.settings) for h in audit.heads]
    out = io.StringIO()
    table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def html(audit: Audit) -> str:
    """The page of an audit."""
    maps = {"sentences": audit.sentences, "maps": [head.maps for head in audit.heads]}
    return page("attsvm.heads", "page.html", data=_record(audit), maps=maps)
