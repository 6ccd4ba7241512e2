"""Bugs of federations: local training, weights, quantile clipping, clipped records, settings that no hash covers."""

import math

import torch

from tacita.accounting import gaussian_sum_event
from tacita.clipping import FlatClipper
from tacita.federated import (
    ClientProblem,
    FederatedAlgorithm,
    LocalPrivacy,
    LocalTraining,
    LogisticClients,
    QuantileAveraging,
    ReleasedDifference,
    ReleasedShiftSGDM,
    TrustedServer,
    clipped_difference,
    problems,
    simulation,
    splits,
    views,
)
from tacita.federated import quantile_averaging as quantile
from tacita.federated.client_weights import ClientWeights
from tacita.federated.guarded_source import GuardedSource
from tacita.federated.settings import SimulationSettings
from tests.planted.plant import bug, put, swap

LOCAL = "tests/federated/test_local_training.py::"
QUANTILE = "tests/federated/test_quantile_averaging.py::"
RECORD = "tests/federated/test_record_privacy.py::"
RELEASED = "tests/federated/test_released_shift.py::"
VIEWS = "tests/federated/test_views.py::"
SIMULATION = "tests/federated/test_simulation.py::"
SPLITS = "tests/federated/test_splits.py::"


@bug(20, caught_by=[LOCAL + "test_an_estimator_of_records_is_refused"])
def an_update_counts_as_one_record():
    """A client's update, which depends on all its records, is summed and charged as the gradient of one record."""
    put(LocalTraining, "mixes_records", False)


@bug(20, 31, caught_by=[RECORD + "test_no_weight_takes_a_message_out_of_its_ball"])
def a_weight_beyond_one():
    """A client's weight multiplies its clipped message, and may be larger than 1."""

    def of(cls, weights, total_weight, num_clients):
        return cls(weights, total_weight, total_weight / num_clients)

    put(ClientWeights, "of", classmethod(of))


@bug(20, 23, caught_by=[QUANTILE + "test_no_client_leaves_the_ball",
                    QUANTILE + "test_a_session_is_one_query_of_the_joint_bound"])  # fmt: skip
def the_count_of_unclipped_updates_is_free():
    """With quantile clipping only the update is charged, and not the count that is sent beside it."""
    put(QuantileAveraging, "clipper", property(lambda self: FlatClipper(max_grad_norm=1.0)))
    whole = quantile.clipped_message
    swap(
        quantile.clipped_message, lambda x, clipper, shapes: x if quantile.UNCLIPPED in x else whole(x, clipper, shapes)
    )


@bug(20, caught_by=[QUANTILE + "test_a_count_that_is_nearly_all_leaves_the_ball_by_no_rounding"])
def the_count_is_rounded_out_of_the_ball():
    """With quantile clipping the update is clipped, and the message that holds it and the count is not."""
    whole = quantile.clipped_message
    swap(
        quantile.clipped_message, lambda x, clipper, shapes: x if quantile.UNCLIPPED in x else whole(x, clipper, shapes)
    )


@bug(20, caught_by=[QUANTILE + "test_no_message_leaves_the_ball_by_rounding"])
def a_message_in_float32_is_rounded_out_of_its_ball():
    """The weight that clips a message of float32 has room for the roundings of float64 alone."""

    def times(values, weights, axes):
        column = weights.to(values.dtype).reshape(*weights.shape, *[1] * axes)
        return torch.where(column > 0, column * values, 0.0)

    put(clipped_difference, "_times", times)


@bug(20, caught_by=[RECORD + "test_the_sums_are_those_of_clipped_records",
                    RECORD + "test_one_draw_moves_all_messages_by_less_than_its_charge"])  # fmt: skip
def records_of_a_simulated_client_are_not_clipped():
    """A simulated client that is charged by the draws of a record sums gradients as they are."""

    def unclipped(self, params, clients, drawn, sampling):
        weights = self._weights
        self._weights = drawn * (weights > 0) / sampling.divisor
        try:
            return self.gradients(params, clients, None)
        finally:
            self._weights = weights

    put(LogisticClients, "clipped_gradients", unclipped)


@bug(77, caught_by=[RECORD + "test_what_is_not_proved_is_refused"])
def lost_messages_where_draws_are_counted():
    """A simulation that charges by the draws of a record lets states go back after lost messages."""
    put(simulation, "check_record_sampling", lambda problem, sampling, loss_rate, weights: None)


@bug(caught_by=[SIMULATION + "test_a_session_is_bound_to_its_settings"])
def a_session_forgets_settings_of_its_problem():
    """The hash of a simulation's session leaves out minibatch and regulariser, which a resumed run may change."""
    put(ClientProblem, "__repr__", lambda self: f"{type(self).__name__}(num_clients={self.num_clients})")


