"""Head and prompt together: the claims hold unless they are refuted, their broken twins do not."""

from tests.lab.claims.agreement import check, each_claim


@each_claim("joint_selection", "joint_programs")
def test_a_claim_holds_unless_it_is_refuted_and_its_twin_does_not(claim):
    check(claim)
