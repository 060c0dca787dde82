"""Frobenius (and l2) programs: route.py says which engine suits which shape.

active_set.py exchanges one row at a time, dense.py does so for all small vector problems at once; pivoting.py
exchanges many, gram.py does so for all small matrix problems at once. interior_point.py serves crowded matrix
problems, soft_margin.py those with a slack, soft_gram.py many small ones of these at once. packed.py
multiplies by rows of matrices, contradiction.py proves that no weight separates.
"""