@bug(20, caught_by=[VIEWS + "test_no_second_guarantee_where_none_is_proved"])
def the_noise_of_lost_messages_is_counted():
    """The guarantee against whoever sees the models counts the noises of messages that may be lost."""
    whole = views.models_epsilon

    def models_epsilon(run, delta):
        before, run.loss_rate = run.loss_rate, 0.0
        try:
            return whole(run, delta)
        finally:
            run.loss_rate = before

    swap(whole, models_epsilon)


@bug(20, caught_by=[VIEWS + "test_the_models_alone_tell_less_than_the_messages"])
def all_clients_add_noise_in_every_round():
    """The guarantee against whoever sees the models counts a noise of each client, where only some are asked."""
    put(LocalPrivacy, "expected_clients", lambda self, num_clients: float(num_clients))


@bug(caught_by=[RELEASED + "test_a_client_moves_its_shift_by_what_it_sent"])
def the_momentum_is_shared_with_the_shift():
    """A client that feeds back what it released shows its momentum, which has seen raw gradients, as public."""
    put(ReleasedDifference, "shareable", lambda self, state: dict(state))


@bug(20, caught_by=[RELEASED + "test_it_is_charged_as_clip21"])
def fed_back_messages_amplified_by_sampling():
    """Messages that feed back what was released are charged as sampled sums, though the momentum remembers records."""

    def event(self, sampler, noise_std, relation, shapes):
        return gaussian_sum_event(sampler.law, (2.0,), tuple(noise_std.values()), relation)

    put(ReleasedDifference, "event", event)


@bug(20, caught_by=[VIEWS + "test_no_second_guarantee_where_none_is_proved"])
def sums_of_noise_that_is_fed_back():
    """The guarantee against whoever sees the models is stated where messages depend on noises that sums do not fix."""
    put(ReleasedShiftSGDM, "feeds_back", False)


@bug(20, caught_by=[LOCAL + "test_a_guard_does_not_hide_that_rows_mix_records"])
def a_guard_hides_local_training():
    """A guarded source does not say that its rows are updates of clients, which then count as single records."""
    whole = GuardedSource.__init__

    def init(self, source, note):
        whole(self, source, note)
        self.mixes_records = False

    put(GuardedSource, "__init__", init)


@bug(20, caught_by=[SIMULATION + "test_the_draws_of_a_client_do_not_depend_on_the_rows_of_another"])
def rows_that_pad_are_drawn():
    """A simulated client's minibatch is drawn among padded rows, whose number the largest client decides."""

    def own_rows(weights, batch_size, generator):
        return torch.randint(weights.shape[1], (len(weights), batch_size), generator=generator)

    swap(problems.own_rows, own_rows)


@bug(20, caught_by=[SPLITS + "test_a_row_that_pads_holds_nothing_of_another_client"])
def padding_with_a_row_of_another_client():
    """The rows that pad a small client are copies of row 0 of the data, whose NaN silences all padded clients."""
    whole = splits.stacked

    def stacked(data, split):
        found, weights = whole(data, split)
        for one, given in zip(found, data, strict=True):
            one[weights == 0] = given[0]
        return found, weights

    swap(splits.stacked, stacked)


@bug(20, caught_by=["tests/federated/test_algorithms.py::test_an_algorithm_inherits_no_bound_of_its_messages"])
def an_algorithm_inherits_the_bound_of_messages():
    """A class derived from Clip-SGD sends messages that are not clipped, and is charged for clipped ones."""
    put(FederatedAlgorithm, "__init_subclass__", classmethod(lambda cls: None))


@bug(6, caught_by=[SIMULATION + "test_a_number_of_clients_that_is_private_is_refused"])
def a_trusted_server_divides_by_a_private_number():
    """A trusted server is accepted under add_or_remove_one, where its divisor, the number of clients, is private."""
    put(TrustedServer, "check_relation", lambda self, relation: None)


@bug(caught_by=[RECORD + "test_a_sum_of_records_that_would_have_no_norm_is_refused"])
def one_record_takes_all_others_away():
    """A client's sum overflows by one record more, and counts as zero: the record takes away what others added."""
    put(clipped_difference, "MOST_OF_A_RECORD", math.inf)


@bug(caught_by=[RECORD + "test_a_regulariser_that_rounds_records_is_refused"])
def a_record_is_rounded_up_beside_the_regulariser():
    """One record's gradient is added to a number so much larger that rounding makes it far more than its charge."""
    put(problems, "MOST_REGULARISATION", math.inf)


@bug(6, caught_by=[SIMULATION + "test_a_number_of_clients_that_is_private_is_refused"])
def clients_that_add_noise_are_divided_by_a_private_number():
    """Clients that add their own noise are accepted under add_or_remove_one: divisor and noise tell their number."""
    put(LocalPrivacy, "check_relation", lambda self, relation: None)


@bug(caught_by=["tests/cli/test_federate.py::test_settings_are_refused"])
def records_that_decide_the_client_of_others():
    """One record is protected, and its label decides which client gets the others, whose messages move too."""
    put(SimulationSettings, "_check_records", lambda self: None)
