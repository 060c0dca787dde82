"""Figures that nobody has shown before."""
