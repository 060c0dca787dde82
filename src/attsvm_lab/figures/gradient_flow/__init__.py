"""Figures of: Implicit Regularization of Gradient Flow on One-Layer Softmax Attention."""
