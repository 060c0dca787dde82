"""Figures of: Transformers as Support Vector Machines."""
