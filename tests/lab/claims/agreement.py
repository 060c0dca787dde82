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
    "a_prompt_is_as_often_right_on_an_input_where_width_over_the_others_is_equal",
    "a_quadratic_head_trains_to_a_direction_and_a_finite_part",
    "a_relu_head_trains_to_a_direction_and_a_finite_part",
    "a_relu_head_with_positive_weights_selects_for_one_label_and_mixes_for_the_other",
    "a_sink_is_a_max_margin_selection",
    "a_smooth_network_grows_along_the_generalised_program",
    "all_tokens_become_support_vectors_as_d_grows",
    "beside_key_and_query_signs_on_a_bias_measure_a_length",
    "both_stages_tend_to_their_programs",
    "causal_attention_is_the_flattened_problem",
    "clipped_factors_end_on_the_path_of_half_the_exponent",
    "clipped_steps_end_on_the_path_of_their_own_norm",
    "columns_of_zero_stay_zero",
    "compositional_muon_reaches_the_spectral_margin",
    "decay_ends_on_the_regularisation_path",
    "decay_lowers_the_rank_under_gradient_descent_and_raises_it_under_muon",
    "decay_makes_the_wait_logarithmic",
    "descent_on_factors_is_quickest_from_a_start_of_middle_size",
    "descent_on_factors_waits_for_the_logarithm_of_its_start",
    "descent_puts_one_of_the_tokens_that_are_alike_above_the_others",
    "factors_as_wide_as_the_inputs_are_many_suffice",
    "factors_as_wide_as_the_rank_reach_the_nuclear_direction",
    "factors_end_at_balanced_kkt_points",
    "factors_narrower_than_the_program_end_at_stops",
    "factors_reach_the_nuclear_margin",
    "gd_and_sign_on_diagonals_maximise_the_l1_and_the_max_margin",
    "gradient_descent_leaves_a_stop_with_the_predicted_power",
    "head_and_prompt_find_their_max_margins_at_any_ratio",
    "inputs_with_label_margin_to_spare_drop_out_at_a_finite_ratio",
    "joint_descent_from_zero_follows_the_program_of_its_own_ratio",
    "key_and_query_prefer_the_nuclear_margin",
    "kkt_points_of_full_rank_are_the_limit",
    "layers_trained_together_share_one_margin",
    "local_paths_tend_to_locally_optimal_directions",
    "lp_steps_on_diagonals_maximise_the_margin_of_half_p",
    "mirror_descent_diverges_in_norm_like_log_k",
    "muon_keeps_its_norm_under_a_gate_and_a_sink",
    "muon_on_fused_heads_maximises_their_joint_margin",
    "muon_on_keys_with_queries_maximises_the_numerical_radius_margin",
    "muon_per_head_maximises_the_spectral_margin_of_each",
    "muon_with_signs_on_a_bias_maximises_the_hybrid_margin",
    "normalised_queries_and_keys_diverge_by_their_gain",
    "only_the_best_tokens_reach_the_least_loss",
    "plain_steps_near_a_locally_optimal_direction_tend_to_it",
    "plain_steps_near_a_locally_optimal_prompt_tend_to_it",
    "random_cycles_split_into_direction_and_finite_part",
    "schatten_steps_on_factors_maximise_the_margin_of_half_p",
    "signum_keeps_the_max_norm_margin_in_batches_of_one",
    "small_random_starts_keep_gradient_descent_from_the_limit",
    "steps_above_p_2_leave_a_stop_whatever_the_noise",
    "steps_begin_to_oscillate_at_the_predicted_length",
    "steps_of_a_quasi_norm_never_leave_a_stop",
    "the_first_prompt_sees_contexts_by_the_square_of_their_share",
    "the_first_stage_of_random_tokens_tends_to_its_program",
    "the_first_steps_find_the_prompt_and_the_head",
    "the_gradient_has_the_singular_vectors_of_the_limit",
    "the_joint_path_finds_the_tokens_of_largest_label_margin",
    "the_joint_path_in_lp_finds_the_lp_programs",
    "the_local_regularisation_path_tends_to_a_locally_optimal_direction",
    "the_loss_gap_decays_exponentially",
    "the_loss_on_unseen_sentences_decays_exponentially",
    "the_lp_path_tends_to_the_lp_program",
    "the_norm_diverges_from_every_start",
    "the_path_of_K_and_Q_tends_to_the_nuclear_direction",
    "the_path_of_W_selects_one_token_each_if_mixing_hurts",
    "the_path_of_W_tends_to_the_frobenius_direction",
    "the_path_of_factors_of_width_one_tends_to_the_program_of_rank_one",
    "the_path_of_other_losses_tends_to_graph_svm",
    "the_path_puts_one_of_the_tokens_that_are_alike_above_the_others",
    "the_ridge_path_of_K_and_Q_tends_to_the_nuclear_direction",
    "three_layers_with_a_residual_stream_solve_three_programs",
    "training_on_two_topics_keeps_the_order_of_each",
    "two_norms_of_the_factors_lead_to_their_harmonic_sum",
    "under_a_quadratic_head_key_and_query_prefer_the_nuclear_gen_svm",
    "under_a_relu_head_examples_that_can_be_zero_ask_for_no_margin",
    "weak_tokens_fade_with_exponent_q_over_p",
    "weights_split_into_direction_and_finite_part",
}
"""Claims of three seconds and more; docs/claims.md has them on twenty seeds. ATTSVM_ALL_CLAIMS=1 tests them,
which one job of .github/workflows/tests.yml sets."""


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
