"""Road one: the convex programs, solved with a certificate (NumPy, SciPy, numba).

max_margin.py has the verbs, and solve.py leads from a program to its answer; its route table names the
algorithms of each norm. solution.py and certificate.py are what a user gets back, conflict.py explains why
there is no W. selections.py and finite_part.py ask the papers' questions with these verbs.

constraints.py makes a program of tokens and a selection, and units.py scales it. rows.py has some of its
rows at length one: every engine solves these. working_set.py is the one loop over pools of rows, bounds.py
the gap, answer.py the runs axis, interior_engine.py the engine of interior points on growing pools, polish.py
the last digits of W.

derivative/ has the derivatives of solutions; sensitivity.py shows them to a user, with the nearest changes of
the support.

One folder of engines per family of norms: frobenius/, entrywise/, schatten/, and
extended_precision/ for what float64 cannot finish. A new family is a folder and a line of the route table.
"""
