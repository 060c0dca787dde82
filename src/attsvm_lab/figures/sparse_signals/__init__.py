"""Figures of: a signal in few of many tokens."""
