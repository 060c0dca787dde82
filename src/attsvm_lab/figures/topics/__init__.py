"""Figures of: Dynamics of Spontaneous Topic Changes in Next Token Prediction."""
