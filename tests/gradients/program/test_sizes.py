"""The program equals the loop at every number of rows: one list of operators, with that number put in."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from tacita.gradients import NetworkSource

SIZES = (0, 1, 2, 3, 17, 64, 300)
MOST = max(SIZES)
CLASSES, WIDTH, LENGTH, VOCABULARY = 3, 8, 5, 11
EXACT = 1e-10


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def vectors(count):
    return torch.randn(count, WIDTH).double(), torch.randint(CLASSES, (count,))


def images(count):
    return torch.randn(count, 2, 6, 6).double(), torch.randint(CLASSES, (count,))


def tokens(count):
    return torch.randint(VOCABULARY, (count, LENGTH)), torch.randint(CLASSES, (count,))


class Tied(nn.Module):
    """An embedding that is the output layer too, whose last tokens are the classes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.head = nn.Linear(4, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x).mean(dim=1))


class Buffered(nn.Module):
    """A buffer, a frozen weight, a bare parameter and a plain number."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("shift", torch.randn(WIDTH))
        self.gain = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.bare = nn.Parameter(torch.randn(WIDTH))
        self.power = 1.5

    def forward(self, x):
        return self.last((self.first(x) * self.gain + self.shift).tanh() * self.bare * self.power)


class Straight(nn.Module):
    """A weight rounded to a grid, whose gradient passes straight through."""

    class Round(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(weight):
            return (weight * 8).round() / 8

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return F.linear(x, self.Round.apply(self.layer.weight), self.layer.bias)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, 4), nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.cell(self.embedding(x))[0][:, -1])


class Laid(nn.Module):
    """The gradient of its softplus lies in memory otherwise than a tensor without values is told to, as in Mamba."""

    def __init__(self):
        super().__init__()
        self.first, self.steps, self.last = nn.Linear(1, 4), nn.Linear(4, 6), nn.Linear(WIDTH, CLASSES)
        self.register_buffer("weights", torch.randn(6, WIDTH, 3))

    def forward(self, x):
        steps = F.softplus(self.steps(self.first(x[..., None])).transpose(1, 2))
        return self.last((steps[..., None] * self.weights).sum(-1)).sum(1)


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, CLASSES),
    )  # fmt: skip


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), layer, nn.Flatten(), nn.Linear(8 * LENGTH, CLASSES))


def normalised():
    return nn.Sequential(weight_norm(nn.Linear(WIDTH, 16)), nn.Tanh(), nn.Linear(16, CLASSES))


NETWORKS = {
    "mlp": (mlp, vectors),
    "convolutions": (convolutions, images),
    "transformer": (transformer, tokens),
    "tied": (Tied, tokens),
    "buffered": (Buffered, vectors),
    "frozen": (frozen, vectors),
    "straight": (Straight, vectors),
    "recurrent": (Recurrent, tokens),
    "normalised": (normalised, vectors),
    "laid": (Laid, vectors),
}


def source_of(name, method, *, count=MOST, chunk=None):
    torch.manual_seed(0)
    make, data = NETWORKS[name]
    model = make().double()
    return NetworkSource(model, classify, data(count), method=method, max_physical_batch_size=chunk)


def engine_of(source, rows, seed=1):
    params = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
    engine = source.engine(params, np.arange(rows), seed=seed)
    engine.rounding_margin = False
    return engine


def assert_equal(engine, expected, rows):
    """Fail unless norms and sums of an engine are those of per-sample gradients by name, (rows, *parameter)."""
    found = engine.weighted_sums(torch.ones_like, {name: (name,) for name in engine.shapes})
    norms = torch.stack([expected[name].flatten(1).norm(dim=1) for name in engine.shapes], dim=1)
    assert found.norms.shape == (rows, len(engine.shapes))
    torch.testing.assert_close(found.norms, norms, rtol=EXACT, atol=EXACT)
    for name, total in found.values[0].items():
        torch.testing.assert_close(total, expected[name].sum(0), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_equals_the_loop_at_every_number_of_rows(name):
    program, loop = (source_of(name, method) for method in ("program", "loop"))
    (each,) = engine_of(loop, MOST).materialise()  # the first rows of the loop's gradients are those of fewer rows
    for rows in SIZES:
        assert_equal(engine_of(program, rows), {name: grad[:rows] for name, grad in each.items()}, rows)


@pytest.mark.parametrize("chunk", [1, 2, 7, 16])
@pytest.mark.parametrize("name", ["mlp", "transformer", "straight"])
def test_physical_batches_change_nothing(name, chunk):
    program, whole = source_of(name, "program", chunk=chunk), source_of(name, "program")
    for rows in (1, 17, 64):
        (each,) = engine_of(whole, rows).materialise()
        assert_equal(engine_of(program, rows), each, rows)


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_read_at_each_query(name):
    """Neither parameters nor buffers nor frozen weights stay what they were when the program was written down."""
    program, loop = (source_of(name, method, count=3) for method in ("program", "loop"))
    for one in (program, loop):
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for tensor in (*one.model.parameters(), *one.model.buffers()):
                tensor.add_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    (each,) = engine_of(loop, 3).materialise()
    assert_equal(engine_of(program, 3), each, 3)


def test_gradients_of_each_record():
    program, loop = (source_of("buffered", method) for method in ("program", "loop"))
    for rows in (1, 5):
        (found,), (expected,) = (list(engine_of(one, rows).materialise()) for one in (program, loop))
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)


def test_one_program_serves_all_sizes(monkeypatch):
    program = source_of("mlp", "program", count=40)

    def refuse(*args, **kwargs):
        raise AssertionError("the model's code met a record")

    monkeypatch.setattr(type(program.model), "forward", refuse)
    for rows in range(41):
        engine_of(program, rows).weighted_sums(torch.ones_like, {"all": tuple(program.shapes)})


def test_dropout_draws_by_record_from_the_stream_of_the_query():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)).double()
    data = torch.ones(40, WIDTH).double(), torch.zeros(40, dtype=torch.long)
    source = NetworkSource(model, classify, data, method="program")
    groups = {"all": tuple(source.shapes)}
    norms = engine_of(source, 40).norms(groups)
    assert len(norms.unique()) > 1, "equal records draw apart"
    torch.manual_seed(5)  # a global seed is of no effect
    torch.testing.assert_close(engine_of(source, 40).norms(groups), norms, rtol=0, atol=0)
    assert not torch.equal(engine_of(source, 40, seed=2).norms(groups), norms)
