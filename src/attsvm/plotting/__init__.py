"""Drawing results with matplotlib (extra `plot`).

results.py has the pictures of paths, solutions, KKT points, verdicts and probes; layout.py and style.py serve
these pictures and the laboratory's figures.
"""

from attsvm._support.optional_dependencies import missing

try:
    import matplotlib
except ImportError as error:
    raise missing("drawing needs matplotlib", "plot") from error
