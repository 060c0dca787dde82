"""The geometry of optimizers, gradient flow, joint mirror descent: claims hold, broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("optimizer_geometry", "gradient_flow", "joint_mirror")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
