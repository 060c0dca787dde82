"""The prompt-and-head model as a scikit-learn classifier on token sequences (extra `sklearn`).

data/         token sequences in every form, and the array library that computes on them
fitting/      from tokens and targets to fitted weights
attention_probe, suite    the estimators, whose methods call what follows
explanation, evaluation, separation    contributions of tokens; ROC, thresholds, resamples; max-margin program
saved         probes in files, and as one Python file
"""

from attsvm._support.optional_dependencies import missing

try:
    from sklearn.utils.validation import validate_data as _since_1_6
except ImportError as error:
    raise missing("AttentionProbe needs scikit-learn ≥ 1.6", "sklearn") from error

from attsvm.probe.attention_probe import AttentionProbe
from attsvm.probe.data.sequences import PerToken, as_sequences, surround
from attsvm.probe.data.store import TokenStore
from attsvm.probe.suite import AucTable, ProbeSuite

__all__ = [
    "AttentionProbe",
    "AucTable",
    "PerToken",
    "ProbeSuite",
    "TokenStore",
    "as_sequences",
    "surround",
]
