"""An audit as files: a self-contained HTML page, JSON for machines, CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attsvm._support import strict_json
from attsvm._support.pages import page
from attsvm.heads.audit import LIMIT, Audit, AuditSettings, HeadReport
from attsvm.heads.detectors import KINDS
from attsvm.numbers.atomic_write import write_text

MARGINS = ("own", "best", "ratio", "cosine", "rank")


def write(audit: Audit, out: Path) -> list[Path]:
    """Write heads.html, heads.json and heads.csv into a folder, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    pages = {"heads.html": html(audit), "heads.json": as_json(audit), "heads.csv": as_csv(audit)}
    for name, text in pages.items():
        # UTF-8 cannot write half a surrogate pair; it becomes an escape that JSON reads back.
        write_text(out / name, text, "backslashreplace")
    return [out / name for name in pages]


def row(report: HeadReport, settings: AuditSettings) -> dict[str, Any]:
    """The numbers of one head, one name per column; settings that are off have no column."""
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
    for norm, margins in (("Frobenius", report.frobenius), ("nuclear", report.nuclear)):
        for name in MARGINS:
            flat[f"{norm} {name}"] = None if margins is None else getattr(margins, name)
    conflict, certified = (report.frobenius.conflict, report.certified) if report.frobenius else ("", None)
    return flat | {"attention error": report.error, "certified": certified, "conflict": conflict}


def as_json(audit: Audit) -> str:
    """All results of the audit; NaN and infinity are null."""
    return strict_json.dumps(_record(audit), ensure_ascii=False)


def _record(audit: Audit) -> dict[str, Any]:
    heads = [row(h, audit.settings) | {"examples": [asdict(e) for e in h.examples]} for h in audit.heads]
    about: dict[str, Any] = {"model": audit.model, "texts": audit.texts, "tokens": audit.tokens}
    about["limit"] = LIMIT if audit.settings.margins else None
    about |= {"cut": [asdict(cut) for cut in audit.cut], "settings": asdict(audit.settings)}
    return about | {"kinds": list(KINDS), "scores": [*audit.heads[0].scores], "heads": heads}


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
