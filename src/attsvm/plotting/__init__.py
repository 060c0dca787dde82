"""Drawing results with matplotlib (extra `plot`).

results.py has the pictures of paths, solutions, verdicts and probes, panels.py and style.py what they and the
laboratory's figures share, svg.py the files.
"""

from attsvm._support.optional_dependencies import missing

try:
    import matplotlib
except ImportError as error:
    raise missing("drawing needs matplotlib", "plot") from error
