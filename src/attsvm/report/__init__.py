"""Figures and claims as one page that can be sent to a colleague, and as JSON."""

from attsvm.report.gallery import write_gallery
from attsvm.report.page import page, write_report
from attsvm.report.summary import Report, run_claims, stored_claims

__all__ = ["Report", "page", "run_claims", "stored_claims", "write_gallery", "write_report"]
