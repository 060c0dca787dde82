"""The prompt-and-head model as a scikit-learn classifier on token sequences (extra `sklearn`)."""

try:
    from sklearn.utils.validation import validate_data as _since_1_6  # noqa: F401
except ImportError as missing:
    raise ImportError("AttentionProbe needs scikit-learn ≥ 1.6: pip install 'attsvm[sklearn]'.") from missing

from attsvm.probe.attention_probe import AttentionProbe
from attsvm.probe.per_token import PerToken
from attsvm.probe.sequences import as_sequences
from attsvm.probe.store import TokenStore
from attsvm.probe.suite import AucTable, ProbeSuite

__all__ = ["AttentionProbe", "AucTable", "PerToken", "ProbeSuite", "TokenStore", "as_sequences"]
