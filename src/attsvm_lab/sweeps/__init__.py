"""Studies: a file that names a grid of trainings becomes a table, on any executor, never computed twice.

study.py checks a study and expands it into cells (cell.py) and their batches of runs (batch.py); sweep.py
computes the missing ones, measure.py has the measures, by name, and plugins.py a user's own. store.py keeps
finished batches. result.py is the finished study: its table (table.py, intervals.py), drawings (drawing.py)
and page (page.py). atlas.py is the study of which margin each training maximises.
"""
