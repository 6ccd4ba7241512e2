"""Bugs of sampling: what is drawn is not what is accounted, or tells how many records there are."""

import math
from dataclasses import replace

import numpy as np

from tacita import splitting
from tacita.accounting import (
    DisjointLaw,
    GaussianSumEvent,
    Part,
    PoissonLaw,
    PoissonUnitLaw,
    ShuffledEpochsLaw,
    parts,
)
from tacita.accounting.events.gaussian_sums import row_chances
from tacita.errors import UnsupportedEventError
from tacita.gradients import NetworkSource
from tacita.gradients.chunked import ChunkedEngine
from tacita.oracles import GradientOracle, ReleaseGate, records
from tacita.oracles.query_draws import QueryDraws
from tacita.sampling import (
    PoissonSampler,
    Sampler,
    poisson,
    units,
)
from tests.planted.ledger_bugs import commit_nothing
from tests.planted.plant import bug, put, swap

SAMPLER = "tests/sampling/test_sampler.py::"
SUMS = "tests/accounting/events/test_gaussian_sums.py::"
UNITS = "tests/accounting/events/test_mixtures.py::"
CELLS = "tests/accounting/test_proved_events.py::"
ORACLE = "tests/oracles/test_gradient_oracle.py::"
PARTS = "tests/accounting/test_parts.py::"
RECORDS = "tests/oracles/test_records.py::"
SOURCE = "tests/gradients/test_network_source.py::"


def charge_as_poisson(law, rate):
    """Charge sums under one sampling law as if batches were drawn by coins of this rate, a function of the law."""
    proofs = GaussianSumEvent.proofs

    def charged(event, queries):
        return replace(event, sampling=PoissonLaw(rate(event.sampling))).guarantee(queries)

    put(GaussianSumEvent, "proofs", {**proofs, law: replace(proofs[law], guarantee=charged)})


@bug(1, caught_by=[CELLS + "test_every_cell", SUMS + "test_shuffled_epochs_is_one_query_an_epoch_begun"])
def epochs_are_amplified():
    """Shuffled epochs are charged as Poisson sampling at the same rate."""
    charge_as_poisson(ShuffledEpochsLaw, lambda law: 1 / law.batches_per_epoch)


@bug(1, caught_by=[CELLS + "test_every_cell", CELLS + "test_the_table_is_that_of_the_code"])
def index_assignment_under_add_or_remove():
    """Batches by row number are offered under add_or_remove_one, where one record more moves all others."""
    for law in (DisjointLaw, ShuffledEpochsLaw):
        put(law, "absence_moves_others", property(lambda self: False))


@bug(4, caught_by=[ORACLE + "test_divisor_is_public_and_not_the_realised_size"])
def rate_from_the_number_of_batches():
    """The sample rate is one over the whole number of batches."""
    rate = poisson._rate
    swap(rate, lambda *settings: 1 / math.ceil(1 / rate(*settings)))


@bug(88, caught_by=[ORACLE + "test_a_query_is_one_draw_however_many_physical_batches_it_has"])
def a_draw_for_each_physical_batch():
    """Each of three physical batches is a draw of its own, at a third of the rate: a record may be in all of them."""

    def batch(self, query):
        third = PoissonSampler(sample_rate=self.sampler.sample_rate / 3, num_records=self.sampler.num_records)
        draws = [third.draw(3 * query + part, self._gate.coins, self.num_rows) for part in range(3)]
        return np.sort(np.concatenate(draws))

    put(QueryDraws, "batch", batch)


@bug(
    88,
    caught_by=[
        UNITS + "test_a_draw_for_each_micro_batch_is_the_unit_event",
        UNITS + "test_a_draw_for_each_micro_batch_costs_more_than_one_a_step",
    ],
)
def several_draws_charged_as_one():
    """What may be drawn k times at rate q in one query is charged as one draw at rate k q."""
    swap(row_chances, lambda rows, chance: (1 - rows * chance, rows * chance, *[0.0] * (rows - 1)))


@bug(5, caught_by=[SAMPLER + "test_decimal_rates_mean_what_they_say"])
def queries_cut_to_an_integer():
    """The queries of an epoch are int(1 / rate)."""
    put(Sampler, "queries_for", lambda self, epochs: int(epochs / self.sample_rate))


@bug(
    6,
    caught_by=[
        SAMPLER + "test_only_relations_that_allow_an_absent_record_go_with_a_private_count",
        ORACLE + "test_divisor_is_public_and_not_the_realised_size",
    ],
)
def declared_number_compared_with_the_data():
    """Under add_or_remove_one an error tells whether the declared number of records is the true one."""
    put(PoissonSampler, "requires_public_count", property(lambda self: True))


