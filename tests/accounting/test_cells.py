"""The table of cells: what is proved gives its event, what is not is refused with the way out."""

import pytest

from tacita import accounting as acc
from tacita.accounting.cells import REFUSED, table
from tacita.errors import UnsupportedEventError

ALL = set(acc.RELATIONS)
PROVED = [
    (acc.PoissonLaw(0.02), ALL, acc.PoissonGaussianEvent),
    (acc.FullBatchLaw(), ALL, acc.FullBatchGaussianEvent),
    (acc.FixedSizeLaw(10, 100), {"replace_one"}, acc.FixedSizeGaussianEvent),
    (acc.DisjointLaw(own_coin=True), ALL, acc.OnePassGaussianEvent),
    (acc.DisjointLaw(own_coin=False), {"replace_one", "zero_out_one"}, acc.OnePassGaussianEvent),
    (acc.ShuffledEpochsLaw(10, own_coin=True), ALL, acc.ShuffledEpochsGaussianEvent),
    (acc.ShuffledEpochsLaw(10, own_coin=False), {"replace_one", "zero_out_one"}, acc.ShuffledEpochsGaussianEvent),
    (acc.PoissonUnitLaw(0.02, 4), {"add_or_remove_one"}, acc.PoissonUnitEvent),
]


@pytest.mark.parametrize(("law", "relations", "kind"), PROVED)
def test_every_cell(law, relations, kind):
    for relation in acc.RELATIONS:
        if relation in relations:
            event = acc.gaussian_sum_event(law, (1.0,), (2.0,), relation)
            assert type(event) is kind
            assert event.relation == relation
            assert acc.epsilon([acc.Spend(event, 3)], 1e-5).epsilon > 0
        else:
            with pytest.raises(UnsupportedEventError) as caught:
                acc.gaussian_sum_event(law, (1.0,), (2.0,), relation)
            named = str(caught.value).split("there is one under")[1]
            assert {other for other in ALL if other in named} == relations


def test_the_table_is_that_of_the_code():
    rows = table()
    assert len(rows) == len(PROVED)
    for law, relations, _ in PROVED:
        cells = rows[law.words]
        assert list(cells) == list(acc.RELATIONS)
        assert {relation for relation, text in cells.items() if text != REFUSED} == relations


def test_settings_reach_the_event():
    event = acc.gaussian_sum_event(acc.FixedSizeLaw(10, 100), (1.5,), (2.0,), "replace_one")
    assert (event.batch_size, event.num_records, event.max_contribution, event.noise_std) == (10, 100, (1.5,), (2.0,))


@pytest.mark.parametrize(
    ("law", "settings"),
    [
        (acc.PoissonLaw, (0.0,)),
        (acc.PoissonLaw, (32,)),
        (acc.FixedSizeLaw, (11, 10)),
        (acc.FixedSizeLaw, (0, 10)),
        (acc.ShuffledEpochsLaw, (0, True)),
        (acc.PoissonUnitLaw, (0.5, 0)),
    ],
)
def test_a_law_refuses_wrong_settings(law, settings):
    with pytest.raises(ValueError, match="must be"):
        law(*settings)


def test_an_unknown_relation_is_no_cell():
    with pytest.raises(ValueError, match="neighboring_relation must be one of"):
        acc.gaussian_sum_event(acc.FullBatchLaw(), (1.0,), (1.0,), "substitute")  # type: ignore[arg-type]
