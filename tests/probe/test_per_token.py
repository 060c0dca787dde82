"""PerToken maps tokens as its transformer maps rows, whatever container the transformer answers in."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the probe needs the extra sklearn")

from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

from attsvm.probe import AttentionProbe, PerToken

X = np.random.default_rng(0).integers(0, 3, (8, 3, 4)).astype(float)
MAPS = {
    "dense": (StandardScaler(), StandardScaler()),
    "one hot": (OneHotEncoder(), OneHotEncoder(sparse_output=False)),
    "bins": (KBinsDiscretizer(2), KBinsDiscretizer(2, encode="onehot-dense")),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", MAPS)
def test_tokens_are_mapped_as_rows_and_come_back_dense(name):
    transformer, dense = MAPS[name]
    mapped = PerToken(transformer).fit(X).transform(X)
    assert {type(sequence) for sequence in mapped} == {np.ndarray}
    np.testing.assert_array_equal(np.concatenate(mapped), dense.fit_transform(X.reshape(-1, 4)))
    probe = make_pipeline(PerToken(transformer), AttentionProbe(head_ridge=0.1, prompt_ridge=0.1))
    assert probe.fit(X, np.arange(8) % 2).predict(X).shape == (8,)
