"""Road one: the convex programs, solved with a certificate (NumPy, SciPy, numba)."""
