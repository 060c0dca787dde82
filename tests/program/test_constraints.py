"""Required margins and prices: one for all examples, or one for each."""

import numpy as np
import pytest

from attsvm import Tokens
from attsvm.program.constraints import as_required, as_slack

pytestmark = pytest.mark.quick

KEYS = np.arange(24.0).reshape(2, 3, 4)


def test_required_margins_are_finite_and_nonnegative():
    tokens = Tokens(KEYS)
    assert as_required(tokens, 2.0).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="one per example"):
        as_required(tokens, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="≥ 0"):
        as_required(tokens, [1.0, -1.0])


def test_a_price_that_is_infinite_for_all_is_none_and_one_for_some_is_refused():
    tokens = Tokens(KEYS)
    assert as_slack(tokens, np.inf) is None
    assert as_slack(tokens, 0.5).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="infinite for some examples only"):
        as_slack(tokens, [1.0, np.inf])
