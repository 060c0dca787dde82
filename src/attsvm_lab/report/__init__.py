"""Figures and claims as one page that can be sent to a colleague, and as JSON.

summary.py counts what agrees, page.py writes the page, gallery.py docs/gallery.md; html.py serves pages of
studies, too.
"""

from attsvm_lab.report.gallery import write_gallery
from attsvm_lab.report.page import page, write_report
from attsvm_lab.report.summary import Report, run_claims, stored_claims

__all__ = ["Report", "page", "run_claims", "stored_claims", "write_gallery", "write_report"]
