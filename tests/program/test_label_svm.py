"""The head that separates the labels of selected tokens: the v-SVM of the papers."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.program.max_margin import label_support, label_svm


def test_label_support_is_all_when_tight_and_drops_the_loose_example():
    tight, _ = datasets.joint_training((0.5, 1.0))
    loose, _ = datasets.joint_training((0.5, 1.5))
    np.testing.assert_allclose(label_svm(tight, [1, 1, 1]).W[:, 0], [0, 1], atol=1e-12)
    assert label_support(label_svm(tight, [1, 1, 1])).tolist() == [True, True, True]
    assert label_support(label_svm(loose, [1, 1, 1])).tolist() == [True, True, False]


def test_the_label_margin_of_several_tokens_in_an_example_is_refused():
    tokens, _ = datasets.joint_training((0.5, 1.0))
    for selected in ([[False, True], [True, True], [False, True]], np.ones((3, 2), bool)):
        with pytest.raises(ValueError, match=r"picks 2 tokens in example \d"):
            label_svm(tokens, selected)
    with pytest.raises(ValueError, match="2 runs"):
        label_svm(tokens.repeated(2), [1, 1, 1])
