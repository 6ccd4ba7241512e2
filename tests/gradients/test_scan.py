import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.scan import scan

IMAGES = (torch.full((1, 2, 6, 6), 12345.678), torch.full((1,), 2))
VECTORS = (torch.full((1, 4), 12345.678), torch.full((1,), 2))
TOKENS = (torch.full((1, 5), 3), torch.full((1,), 2))


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(norm, axes=2):
    first = nn.Conv2d(2, 4, 3, padding=1) if axes == 2 else nn.Linear(4, 4)
    return nn.Sequential(first, norm, nn.ReLU(), nn.Flatten(), nn.Linear(144 if axes == 2 else 4, 3))


def refused(model, loss_fn=classify, like=VECTORS):
    with pytest.raises(UnsupportedModuleError) as caught:
        scan(model, loss_fn, like).check()
    assert "12345" not in str(caught.value)
    return str(caught.value)


def refused_by_the_loop(model, loss_fn=classify, like=VECTORS):
    """What the code keeps is of no effect on a program."""
    with pytest.raises(UnsupportedModuleError) as caught:
        NetworkSource(model, loss_fn, like, method="loop")
    assert "12345" not in str(caught.value)
    return str(caught.value)


def accepted(model, loss_fn=classify, like=VECTORS):
    found = scan(model, loss_fn, like).check()
    assert found.probe is not None, found.notes
    return found


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_norm_in_training_mode_is_refused_frozen_or_not(trainable):
    model = network(nn.BatchNorm2d(4))
    model[1].requires_grad_(trainable)
    message = refused(model, like=IMAGES)
    assert "replace BatchNorm2d '1' by GroupNorm, or put it in eval mode with frozen statistics" in message


def test_batch_norm_in_eval_mode_is_per_sample():
    assert accepted(network(nn.BatchNorm2d(4)).eval(), like=IMAGES).probe is not None


def test_batch_norm_without_running_statistics_is_refused_in_either_mode():
    for model in (network(nn.BatchNorm2d(4, track_running_stats=False)), nn.SyncBatchNorm(4)):
        assert "mixes samples" in refused(model, like=IMAGES)
    assert "mixes samples" in refused(network(nn.BatchNorm2d(4, track_running_stats=False)).eval(), like=IMAGES)


def test_a_nested_module_is_named():
    model = nn.ModuleDict({"features": network(nn.BatchNorm1d(4), axes=1)})
    assert "'features.1'" in refused(model, lambda model, batch: classify(model["features"], batch))


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.InstanceNorm2d(4, affine=True)])
def test_norms_within_a_sample_are_accepted(norm):
    assert accepted(network(norm), like=IMAGES).probe is not None


def test_instance_norm_that_remembers_is_refused():
    model = network(nn.InstanceNorm2d(4, track_running_stats=True))
    assert "set track_running_stats=False" in refused(model, like=IMAGES)
    accepted(model.eval(), like=IMAGES)


class Remembers(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 3), in_place
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("constant", torch.full((4,), torch.nan))

    def forward(self, x):
        if self.in_place:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_a_forward_pass_changes_is_refused_and_stays_as_it_was(in_place):
    model = Remembers(in_place)
    assert "'mean' is a parameter or buffer that a forward pass changes" in refused(model)
    assert torch.equal(model.mean, torch.zeros(4))


class Centres(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0, keepdim=True)


def test_a_module_of_the_users_that_mixes_samples_is_refused():
    assert "depends on other samples" in refused(network(Centres(), axes=1))


def test_one_that_mixes_only_beside_dropout_is_refused_too():
    assert "depends on other samples" in refused(network(nn.Sequential(nn.Dropout(0.2), Centres()), axes=1))


def test_attention_over_the_batch_axis_is_refused():
    """batch_first=False, torch's default, on a batch whose first axis is the batch."""
    for batch_first in (True, False):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=batch_first)
        model = nn.Sequential(nn.Embedding(5, 4), layer, nn.Flatten(), nn.Linear(20, 3))
        if batch_first:
            accepted(model, like=TOKENS)
        else:
            assert "batch_first=True" in refused(model, like=TOKENS)


def contrastive(model, batch):
    embedded = F.normalize(model(batch[0]), dim=1)
    return F.cross_entropy(embedded @ embedded.T, torch.arange(len(embedded)), reduction="none")


