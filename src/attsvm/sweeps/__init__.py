"""Studies: a file that names a grid of trainings becomes a table, on any executor, never computed twice."""

from attsvm.sweeps.result import Sweep
from attsvm.sweeps.study import Study, read_study
from attsvm.sweeps.sweep import sweep

__all__ = ["Study", "Sweep", "read_study", "sweep"]
