"""Random models and paper instances: functions that return Tokens and a head.

random.py: the random models of the core papers; paper_instances.py: small instances of three papers, and
published.py the authors' draws. The other files have the data of one paper each; a new paper gets a file,
a model of no paper a function in random.py.
"""

from typing import NoReturn

from attsvm._support.lazy import no_attribute
from attsvm.datasets import published as published
from attsvm.datasets.benign_overfitting import flipped_examples, signal_and_noise, signal_beside_noise
from attsvm.datasets.contextual import contextual
from attsvm.datasets.even_pairs import even_pairs, parity
from attsvm.datasets.match_and_copy import match_and_copy
from attsvm.datasets.one_location import LocationRisk, Overlaps, one_location
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
from attsvm.datasets.sinks import trigger_means
from attsvm.datasets.sparse_signals import capacity, planted, separable_share, sparse_signals

__all__ = [
    "LocationRisk",
    "Overlaps",
    "capacity",
    "contextual",
    "even_pairs",
    "flipped_examples",
    "joint_mirror",
    "joint_training",
    "match_and_copy",
    "one_location",
    "orthogonal",
    "parity",
    "planted",
    "prompt_sphere",
    "separable_share",
    "several_inputs",
    "signal_and_noise",
    "signal_beside_noise",
    "single_input",
    "sparse_signals",
    "sphere",
    "trigger_means",
    "two_clouds",
    "two_fans",
    "two_scores",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __all__)
