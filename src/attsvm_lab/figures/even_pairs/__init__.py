"""Figures of: How Transformers Learn Regular Language Recognition."""
