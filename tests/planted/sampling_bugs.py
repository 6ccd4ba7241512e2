"""Bugs of sampling: what is drawn is not what is accounted, or tells how many records there are."""

import math

import numpy as np

from tacita.accounting import Part, cells
from tacita.accounting.cells import PoissonLaw
from tacita.accounting.gaussian_events import PoissonGaussianEvent
from tacita.gradients import NetworkSource
from tacita.gradients.chunked import ChunkedEngine
from tacita.oracles import GradientOracle, Line
from tacita.oracles.terms import Terms
from tacita.random import QueryCoins
from tacita.sampling import (
    DisjointSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
    ShuffledEpochsSampler,
    _assignment,
    poisson,
    sampler,
    units,
)
from tests.planted.ledger_bugs import pay_nothing
from tests.planted.plant import bug, put, swap

SAMPLER = "tests/sampling/test_sampler.py::"
POISSON = "tests/sampling/test_poisson.py::"
CELLS = "tests/accounting/test_cells.py::"
ORACLE = "tests/oracles/test_gradient_oracle.py::"
RECORDS = "tests/oracles/test_records.py::"
SOURCE = "tests/gradients/test_source.py::"

LAWS = [SAMPLER + "test_law_divisor_and_rate_follow_from_the_settings"]


@bug(1, caught_by=LAWS)
def shuffled_epochs_as_poisson():
    """Shuffled epochs state the law of Poisson sampling."""
    put(ShuffledEpochsSampler, "law", property(lambda self: PoissonLaw(self.sample_rate)))


@bug(1, caught_by=LAWS)
def disjoint_batches_as_poisson():
    """Disjoint batches state the law of Poisson sampling."""
    put(DisjointSampler, "law", property(lambda self: PoissonLaw(self.sample_rate)))


@bug(1, caught_by=LAWS)
def fixed_size_as_poisson():
    """Batches of a fixed size state the law of Poisson sampling."""
    put(FixedSizeSampler, "law", property(lambda self: PoissonLaw(self.sample_rate)))


@bug(1, caught_by=[CELLS + "test_every_cell"])
def epochs_are_amplified():
    """The event of shuffled epochs is that of Poisson sampling at the same rate."""

    def event(self, **noise):
        return PoissonGaussianEvent(sampling_probability=1 / self.queries_per_epoch, **noise)

    put(cells.ShuffledEpochsLaw, "event", event)


@bug(1, caught_by=[CELLS + "test_every_cell", CELLS + "test_the_table_is_that_of_the_code"])
def index_assignment_under_add_or_remove():
    """Batches by row number are offered under add_or_remove_one, where one record more moves all others."""
    whole = cells._assigned_cells
    swap(whole, lambda charge, own_coin: whole(charge, True))


@bug(1, caught_by=[SAMPLER + "test_one_row_less_moves_no_other_or_is_refused"])
def own_coins_are_a_permutation():
    """Coins that should be each record's own are one permutation, which a record more or less moves."""
    swap(_assignment.by_coin, _assignment.by_permutation)


@bug(
    1,
    4,
    caught_by=[SAMPLER + "test_a_loader_is_never_taken_for_a_sampler", ORACLE + "test_a_loader_is_refused_as_sampler"],
)
def loader_taken_for_poisson():
    """A loader with a batch size is accepted and accounted as Poisson sampling."""
    swap(sampler.as_sampler, lambda found: PoissonSampler(sample_rate=0.1, num_records=60))


@bug(4, caught_by=[ORACLE + "test_divisor_is_public_and_not_the_realised_size"])
def rate_from_the_number_of_batches():
    """The sample rate is one over the whole number of batches."""
    rate = poisson._rate
    swap(rate, lambda *settings: 1 / math.ceil(1 / rate(*settings)))


@bug(4, caught_by=[POISSON + "test_the_batch_size_is_binomial"])
def drawn_more_often_than_stated():
    """Records are drawn five per cent more often than the sampler's law says."""

    def draw(self, query, coins, num_rows):
        return np.flatnonzero(coins.for_query(query).bernoulli(num_rows, 1.05 * self.sample_rate))

    put(PoissonSampler, "draw", draw)


