"""The geometry of optimizers, gradient flow, joint mirror descent: claims hold, broken twins do not."""

import pytest

from tests.claims.agreement import check, each_claim

pytestmark = pytest.mark.usefixtures("short_programs")


@each_claim("optimizer_geometry", "gradient_flow", "joint_mirror")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
