"""Every theorem as a function seed → Verdict, by paper and theme, each with a broken twin.

    from attsvm_lab.claims import claims
    print(claims["aligned_factors_stay_aligned"](0))

claim.py says what a claim is, run.py runs claims over seeds, and table.py writes the page docs/claims.md.
instances.py has what claims of several files share; prompt_instances.py and transformers_setup.py have what
the claims of one paper share. The other files are claims, one file for a paper or a theme.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attsvm_lab.claims.claim import REGISTERED, Claim, claim

MODULES = (
    "prompt_lemmas",
    "max_margin_selection",
    "local_selection",
    "joint_selection",
    "joint_programs",
    "nonlinear_selection",
    "set_selection",
    "transformers_as_svms",
    "transformers_by_path",
    "transformers_by_descent",
    "transformers_global",
    "gen_svm",
    "convex_networks",
    "hierarchy",
    "mirror_descent",
    "joint_mirror",
    "fast_rates",
    "joint_rates",
    "gradient_flow",
    "optimizer_geometry",
    "law_of_halves",
    "waiting",
    "factor_kkt_points",
    "weight_decay",
    "decay_and_rank",
    "mini_batches",
    "beyond_schatten",
    "several_heads",
    "heads_together",
    "values_and_outputs",
    "mixtures",
    "other_products",
    "attention_kinds",
    "clipped_logits",
    "phases",
    "next_token",
    "markov",
    "scan_and_snap",
    "selective_attention",
    "benign_overfitting",
    "even_pairs",
    "match_and_copy",
    "sparse_signals",
    "one_location",
    "contextual",
    "polarisation",
    "topics",
    "sinks",
)
"""The files of claims, in the order of the table; each registers its own by the decorator `claim`."""

__all__ = ["MODULES", "Claim", "by_module", "claim", "claims"]

if TYPE_CHECKING:
    claims: Mapping[str, Claim]


@lru_cache(maxsize=1)
def by_module() -> Mapping[str, tuple[Claim, ...]]:
    """The claims of every file, by the file's name."""
    homes = {name: import_module(f"attsvm_lab.claims.{name}").__name__ for name in MODULES}
    return {
        name: tuple(claim for (module, _), claim in REGISTERED.items() if module == home)
        for name, home in homes.items()
    }


def __getattr__(name: str) -> Any:
    # At first use: the claims import training, and with it JAX.
    if name == "claims":
        return MappingProxyType({claim.name: claim for group in by_module().values() for claim in group})
    raise AttributeError(f"module 'attsvm_lab.claims' has no attribute {name!r}")
