"""Figures of: Implicit Bias and Fast Convergence Rates for Self-attention."""
