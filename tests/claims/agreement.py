"""What every claim is tested for. The test files share the claims among the workers."""

import pytest

from attsvm.claims import by_module

SEEDS = (0, 1)
"""A claim is tested on the first; a refuted one must fail on one of them. `attsvm claims` runs more."""


def each_claim(*modules):
    """Run a test for every claim of these files."""
    claims = [claim for module in modules for claim in by_module()[module]]
    return pytest.mark.parametrize("claim", claims, ids=lambda claim: claim.name)


def check(claim):
    """A claim holds, a refuted one is seen to fail, and neither holds of the broken twin."""
    if claim.mark == "refuted":
        assert any(claim(seed).status == "fails" for seed in SEEDS), claim.name
    else:
        verdict = claim(SEEDS[0])
        assert verdict.holds, str(verdict)
    twin = claim.twin(SEEDS[0])
    assert not twin.holds, str(twin)
