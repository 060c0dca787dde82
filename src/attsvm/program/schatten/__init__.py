"""Programs of the singular values: route.py chooses the engine and its first rows.

curved.py is the interior point of Schatten(p), 1 < p < ∞. Nuclear and spectral norm are
semidefinite: staged.py follows the central path of interior_point.py in stages, between which rows leave
and join; nuclear.py and spectral.py have the Newton systems, compiled_path.py the small
programs.
"""
