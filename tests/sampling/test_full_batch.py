"""Full batch: everyone, whatever the declared number."""

from tacita.sampling import FullBatchSampler


def test_every_row_is_in_every_query(coins):
    sampler = FullBatchSampler(num_records=10)
    for query in (0, 1, 10**6):
        for rows in (0, 1, 9, 10, 11):
            assert sampler.draw(query, coins(), rows).tolist() == list(range(rows))
    assert sampler.expected_batch_size == 10.0
