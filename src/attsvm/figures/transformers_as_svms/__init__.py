"""Figures of: Transformers as Support Vector Machines."""

from attsvm.figures.figure import Paper
from attsvm.figures.transformers_as_svms import two_clouds

PAPER = Paper(
    "transformers_as_svms",
    "Transformers as Support Vector Machines",
    "Tarzanagh, Li, Thrampoulidis, Oymak; 2023, arXiv 2308.16898",
    (two_clouds.FIGURE,),
)
