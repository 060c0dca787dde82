"""The explorer: one page on which the user drags tokens and sees the program and training.

page.py assembles the page and has explore(), presets.py the instances of the papers, state.py turns tokens
and paths into the state with which the page opens. `web/` is the page: an engine that draws nothing (norms,
plane, space, singular, program, selections, training, factors, waiting), the state (state, simulation,
model), drawing (disc_view, tokens_view, charts, canvas, …), controls and lists, texts (words, tour), and
files.
"""

from attsvm.explorer.page import Explorer, explore, page
from attsvm.explorer.presets import presets
from attsvm.explorer.state import state_of, state_of_path

__all__ = ["Explorer", "explore", "page", "presets", "state_of", "state_of_path"]
