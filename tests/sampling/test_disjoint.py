"""One pass by index: every record in one batch, which follows from its number."""

import numpy as np
import pytest

from tacita.sampling import DisjointSampler


@pytest.mark.parametrize(
    ("num_records", "num_batches"), [(10, 4), (9, 3), (7, 7), (3, 5), (1000, 17), (50, 1), (50, 60)]
)
def test_row_i_is_in_batch_i_times_batches_over_records(num_records, num_batches, coins):
    sampler = DisjointSampler(num_batches=num_batches, num_records=num_records)
    expected = np.array([i * num_batches // num_records for i in range(num_records)])
    for query in range(sampler.max_queries):
        assert sampler.draw(query, coins(), num_records).tolist() == np.flatnonzero(expected == query).tolist()
    sizes = np.bincount(expected, minlength=num_batches)
    assert sizes.max() - sizes.min() <= 1
