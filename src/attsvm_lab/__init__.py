"""The laboratory of attsvm: the papers' claims, their figures, studies, and the report about them.

import attsvm_lab as lab

lab.claims.claims["…"](seed=0)      a statement of a paper as an experiment
lab.figures.ALL["two-clouds"]       a published figure, with checks of its numbers
lab.programs.fit_rate(x, error)     programs of research, hypotheses, rates
lab.sweep("study.toml")             a grid of trainings, with intervals
"""

from typing import TYPE_CHECKING

from attsvm._support.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)

if TYPE_CHECKING:
    from attsvm_lab import claims as claims, datasets as datasets, figures as figures, programs as programs
    from attsvm_lab.sweeps.sweep import sweep as sweep
