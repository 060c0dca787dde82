"""Figures of: Training Transformers for Next-token Prediction."""
