import copy

import pytest
import torch
from torch import nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.loop import LoopEngine


def by_hand(found, index):
    """Gradient of one sample by plain autograd on the model itself."""
    model = copy.deepcopy(found.model)
    found.loss_fn(model, tuple(t[index : index + 1] for t in found.data)).sum().backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_materialised_rows_are_the_gradients_of_single_samples(network, engine_of):
    (grads,) = engine_of(LoopEngine, network).materialise()
    for i in range(len(network.data[0])):
        for name, expected in by_hand(network, i).items():
            torch.testing.assert_close(grads[name][i], expected, rtol=1e-12, atol=1e-14)


def test_gradient_is_the_limit_of_finite_differences(small, engine_of):
    step = 1e-6
    engine = engine_of(LoopEngine, small)
    (grads,) = engine.materialise()
    bias = small.model[2].bias
    with torch.no_grad():
        bias[1] += step
        above = small.loss_fn(small.model, small.data)
        bias[1] -= 2 * step
        below = small.loss_fn(small.model, small.data)
    torch.testing.assert_close(grads["2.bias"][:, 1], ((above - below) / (2 * step)).detach(), rtol=1e-7, atol=1e-9)


def test_sums_and_norms_follow_from_the_rows(network, engine_of, everything):
    engine = engine_of(LoopEngine, network)
    (grads,) = engine.materialise()
    for per_layer in (False, True):
        groups = everything(engine, per_layer)
        sums = engine.weighted_sums(lambda norms: (norms.square(), torch.ones_like(norms)), groups)
        expected = torch.stack(
            [torch.cat([grads[n].flatten(1) for n in names], dim=1).norm(dim=1) for names in groups.values()], dim=1
        )
        torch.testing.assert_close(sums.norms, expected, rtol=1e-12, atol=0)
        assert (sums.norms >= expected * (1 - 1e-15)).all()
        for column, names in enumerate(groups.values()):
            for name in names:
                weighted = torch.einsum("b,b...->...", expected[:, column] ** 2, grads[name])
                torch.testing.assert_close(sums.values[0][name], weighted, rtol=1e-10, atol=1e-12)
                torch.testing.assert_close(sums.values[1][name], grads[name].sum(0), rtol=1e-10, atol=1e-12)


def test_nothing_of_the_model_changes(with_dropout, engine_of, everything):
    found = with_dropout
    found.model.register_buffer("constant", torch.ones(2))
    before = {name: value.clone() for name, value in found.model.state_dict().items()}
    found.model[0].eval()
    modes = [module.training for module in found.model.modules()]
    generator = torch.get_rng_state()
    engine = engine_of(LoopEngine, found, seed=3)
    engine.weighted_sums(torch.ones_like, everything(engine))
    assert all(torch.equal(value, before[name]) for name, value in found.model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in found.model.parameters())
    assert modes == [module.training for module in found.model.modules()]
    assert torch.equal(generator, torch.get_rng_state())


def test_the_point_may_differ_from_the_models_own(small, engine_of, everything):
    point = {name: torch.zeros_like(p) for name, p in small.model.named_parameters()}
    at_zero = engine_of(LoopEngine, small, params=point)
    (grads,) = at_zero.materialise()
    one_hot = nn.functional.one_hot(small.data[1], 3).double()
    torch.testing.assert_close(grads["2.bias"], 1 / 3 - one_hot)  # softmax(0) - y


def test_loss_fn_may_call_submodules(small, engine_of):
    found = small
    found.loss_fn = lambda model, batch: model[2](model[1](model[0](batch[0]))).square().sum(dim=1)
    point = {name: 2 * p.detach() for name, p in found.model.named_parameters()}
    (grads,) = engine_of(LoopEngine, found, params=point).materialise()
    with torch.no_grad():
        for name, p in found.model.named_parameters():
            p.copy_(point[name])
    torch.testing.assert_close(grads["0.weight"][2], by_hand(found, 2)["0.weight"])


def test_frozen_parameters_are_not_in_shapes(small, engine_of):
    small.model[0].requires_grad_(False)
    engine = engine_of(LoopEngine, small)
    assert list(engine.shapes) == ["2.weight", "2.bias"]
    (grads,) = engine.materialise()
    assert set(grads) == {"2.weight", "2.bias"}


def test_tied_parameters_appear_once_with_their_total_gradient(tied_network, engine_of):
    engine = engine_of(LoopEngine, tied_network)
    assert list(engine.shapes) == ["embedding.weight"]
    (grads,) = engine.materialise()
    torch.testing.assert_close(grads["embedding.weight"][1], by_hand(tied_network, 1)["embedding.weight"])


def test_a_layer_that_a_sample_does_not_reach_has_gradient_zero(branching, engine_of):
    (grads,) = engine_of(LoopEngine, branching).materialise()
    reached = branching.data[0].sum(dim=1) > 1.5
    assert reached.any()
    assert not reached.all()
    assert (grads["first.weight"].flatten(1).norm(dim=1) > 0).tolist() == reached.tolist()
    assert (grads["second.weight"].flatten(1).norm(dim=1) > 0).tolist() == (~reached).tolist()


def test_a_loss_that_no_parameter_reaches_has_gradient_zero(small, engine_of, everything):
    small.loss_fn = lambda model, batch: batch[0].sum(dim=1)
    engine = engine_of(LoopEngine, small)
    assert (engine.norms(everything(engine)) == 0).all()


def test_a_sparse_embedding_is_served(tied_network, engine_of, everything):
    found = tied_network
    found.model.embedding = nn.Embedding(7, 4, sparse=True).double()
    engine = engine_of(LoopEngine, found)
    assert (engine.norms(everything(engine)) > 0).all()


@pytest.mark.parametrize("wrong", [torch.mean, lambda x: x.unsqueeze(1), lambda x: x.repeat(2), torch.Tensor.tolist])
def test_a_loss_of_the_wrong_shape_is_refused(small, engine_of, everything, wrong):
    plain = small.loss_fn
    small.loss_fn = lambda model, batch: wrong(plain(model, batch))
    engine = engine_of(LoopEngine, small)
    with pytest.raises(UnsupportedModuleError, match=r"one floating-point loss a sample"):
        engine.norms(everything(engine))


def test_an_error_of_the_users_loss_propagates(small, engine_of, everything):
    def broken(model, batch):
        raise KeyError("mine")

    small.loss_fn = broken
    engine = engine_of(LoopEngine, small)
    with pytest.raises(KeyError, match="mine"):
        engine.norms(everything(engine))


def test_works_where_gradients_are_switched_off(small, engine_of, everything):
    engine = engine_of(LoopEngine, small)
    with torch.no_grad():
        assert (engine.norms(everything(engine)) > 0).all()