@bug(5, caught_by=[SAMPLER + "test_decimal_rates_mean_what_they_say"])
def queries_cut_to_an_integer():
    """The queries of an epoch are int(1 / rate)."""
    put(Sampler, "queries_for", lambda self, epochs: int(epochs / self.sample_rate))


@bug(6, 7, caught_by=[ORACLE + "test_divisor_is_public_and_not_the_realised_size"])
def divisor_from_the_data():
    """The sum is divided by the rate times the private number of records."""
    put(GradientOracle, "divisor", property(lambda self: self.sampler.sample_rate * len(self._rows)))


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
    draw = GradientOracle._draw

    def counted(self, query):
        rows = draw(self, query)
        put(GradientOracle, "divisor", property(lambda self: max(1, len(rows))))
        return rows

    put(GradientOracle, "_draw", counted)


@bug(8, caught_by=[ORACLE + "test_an_empty_batch_is_a_query_of_pure_noise"])
def empty_batch_skipped():
    """A query that drew nobody returns its zeros: no noise, no line in the ledger."""
    pay, noisy = Line.pay, Line.noisy

    def drew(values):
        return any(value.any() for block in values.values() for value in block.values())

    def paying(self, query, values):
        return pay(self, query, values) if drew(values) else pay_nothing(self, query, values)

    put(Line, "pay", paying)
    put(Line, "noisy", lambda self, *dtypes: noisy(self, *dtypes) if drew(self._paid[1]) else self._paid[1])


@bug(
    8,
    caught_by=[
        "tests/gradients/test_vmap.py::test_an_empty_batch_gives_zeros_and_never_calls_the_loss",
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


@bug(9, 10, 36, 37, caught_by=[SOURCE + "test_settings_are_checked"])
def process_group_ignored():
    """Several processes are accepted before anything makes them draw and add noise as one."""
    build = NetworkSource.__init__

    def built(self, *args, process_group=None, **settings):
        build(self, *args, **settings)

    put(NetworkSource, "__init__", built)


@bug(15, caught_by=[CELLS + "test_every_cell"])
def unit_event_is_the_rows():
    """A person with several rows is accounted as if one row were all."""
    put(
        cells.PoissonUnitLaw,
        "event",
        lambda self, **n: PoissonGaussianEvent(sampling_probability=self.sample_rate, **n),
    )


@bug(15, caught_by=[RECORDS + "test_a_cap_and_a_sampler_must_agree"])
def cap_not_compared_with_the_sampler():
    """Records with several rows a person go with a sampler that accounts for one."""
    put(GradientOracle, "_check_sampler", lambda self, max_rows_per_unit: None)


@bug(15, caught_by=[RECORDS + "test_rows_beyond_the_cap_are_dropped_by_the_persons_own_coins"])
def rows_beyond_the_cap_kept():
    """All rows of a person take part, whatever the cap."""
    swap(units.within_cap, lambda codes, names, max_rows_per_unit, key: codes >= 0)


@bug(15, caught_by=[RECORDS + "test_all_rows_of_a_person_fall_into_one_part_whoever_else_is_there"])
def rows_of_a_person_split_apart():
    """Each row draws its own part of a split, so that one person is in several."""
    swap(units.unit_words, lambda codes, names, key: key.stream("rows").words(len(codes)))


@bug(1, 15, caught_by=[RECORDS + "test_a_split_made_again_with_other_coins_is_another_split"])
def splits_known_by_name_alone():
    """Parts of two drawings of one split are taken to share no record."""
    whole = Part.__init__
    put(Part, "__init__", lambda self, split, **fields: whole(self, split=split.partition("-")[0], **fields))


@bug(
    1,
    34,
    caught_by=["tests/oracles/test_line.py::test_assignments_survive_a_kill_between_checkpoint_and_key"],
)
def assignments_redrawn_after_a_ratchet():
    """The batches of a one-pass session come from a key that a checkpoint moves on."""
    put(QueryCoins, "for_session", lambda self: self._randomness.key.stream(self.session, "assignment"))


@bug(11, 20, caught_by=["tests/oracles/test_line.py::test_a_registered_session_is_of_its_part_and_its_randomness"])
def sessions_of_another_part_accepted():
    """An oracle is paid by a session that was registered for other records."""
    put(Terms, "met_by", lambda self, session, *settings: True)
