"""The planted bugs that the contract of gradient oracles refutes.

These are all that lower noise, raise sensitivity or claim too little. Bugs that it cannot see, by their nature, are
listed with the reason; tests of their own see them.
"""

CONTRACT = "tests/testing/test_oracle_contract.py::test_every_oracle_keeps_its_claim"

REFUTED = {  # bug -> the oracle that shows it
    # noise
    "noise_of_the_mean_on_the_sum": "poisson",
    "noise_five_percent_too_small": "full-batch",
    "small_tensors_released_without_noise": "full-batch",
    "noise_in_half_precision": "poisson",
    "same_noise_in_every_query": "full-batch",
    "same_noise_in_every_block": "per-layer",
    "same_noise_in_every_parameter": "program",
    "noise_from_the_coins": "per-layer",
    "empty_batch_skipped": "poisson",
    # sensitivity
    "mean_clipped_instead_of_samples": "poisson",
    "threshold_changes_within_a_batch": "chunks",
    "nan_keeps_its_weight": "full-batch",
    "zero_times_nan": "full-batch",
    "zero_times_nan_in_the_ghost_engine": "program",
    "layers_clipped_at_the_whole_threshold": "per-layer",
    "contribution_understated": "full-batch",
    "divisor_from_the_data": "poisson",
    "divided_by_the_realised_size": "poisson",
    # claims
    "shuffled_epochs_as_poisson": "shuffled-epochs",
    "disjoint_batches_as_poisson": "one-pass",
    "fixed_size_as_poisson": "fixed-size",
    "replace_one_at_the_price_of_add_or_remove": "full-batch",
    "replace_one_by_the_other_pair": "poisson",
    "fixed_size_without_the_factor_two": "fixed-size",
    "blocks_charged_as_the_largest": "per-layer",
    "early_stop_reported_as_the_epsilon": "full-batch",
    "query_not_recorded": "full-batch",
    # what leaves
    "gradient_added_to_the_last": "loop",
}
HONEST = "the ledger states the noise that is added: less is promised, and less is claimed"
APART = "samplers are audited apart, by the exact law of what they draw"
INSIDE = "inside an engine, where a linear problem does not reach"
COMPARED = "the line compares noise with the event: it shows where less noise is asked for (tests/mechanisms)"
BEYOND = {
    "noise_not_compared_with_the_event": COMPARED,
    "only_the_first_block_is_compared": COMPARED,
    "sensitivity_forgotten": HONEST,
    "layers_noised_as_the_largest": HONEST,
    "noise_for_each_physical_batch": "more noise than stated is no breach of privacy",
    "drawn_more_often_than_stated": APART,
    "same_batch_in_every_query": APART,
    "own_coins_are_a_permutation": APART,
    "rate_from_the_number_of_batches": HONEST,
    "same_noise_in_every_session": "every run of an audit has a key of its own",
    "same_noise_after_a_resume": "an audit's runs are not resumed",
    "key_not_ratcheted": "an audit's runs are not resumed",
    "fresh_noise_under_the_same_number": "an audit's runs are not resumed",
    "tied_weight_counted_twice": "both gradients are clipped together: no more noise is needed for them",
    "data_parallel_accepted": INSIDE,
    "ghost_norms_without_their_margin": INSIDE,
    "gram_norms_cancel": INSIDE,
    "rounding_taken_for_exact": INSIDE,
    "norms_in_single_precision": INSIDE,
    "sums_in_half_precision": INSIDE,
    "uses_added_up_as_if_orthogonal": INSIDE,
    "uses_outside_of_rules_dropped": INSIDE,
    "stale_norms": INSIDE,
    "weight_rounded_to_nearest": "a breach of one part in ten million, far below what runs can show",
    "no_room_for_the_product": "a breach of one part in ten million, far below what runs can show",
    "unit_event_is_the_rows": "the contract's canary has one row; the ready audit of units has three",
    "one_direction_of_a_pair": "the other direction is the larger one at these settings by less than runs can show",
    "epochs_are_amplified": "epochs by own coins cost less than Poisson sampling at these settings",
    "estimate_reported_as_a_bound": "by less than runs can show",
    "line_after_the_release": "what is written first cannot be seen from outside",
    "sessions_of_another_part_accepted": "an audit's oracle registers its own session",
    "noise_for_the_largest_block": HONEST,
    "thresholds_may_change": "no audit changes a clipper after the build",
}

# In make test one bug of each oracle and of each check; make audit plants them all, as tests/planted does.
FEW = ["noise_five_percent_too_small", "noise_from_the_coins", "mean_clipped_instead_of_samples", "query_not_recorded"]
FEW += ["zero_times_nan_in_the_ghost_engine", "threshold_changes_within_a_batch", "shuffled_epochs_as_poisson"]
FEW += ["replace_one_at_the_price_of_add_or_remove", "fixed_size_as_poisson", "gradient_added_to_the_last"]
