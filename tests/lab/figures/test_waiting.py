"""The figure of waiting: each of its checks fails where its waits are others."""

import numpy as np
import pytest

from attsvm_lab.figures.figure import AGREES
from attsvm_lab.figures.ours.waiting import checks
from tests.lab.figures.arrays import arrays


def statuses(changed):
    return {check.what: check.agreement == AGREES for check in checks(arrays("waiting") | changed)}


@pytest.mark.parametrize("name", [str(name) for name in arrays("waiting")["names"]])
def test_checks_of_a_setting_fail_where_it_waits_otherwise(name):
    """Half as long again as predicted, for a power of 1/ε, and leaving where it should not."""
    found = arrays("waiting")
    starts = found[f"{name}: starts"][:, None]
    wrong = {
        f"{name}: ratio": 1.5 * found[f"{name}: ratio"],
        f"{name}: measured": 1.5 * found[f"{name}: measured"] * starts**-0.1,
        f"{name}: share left": 1 - found[f"{name}: share left"],
    }
    right, after = statuses({}), statuses(wrong)
    own = {what for what in right if what.startswith((f"p = {name}:", f"{name}:"))}
    failed = {what for what in right if right[what] and not after[what]}
    assert failed == {what for what in own if right[what]}


def test_every_setting_has_a_check_or_is_reported_only():
    checked = {what.removeprefix("p = ").partition(":")[0] for what in statuses({})}
    named = {str(name) for name in arrays("waiting")["names"]}
    assert checked <= named and len(named - checked) <= 11
    assert np.isfinite(arrays("waiting")["2, 2: measured"]).any()
