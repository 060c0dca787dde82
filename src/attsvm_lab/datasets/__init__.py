"""Data of neighbouring papers: functions that return Tokens and a head, or a corpus.

Each file has the data of one paper; a new paper gets a file.
"""

from typing import NoReturn

from attsvm._support.lazy import no_attribute
from attsvm_lab.datasets.benign_overfitting import flipped_examples, signal_and_noise, signal_beside_noise
from attsvm_lab.datasets.even_pairs import even_pairs, parity
from attsvm_lab.datasets.match_and_copy import match_and_copy
from attsvm_lab.datasets.one_location import LocationRisk, Overlaps, one_location
from attsvm_lab.datasets.sinks import trigger_means
from attsvm_lab.datasets.sparse_signals import capacity, planted, separable_share, sparse_signals
from attsvm_lab.datasets.topics import (
    TopicChanges,
    likeliest,
    random_topic,
    topic_changes,
    topic_corpus,
    topic_sentences,
)

__all__ = [
    "LocationRisk",
    "Overlaps",
    "TopicChanges",
    "capacity",
    "even_pairs",
    "flipped_examples",
    "likeliest",
    "match_and_copy",
    "one_location",
    "parity",
    "planted",
    "random_topic",
    "separable_share",
    "signal_and_noise",
    "signal_beside_noise",
    "sparse_signals",
    "topic_changes",
    "topic_corpus",
    "topic_sentences",
    "trigger_means",
]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __all__)
