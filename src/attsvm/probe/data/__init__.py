"""Token sequences wherever they lie, in whatever form they come, and the arithmetic that happens there."""
