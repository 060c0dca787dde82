"""The explorer: one self-contained page on which tokens are dragged and both roads are seen to meet.

`web/` is the page: an engine without drawing (norms, plane, space, program, selections, training, factors),
the state (state, simulation, model) and what draws and listens (the rest).
"""

from attsvm.explorer.page import page
from attsvm.explorer.presets import presets
from attsvm.explorer.show import Explorer, explore
from attsvm.explorer.state import state_of, state_of_path

__all__ = ["Explorer", "explore", "page", "presets", "state_of", "state_of_path"]
