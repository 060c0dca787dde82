"""lp, l1 and l∞ programs: one interior point, whose unit ball is the only part that varies.

interior_point.py has its memory, start and pools, newton.py its compiled steps and balls.
"""
