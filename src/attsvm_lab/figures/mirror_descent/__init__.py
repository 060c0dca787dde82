"""Figures of: Optimizing Attention with Mirror Descent."""