def test_a_contrastive_loss_is_refused():
    assert "depends on other samples" in refused(nn.Linear(4, 3), contrastive)


def spread_mean(model, batch):
    losses = classify(model, batch)
    return losses.mean().expand(len(losses))


def test_a_mean_given_to_every_sample_is_refused():
    assert "depends on other samples" in refused(nn.Linear(4, 3), spread_mean)


class RoundsByTheBatch(nn.Module):
    """A linear layer and a norm that round as other kernels may: by the number of rows."""

    def __init__(self, units):
        super().__init__()
        self.linear, self.units = nn.Linear(4, 8), units

    def forward(self, x):
        z = F.layer_norm(self.linear(x), (8,))
        return z * (1 + self.units * len(x) * torch.finfo(z.dtype).eps * torch.tensor([1.0, -1.0] * 4))


def exact(model, x):
    """Its first output, in float64."""
    weight, bias = model.linear.weight.detach().double(), model.linear.bias.detach().double()
    return F.layer_norm(F.linear(x.double(), weight, bias), (8,))[:, 0]


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda model, batch: model(batch[0]).sum(1),
        lambda model, batch: (model(batch[0])[:, 0] - exact(model, batch[0]) - 1e-4).float() ** 2,
    ],
    ids=["terms that cancel", "a small squared error"],
)
def test_a_loss_that_is_mostly_rounding_is_not_taken_for_a_mixing_one(loss_fn):
    accepted(RoundsByTheBatch(1), loss_fn)
    refused(RoundsByTheBatch(3000), loss_fn)


@pytest.mark.parametrize("middle", [nn.Identity(), nn.Dropout(0.5)])
def test_a_division_by_the_batch_size_is_refused(middle):
    model = network(middle, axes=1)
    message = refused(model, lambda model, batch: classify(model, batch) / len(batch[0]))
    assert "depends on how many samples" in message
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.5)])
def test_dropout_is_accepted_and_the_global_generator_untouched(dropout):
    torch.manual_seed(0)
    model = network(dropout, axes=1)
    before = torch.get_rng_state()
    accepted(model)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), r"shape \(\), torch.float32"),
        (lambda model, batch: model(batch[0]), r"shape \(3, 3\)"),
        (lambda model, batch: model(batch[0]).argmax(dim=1), r"shape \(3,\), torch.int64"),
        (lambda model, batch: {"loss": 1}, "dict"),
    ],
)
def test_a_loss_that_is_not_one_a_sample_is_refused(wrong, seen):
    with pytest.raises(UnsupportedModuleError, match=rf"returns {seen}.*reduction=\"none\""):
        scan(nn.Linear(4, 3), wrong, VECTORS).check()


def test_a_loss_that_drops_the_axis_of_a_single_sample_is_refused():
    message = refused(nn.Linear(4, 1), lambda model, batch: model(batch[0]).squeeze().square())
    assert "one sample" in message
    assert "squeeze(1)" in message


def test_wrappers_and_lazy_modules_are_refused():
    assert "pass model.module" in refused(nn.DataParallel(nn.Linear(4, 3)))
    assert "run one forward pass first" in refused(nn.LazyLinear(3))


def test_a_model_that_does_not_run_on_synthetic_rows_is_not_tried():
    def particular(model, batch):
        if (batch[0] < 1e4).any():
            raise RuntimeError("only real data")
        return classify(model, batch)

    found = scan(nn.Linear(4, 3), particular, VECTORS).check()
    assert found.probe is None
    assert found.notes == ("the model does not run on synthetic rows (RuntimeError): it was not tried.",)


@pytest.mark.parametrize(
    ("like", "loss_fn", "message"),
    [
        ((VECTORS[0].double(), VECTORS[1]), classify, "(torch.float64, 1, 4), (torch.int64, 1)"),
        ((VECTORS[0], VECTORS[1].int()), classify, "(torch.int32, 1)"),
        ((VECTORS[0][:, :3], VECTORS[1]), classify, "shapes cannot be multiplied"),
        (VECTORS, lambda model, x, y: 0, "missing 1 required positional argument"),
        ({"x": VECTORS[0]}, lambda model, batch: model([*batch["x"]]), "{'x': (torch.float32, 1, 4)}"),
    ],
)
def test_records_that_the_model_does_not_take_are_refused_in_words(like, loss_fn, message):
    assert message in (said := refused(nn.Linear(4, 3), loss_fn, like))
    assert "let records fit model and loss" in said


