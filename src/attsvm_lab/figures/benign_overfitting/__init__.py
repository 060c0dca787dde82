"""Figures of: benign overfitting in attention, two papers."""
