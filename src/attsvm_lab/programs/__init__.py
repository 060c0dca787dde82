"""Programs of research, and what the claims ask of solutions beyond the library.

adam.py             the limit of Adam in mini-batches
assumptions.py      the hypotheses of the theorems
heads_*.py          the norm of several heads, its semidefinite program, the smallest heads, and runs
hybrid*.py          the norm of parts that an optimizer treats differently, and its programs
joint_*.py          the selection whose labels one head separates best, and paths that begin there
margin_ranges.py    between which required margins the support stays
markov.py           an attention layer as a Markov chain, and its collapse
max_norm*.py        the max-norm, its values and its programs
offset.py           the limit of attention beside a trained head
prescribed.py       programs of equalities: the finite part in every norm
rates.py, waiting.py    power laws of curves, and the time at which a run leaves a stop

Norms register themselves in the tables of the library, as docs/extending.md says; entry points `attsvm.norms`
name the modules to import for a word or a file that asks for them.
"""

from typing import TYPE_CHECKING

from attsvm._support.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__)

if TYPE_CHECKING:
    from attsvm.data.selection import equal_losing_scores as equal_losing_scores
    from attsvm_lab.programs.adam import AdamMargin as AdamMargin, adam_margin as adam_margin
    from attsvm_lab.programs.assumptions import (
        all_tokens_support as all_tokens_support,
        in_cone as in_cone,
        in_margin_cone as in_margin_cone,
        leakage_cost as leakage_cost,
    )
    from attsvm_lab.programs.heads_norm import HeadsNorm as HeadsNorm
    from attsvm_lab.programs.heads_of_path import (
        compare_heads as compare_heads,
        ratio_of_heads as ratio_of_heads,
    )
    from attsvm_lab.programs.heads_solution import (
        HeadsSolution as HeadsSolution,
        max_margin_of_heads as max_margin_of_heads,
    )
    from attsvm_lab.programs.hybrid import HybridNorm as HybridNorm, norm_with_bias as norm_with_bias
    from attsvm_lab.programs.joint_paths import joint_path as joint_path
    from attsvm_lab.programs.joint_selection import JointMargin as JointMargin, joint_margin as joint_margin
    from attsvm_lab.programs.margin_ranges import (
        RequiredRange as RequiredRange,
        required_range as required_range,
    )
    from attsvm_lab.programs.markov import (
        ContextChain as ContextChain,
        CoOccurrence as CoOccurrence,
        collapse_exponent as collapse_exponent,
    )
    from attsvm_lab.programs.max_norm import MaxNorm as MaxNorm
    from attsvm_lab.programs.offset import (
        OffsetMargin as OffsetMargin,
        offset_margin as offset_margin,
        offset_program as offset_program,
    )
    from attsvm_lab.programs.prescribed import finite_part_in as finite_part_in
    from attsvm_lab.programs.rates import fit_rate as fit_rate
    from attsvm_lab.programs.waiting import (
        leaving_exponent as leaving_exponent,
        steps_to_leave as steps_to_leave,
    )