def test_other_values_are_tried_where_the_first_do_not_fit():
    def of_positive_lengths(model, batch):
        assert (batch[1] > 0).all()
        return model(batch[0]).sum(dim=1) / batch[1]

    accepted(nn.Linear(4, 3), of_positive_lengths)


def test_no_gradient_mode_or_parameter_is_left_behind():
    model = network(nn.Dropout(0.1), axes=1)
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    accepted(model)
    assert modes == [module.training for module in model.modules()]
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Complex(nn.Module):
    def __init__(self, trained=True):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=trained)
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear((x * self.scale).abs())


def test_complex_parameters_are_refused_where_they_are_trained():
    data = (torch.ones(5, 2),)
    for method in ("auto", "loop"):
        with pytest.raises(UnsupportedModuleError, match=r"complex parameters \(scale\).*view_as_complex"):
            NetworkSource(Complex(), lambda model, batch: model(batch[0]).squeeze(1), data, method=method)
    NetworkSource(Complex(trained=False), lambda model, batch: model(batch[0]).squeeze(1), data)


class Meter(nn.Module):
    """A module outside of the model that keeps a running mean in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, losses):
        self.mean.mul_(0.9).add_(0.1 * losses.detach().mean())
        return losses - self.mean


METER = Meter()


class Remembering:
    """A callable that holds its meter, or the mean of the last losses, as an attribute."""

    def __init__(self, meter=None):
        self.meter, self.last = meter, torch.zeros(())

    def __call__(self, model, batch):
        losses = classify(model, batch)
        if self.meter is not None:
            return self.meter(losses)
        losses, self.last = losses + self.last, losses.detach().mean()
        return losses

    def method(self, model, batch):
        return self(model, batch)


def by_closure():
    meter = Meter()
    return lambda model, batch: meter(classify(model, batch))


def by_global(model, batch):
    return METER(classify(model, batch))


def by_default(model, batch, meter=Meter()):  # noqa: B008 - that is the point
    return meter(classify(model, batch))


def through_a_helper(model, batch):
    return by_global(model, batch)


def measured(meter, model, batch):
    return meter(classify(model, batch))


STATEFUL = {
    "closure": by_closure,
    "global": lambda: by_global,
    "default": lambda: by_default,
    "helper": lambda: through_a_helper,
    "partial": lambda: functools.partial(measured, Meter()),
    "method": lambda: Remembering(Meter()).method,
    "callable": lambda: Remembering(Meter()),
    "tensor": Remembering,
    "keyword": lambda: functools.partial(by_default, meter=Meter()),
}


@pytest.mark.parametrize("way", STATEFUL)
def test_a_loss_that_keeps_something_outside_of_the_model_is_refused(way):
    """Seen by its gradients on synthetic rows, whatever leads there."""
    loss_fn = STATEFUL[way]()
    with pytest.raises(UnsupportedModuleError, match=r"they keep something of them|depends on"):
        NetworkSource(nn.Linear(4, 3), loss_fn, VECTORS, method="loop")


def test_a_loss_that_uses_tensors_and_modules_and_changes_none_is_accepted():
    weight, teacher, cache = torch.ones(3), nn.Linear(4, 3), {}

    def loss_fn(model, batch):
        if "scale" not in cache:  # a constant that is made once
            cache["scale"] = weight.sum()
        distilled = (model(batch[0]) - teacher(batch[0])).square().sum(1)
        return cache["scale"] * F.cross_entropy(model(batch[0]), batch[1], weight=weight, reduction="none") + distilled

    scan(nn.Linear(4, 3), loss_fn, VECTORS).check()


def denoising(model, batch):
    """A loss that draws in every mode, as those of diffusion models do."""
    noise = torch.randn_like(batch[0])
    return (model(batch[0] + noise) - 1).square().mean(dim=1)


@pytest.mark.parametrize("method", ["program", "loop"])
def test_a_loss_that_draws_in_every_mode_is_accepted(method):
    accepted(nn.Linear(4, 3), denoising)
    assert NetworkSource(nn.Linear(4, 3), denoising, VECTORS, method=method).method == method


def test_a_loss_that_draws_and_mixes_is_refused():
    message = refused(nn.Linear(4, 3), lambda model, batch: denoising(model, batch) - denoising(model, batch).mean())
    assert "depends on other samples" in message