@bug(7, caught_by=[ORACLE + "test_divisor_is_public_and_not_the_realised_size"])
def divided_by_the_realised_size():
    """The sum is divided by the number of records that were drawn."""
    draw = QueryDraws.batch

    def counted(self, query):
        rows = draw(self, query)
        put(GradientOracle, "divisor", property(lambda self: max(1, len(rows))))
        return rows

    put(QueryDraws, "batch", counted)


@bug(8, caught_by=[ORACLE + "test_an_empty_batch_is_a_query_of_pure_noise"])
def empty_batch_skipped():
    """A query that drew nobody returns its zeros: no noise, no line in the ledger."""
    commit, noisy = ReleaseGate.commit, ReleaseGate.release

    def drew(values):
        return any(value.any() for block in values.values() for value in block.values())

    def committing(self, query, values, seen=None):
        return commit(self, query, values, seen) if drew(values) else commit_nothing(self, query, values)

    put(ReleaseGate, "commit", committing)
    put(
        ReleaseGate,
        "release",
        lambda self, *dtypes: noisy(self, *dtypes) if drew(self._unreleased[1]) else self._unreleased[1],
    )


@bug(
    8,
    caught_by=[
        "tests/gradients/test_both_engines.py::test_an_empty_batch_gives_zeros_and_never_calls_the_loss",
        ORACLE + "test_an_empty_batch_is_a_query_of_pure_noise",
    ],
)
def empty_batch_crashes():
    """A batch of nobody raises."""
    whole = ChunkedEngine.weighted_sums

    def raising(self, rule, groups):
        if len(self.labels) == 0:
            raise ValueError("need at least one array to concatenate")
        return whole(self, rule, groups)

    put(ChunkedEngine, "weighted_sums", raising)


@bug(10, 36, caught_by=[SOURCE + "test_settings_are_checked"])
def process_group_ignored():
    """A process group is ignored, so that every process draws, adds noise and pays by itself."""
    build = NetworkSource.__init__

    def built(self, *args, process_group=None, **settings):
        build(self, *args, **settings)

    put(NetworkSource, "__init__", built)


@bug(15, caught_by=[UNITS + "test_more_rows_cost_more_but_less_than_the_group"])
def unit_event_is_the_rows():
    """A person with several rows is accounted as if one row were all."""
    charge_as_poisson(PoissonUnitLaw, lambda law: law.sample_rate)


@bug(15, caught_by=["tests/sampling/test_units.py::test_equal_units_are_one_however_they_are_written"])
def units_compared_by_how_they_print():
    """1 and 1.0 are two persons, each with a cap of its own; 1 and "1" are one."""
    put(units, "unit_name", str)


@bug(1, caught_by=[RECORDS + "test_tensors_in_other_orders_are_other_splits_in_torch_s_data_sets_too"])
def tensors_of_a_dataset_not_compared():
    """Of torch's own data sets the length alone is compared, so that another order of the rows is the same split."""
    swap(splitting._content, lambda dataset: str(len(dataset)))


@bug(1, 15, caught_by=[RECORDS + "test_a_split_made_again_with_other_coins_is_another_split"])
def splits_known_by_name_alone():
    """Parts of two drawings of one split are taken to share no record."""
    whole = Part.__init__
    put(Part, "__init__", lambda self, split, **fields: whole(self, split=split.partition("-")[0], **fields))


@bug(
    62,
    caught_by=[
        PARTS + "test_units_are_split_under_add_or_remove_one_alone",
        RECORDS + "test_units_are_split_under_add_or_remove_one_alone",
    ],
)
def units_split_where_one_replaces_another():
    """Persons are split by coin under replace_one: who replaces one falls into another part, whose size is public."""

    def unchecked(part, relation):
        if part.kind == "range" and relation == "add_or_remove_one":
            raise UnsupportedEventError("not disjoint. Split by coin, or use replace_one or zero_out_one.")

    swap(parts.check_part, unchecked)


@bug(
    62,
    caught_by=[
        "tests/second_order/test_stationary_test.py::test_units_of_several_rows_are_refused_where_their_rows_would_be_public"
    ],
)
def units_of_several_rows_under_any_relation():
    """Persons with several rows take part where the number of rows is public."""
    swap(records.check_units, lambda relation, max_rows_per_unit: None)


@bug(
    63,
    caught_by=[
        RECORDS + "test_rows_that_are_no_set_of_rows_are_refused",
        RECORDS + "test_an_oracle_refuses_a_row_twice_and_keeps_its_own_rows",
    ],
)
def a_row_several_times():
    """A row stands twice in the records of an oracle, and adds twice its clipped gradient."""
    swap(records.distinct_rows, lambda rows, num_rows: np.asarray(rows))
