"""Random models and instances of four papers: functions that return Tokens and a head.

random.py: the random models of the core papers; contextual.py: the first paper's data with a context;
paper_instances.py: small instances of three papers, and published.py the authors' draws. A model of no paper
is a function in random.py; data of further papers are in attsvm_lab.datasets.
"""

from typing import NoReturn

from attsvm._support.lazy import no_attribute
from attsvm.datasets import published as published
from attsvm.datasets.contextual import contextual
from attsvm.datasets.paper_instances import (
    joint_mirror,
    joint_training,
    several_inputs,
    single_input,
    two_clouds,
    two_fans,
    two_scores,
)
from attsvm.datasets.random import orthogonal, prompt_sphere, sphere

__all__ = [
    "contextual",
    "joint_mirror",
    "joint_training",
    "orthogonal",
    "prompt_sphere",
    "several_inputs",
    "single_input",
    "sphere",
    "two_clouds",
    "two_fans",
    "two_scores",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __all__)
