"""What every claim is tested for. The test files share the claims among the workers."""

import os
from contextlib import nullcontext

import pytest

from attsvm_lab.claims import by_module
from tests.conftest import all_optimisations

SEEDS = (0, 1)
"""A claim is tested on the first; a refuted one must fail on one of them. `attsvm claims` runs more."""

LONG_RUNS = {
    "a_prompt_is_as_often_right_on_an_input_where_width_over_the_others_is_equal",
    "a_quadratic_head_trains_to_a_direction_and_a_finite_part",
    "a_relu_head_trains_to_a_direction_and_a_finite_part",
    "a_sink_is_a_max_margin_selection",
    "both_stages_tend_to_their_programs",
    "decay_makes_the_wait_logarithmic",
    "descent_becomes_global_as_d_grows",
    "descent_is_global_if_losing_scores_are_equal",
    "descent_maximises_the_margin_of_the_examples_it_wins",
    "descent_near_a_locally_optimal_direction_tends_to_it",
    "descent_on_factors_is_quickest_from_a_start_of_middle_size",
    "descent_on_one_example_is_global_if_losing_scores_are_equal",
    "factors_as_wide_as_the_rank_reach_the_nuclear_direction",
    "factors_reach_the_nuclear_margin",
    "far_starts_end_where_the_cone_is_wide",
    "gd_and_sign_on_diagonals_maximise_the_l1_and_the_max_margin",
    "gradient_descent_leaves_a_stop_with_the_predicted_power",
    "in_self_attention_descent_on_one_example_is_global_if_losing_scores_are_equal",
    "in_self_attention_plain_steps_tend_to_locally_optimal_directions",
    "in_self_attention_the_norm_diverges_from_every_start",
    "key_and_query_prefer_the_nuclear_margin",
    "normalised_descent_selects_the_best_tokens_from_any_start",
    "plain_steps_near_a_locally_optimal_direction_tend_to_it",
    "plain_steps_near_a_locally_optimal_prompt_tend_to_it",
    "random_cycles_split_into_direction_and_finite_part",
    "steps_above_p_2_leave_a_stop_whatever_the_noise",
    "the_first_stage_of_random_tokens_tends_to_its_program",
    "the_loss_gap_decays_exponentially",
    "the_loss_on_unseen_sentences_decays_exponentially",
    "the_norm_diverges_from_every_start",
    "the_path_of_K_and_Q_tends_to_the_nuclear_direction",
    "the_path_of_W_tends_to_the_frobenius_direction",
    "the_path_of_factors_of_width_one_tends_to_the_program_of_rank_one",
    "the_ridge_path_of_K_and_Q_tends_to_the_nuclear_direction",
    "the_ridge_path_of_W_tends_to_the_frobenius_direction",
    "the_trained_order_extends_the_corpus",
    "training_on_two_topics_keeps_the_order_of_each",
    "under_a_quadratic_head_key_and_query_prefer_the_nuclear_gen_svm",
    "under_a_relu_head_examples_that_can_be_zero_ask_for_no_margin",
    "weights_split_into_direction_and_finite_part",
}
"""Claims that run for longer than XLA takes to optimise them."""

BY_HAND = {
    "decay_makes_the_wait_logarithmic",
    "factors_end_at_balanced_kkt_points",
    "gradient_descent_leaves_a_stop_with_the_predicted_power",
    "head_and_prompt_find_their_max_margins_at_any_ratio",
    "small_random_starts_keep_gradient_descent_from_the_limit",
    "steps_above_p_2_leave_a_stop_whatever_the_noise",
    "the_joint_path_in_lp_finds_the_lp_programs",
    "the_path_of_other_losses_tends_to_graph_svm",
    "the_ridge_path_of_K_and_Q_tends_to_the_nuclear_direction",
}
"""Claims of six seconds and more; docs/claims.md has them on twenty seeds. ATTSVM_ALL_CLAIMS=1 tests them."""


def each_claim(*modules):
    """Run a test for every claim of these files."""
    left_out = () if os.environ.get("ATTSVM_ALL_CLAIMS") else BY_HAND
    claims = [claim for module in modules for claim in by_module()[module]]
    tests = [
        pytest.param(
            claim, marks=pytest.mark.skipif(claim.name in left_out, reason="a long claim, run by hand")
        )
        for claim in claims
    ]
    return pytest.mark.parametrize("claim", tests, ids=lambda claim: claim.name)


def check(claim):
    """A claim holds, a refuted one is seen to fail, and neither holds of the broken twin."""
    with all_optimisations() if claim.name in LONG_RUNS else nullcontext():
        if claim.refuted:
            assert any(claim(seed).status == "fails" for seed in SEEDS), claim.name
        else:
            verdict = claim(SEEDS[0])
            assert verdict.holds, str(verdict)
        twin = claim.twin(SEEDS[0])
        assert twin.status in ("fails", "inconclusive"), str(twin)  # one that does not apply shows nothing
