"""Figures of: Attention Sinks Are Provably Necessary in Softmax Transformers."""
