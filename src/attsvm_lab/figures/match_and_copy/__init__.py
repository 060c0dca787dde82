"""Figures of: match and copy under squared loss."""
