"""Kernels that run on the whole batch at once: right, and row 0 alone equals row 0 among hostile companions."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacita.gradients.record_batch import records
from tacita.gradients.rules.fused_kernels import REPLACEMENTS

T, D = 5, 4


def normal(*shape):
    return lambda rows: torch.randn(rows, *shape, dtype=torch.float64)


def classes(*shape):
    return lambda rows: torch.randint(0, 3, (rows, *shape))


def recurrent(layer):
    layer = layer.double()

    def call(x):
        return layer(x)[0]

    return call


def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask > -1)


CAUSAL = torch.ones(T, T).tril().bool()
ATTENTION = nn.MultiheadAttention(D, 2, batch_first=True).double()
WEIGHT, STACK, SCALE = (torch.randn(shape).double().requires_grad_() for shape in ((D, D), (3, D, D), (D,)))
CASES = {
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y, reduction="none"), normal(1, 3), classes(1)),
    "cross_entropy_of_a_sequence": (
        lambda x, y: F.cross_entropy(x, y, reduction="none"), normal(1, 3, T), classes(1, T),
    ),
    "cross_entropy_of_a_sequence_with_classes_last": (
        lambda x, y: F.cross_entropy(x.mT, y, reduction="none"), normal(1, T, 3), classes(1, T),
    ),
    "cross_entropy_mean_with_classes_last": (
        lambda x, y: F.cross_entropy(x.mT, y, ignore_index=1), normal(1, T, 3), classes(1, T),
    ),
    "cross_entropy_mean": (lambda x, y: F.cross_entropy(x, y, ignore_index=1), normal(T, 3), classes(T)),
    "cross_entropy_sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), normal(T, 3), classes(T)),
    "cross_entropy_smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), normal(T, 3), classes(T)),
    "attention": (F.scaled_dot_product_attention, normal(1, 2, T, D), normal(1, 2, T, D), normal(1, 2, T, D)),
    "attention_without_heads": (F.scaled_dot_product_attention, normal(1, T, D), normal(1, T, D), normal(1, T, D)),
    "attention_of_a_matrix": (F.scaled_dot_product_attention, normal(T, D), normal(T, D), normal(T, D)),
    "attention_causal": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), normal(1, 2, T, D),
    ),
    "attention_shared_mask": (
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=CAUSAL), normal(1, 2, T, D),
    ),
    "attention_own_mask": (
        masked, normal(1, 2, T, D), normal(1, 2, T, D), normal(1, 2, T, D), normal(1, 1, 1, T),
    ),
    "attention_own_mask_without_heads": (
        masked, normal(1, T, D), normal(1, T, D), normal(1, T, D), normal(T, T),
    ),
    "attention_own_mask_of_all_heads": (
        masked, normal(1, 2, T, D), normal(1, 2, T, D), normal(1, 2, T, D), normal(T, T),
    ),
    "instance_norm": (lambda x: F.instance_norm(x, weight=SCALE, bias=SCALE), normal(1, D, T)),
    "distances": (lambda x: torch.cdist(x, WEIGHT.t()), normal(1, 30, D)),
    "einsum": (lambda x: torch.einsum("btd,dk->bkt", x, WEIGHT), normal(1, T, D)),
    "einsum_of_a_stack": (lambda x: torch.einsum("bte,edk->btdk", x, STACK), normal(1, T, 3)),
    "vector_times_matrix": (lambda x: x @ WEIGHT, normal(D)),
    "matrix_times_rows": (lambda x: WEIGHT @ x, normal(1, D, T)),
    "stack_on_the_right": (lambda x: x @ STACK, normal(3, T, D)),
    "stack_on_the_left": (lambda x: STACK @ x, normal(1, D, T)),
    "bilinear": (lambda x: F.bilinear(x, x, STACK), normal(1, D)),
    "tensordot": (lambda x: torch.tensordot(x, WEIGHT, ([1], [0])), normal(1, D, T)),
    "baddbmm": (lambda x: torch.baddbmm(STACK, x, STACK, alpha=0.5), normal(3, D, D)),
    "rows_by_index": (lambda i: WEIGHT[i - 1], classes(1, T)),
    "bag": (lambda i, w: F.embedding_bag(i, WEIGHT, per_sample_weights=w, mode="sum"), classes(1, T), normal(1, T)),
    "bag_by_offsets": (
        lambda i: F.embedding_bag(i, WEIGHT, torch.tensor([0, 2, 2]), padding_idx=1), classes(T),
    ),
    "multi_head": (lambda x: ATTENTION(x, x, x)[0], normal(1, T, D)),
    "multi_head_masked": (
        lambda x, m: ATTENTION(x, x, x, key_padding_mask=m > 1)[0].nan_to_num(), normal(1, T, D), normal(1, T),
    ),
    "lstm": (recurrent(nn.LSTM(D, 3, num_layers=2, bidirectional=True, batch_first=True)), normal(1, T, D)),
    "lstm_projected": (recurrent(nn.LSTM(D, 3, proj_size=2)), normal(T, 1, D)),
    "gru": (recurrent(nn.GRU(D, 3, num_layers=2, bidirectional=True)), normal(T, 1, D)),
    "rnn": (recurrent(nn.RNN(D, 3, batch_first=True)), normal(1, T, D)),
    "rnn_relu": (recurrent(nn.RNN(D, 3, nonlinearity="relu", bias=False)), normal(T, D)),
    "lstm_cell": (recurrent(nn.LSTMCell(D, 3)), normal(1, D)),
    "gru_cell": (nn.GRUCell(D, 3).double(), normal(1, D)),
    "rnn_cell": (nn.RNNCell(D, 3).double(), normal(1, D)),
}  # fmt: skip


def folded(call, rows):
    """The outputs of all records, by the functions that the program puts in the place of PyTorch's."""
    from torch.overrides import TorchFunctionMode

    used = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in REPLACEMENTS:
                with self:
                    found = REPLACEMENTS[func](batch, *args, **kwargs or {})
                if found is not NotImplemented:
                    used.append(func)
                    return found
            return func(*args, **kwargs or {})

    with records(len(rows[0])) as batch:
        ones = [batch.one(t) for t in rows]
        with Mode():
            found = call(*ones)
        return batch.result(found), used


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    call, *make = CASES[request.param]
    return request.param, call, [one(6) for one in make]


def test_it_is_what_each_record_gets_alone(case):
    name, call, rows = case
    found, used = folded(call, rows)
    expected = torch.stack([call(*(t[k] for t in rows)) for k in range(6)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert used or name in ("cross_entropy_smoothed", "attention_of_a_matrix")


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, 1e30])
def test_a_row_is_the_same_among_hostile_companions(case, hostile):
    _, call, rows = case
    alone, _ = folded(call, [t[:1] for t in rows])
    companions = [
        torch.where(torch.arange(6).view(-1, *[1] * (t.ndim - 1)) > 0, hostile, t) if t.is_floating_point() else t
        for t in rows
    ]
    among, _ = folded(call, companions)
    torch.testing.assert_close(among[:1], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [torch.empty_like, lambda x: x.new_empty(x.shape), lambda x: torch.empty(x.shape)],
    ids=["like", "new", "plain"],
)
def test_memory_is_not_handed_out_as_it_is(make):
    for _ in range(3):
        torch.full((64, 50), 7.0)  # freed at once, so that its memory is the next to be given away
        found, used = folded(lambda x: make(x) + 0 * x, [torch.ones(64, 50)])
        assert not found.any()
        assert used
