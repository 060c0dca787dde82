"""Frobenius (and l2) programs: vectors, small, crowded and large problems each have their algorithm."""
