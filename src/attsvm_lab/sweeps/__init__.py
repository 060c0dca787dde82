"""Studies: a file that names a grid of trainings becomes a table, on any executor, never computed twice."""
