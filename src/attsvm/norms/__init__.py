"""Norms of a weight, and what the code may ask of them.

norms.py has every norm and its name, capabilities.py what a norm is and what it says of itself, names.py
reads the names. factored.py has the norms that products of factors imply, layouts.py how heads lie in the
matrices of an optimizer. No other package asks for the class of a norm: it reads `capabilities_of(norm)`.
A new norm is a class in norms.py and, where it has programs, a line of the route table in program/solve.py.
"""

from attsvm.norms.capabilities import Capabilities, Norm, capabilities_of
from attsvm.norms.norms import (
    Entrywise,
    LongestRow,
    RowWise,
    Schatten,
    frobenius,
    l1,
    linf,
    nuclear,
    spectral,
)

__all__ = [
    "Capabilities",
    "Entrywise",
    "LongestRow",
    "Norm",
    "RowWise",
    "Schatten",
    "capabilities_of",
    "frobenius",
    "l1",
    "linf",
    "nuclear",
    "spectral",
]
