"""Every theorem as a function seed → Verdict: one file per paper, each claim with a broken twin."""

from attsvm.claims.claim import Claim

__all__ = ["Claim"]
