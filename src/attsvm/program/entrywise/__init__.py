"""lp, l1 and l∞ programs: one interior point whose ball is the only part that varies."""
