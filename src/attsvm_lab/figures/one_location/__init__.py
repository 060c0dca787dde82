"""Figures of: Attention Layers Provably Solve Single-location Regression."""
