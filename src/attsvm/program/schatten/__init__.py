"""Programs of the singular values, and of the max-norm: route.py chooses the engine and its first rows.

curved.py is the interior point of Schatten(p), 1 < p < ∞. Nuclear norm, spectral norm and max-norm are
semidefinite: staged.py follows the central path of interior_point.py in stages, between which rows leave
and join; nuclear.py (with the max-norm) and spectral.py have the Newton systems, compiled_path.py the small
programs.
"""
