"""Networks in a federation: a linear one is the classifier, and server and clients agree on model, loss and shapes."""

from contextlib import ExitStack, contextmanager

import msgspec
import pytest
import torch
from torch import nn

import tacita
from tacita.errors import ResumeError, UnsupportedModuleError
from tacita.federated.federation import accuracy, joined
from tacita.federated.server_folder import ServerFolder
from tests.devices import CPU, SIMULATED, get_device
from tests.federated.federations import SETTINGS, exchange, rows_of
from tests.federated.test_federation import QUIET, differs_by, missing

OWN = msgspec.structs.replace(QUIET, features=None, classes=None, clients=2)


def network(width=4, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def squared_error(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]).square()


def absolute_error(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]).abs()


def records_of(number, rows=None):
    x, y = rows_of(number, rows)
    return {"x": x.float(), "y": y.float()}


def server_of(settings=OWN, model=None, loss=squared_error, record=None, path=None):
    record = records_of(0, 0) if record is None else record  # of shapes and dtypes alone
    return settings.coordinator(path, model=model or network(), loss=loss, record=record)


@contextmanager
def networks_in(folder, told=None, **change):
    """Two clients of a regression by a network of their own."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                joined(
                    OWN,
                    number=number,
                    folder=folder / str(number),
                    randomness=tacita.Randomness.insecure(number),
                    tell=(told if told is not None else []).append,
                    **{"data": records_of(number), "model": network(seed=1), "loss": squared_error, **change},
                )
            )
            for number in range(2)
        }


def test_a_linear_classifier_is_a_network_with_a_known_loss(tmp_path):
    """The closed form and the program give the same messages, up to rounding, for labels outside of the classes too."""
    found = []
    for network in (None, SETTINGS.build_model()):
        server = SETTINGS.coordinator(model=network)
        with ExitStack() as stack:
            clients = {}
            for number in range(2):
                features, labels = rows_of(number)
                given = {"number": number, "folder": tmp_path / f"{number} {network}", "model": network}
                given["randomness"] = tacita.Randomness.insecure(number)
                clients[number] = stack.enter_context(joined(SETTINGS, (features, 3 * labels - 1), **given))
            for _ in range(3):
                assert exchange(clients, server).accepted == (0, 1)
        found.append(server.params)
    for name, closed in found[0].items():
        torch.testing.assert_close(closed, found[1][name], rtol=1e-10, atol=1e-10)
        assert closed.norm() > 0.1


def test_a_network_of_ones_own_learns_over_restarts_and_lost_messages(tmp_path):
    first = None
    for t in range(3):
        server = server_of(path=tmp_path / "server")
        with networks_in(tmp_path) as residents:
            for lost in ([], [], [t % 2], []):
                assert not exchange(residents, server, lost=lost).refused
            assert missing(server, residents) < 1e-4
        model, (x, y) = network(), records_of(0).values()
        model.load_state_dict(server.params)
        loss = float(squared_error(model, {"x": x, "y": y}).mean().detach())
        first = loss if first is None else first
    assert loss < 0.5 * first
    folder = ServerFolder(tmp_path / "folder")
    folder.path.mkdir()
    folder.publish(server)
    loaded = OWN.load_model(folder.model, network())
    assert all(torch.equal(p, model.state_dict()[name]) for name, p in loaded.named_parameters())


@pytest.mark.parametrize("algorithm", ["clip21-sgdm", "clip-sgd"])
def test_a_network_lives_on_its_own_device(tmp_path, algorithm):
    weight = {"momentum_weight": 0.5} if algorithm == "clip21-sgdm" else {"momentum_weight": None}
    settings, found = msgspec.structs.replace(OWN, algorithm=algorithm, **weight), []
    for name in (CPU, SIMULATED):
        given = {"data": records_of(0), "number": 0, "folder": tmp_path / name, "loss": squared_error}
        server = server_of(settings)
        for _ in range(2):  # its state is read from a file the second time
            model, seeded = network().to(get_device(name)), tacita.Randomness.insecure(0)
            with joined(settings, model=model, randomness=seeded, **given) as client:
                for lost in (False, True):
                    reply = client.answer(server.broadcasts([0])[0])
                    assert server.receive({} if lost else {0: reply}).accepted == (() if lost else (0,))
                    assert reply
        found.append(server.params)
    for name, x in found[0].items():
        torch.testing.assert_close(x, found[1][name])


def frozen(value):
    model = network()
    model[0].weight.requires_grad_(False).fill_(value)
    return model


@pytest.mark.parametrize(
    ("server", "client"),
    [
        ({}, {"loss": absolute_error}),
        ({}, {"model": network(width=5)}),
        ({}, {"model": network().double(), "data": {name: x.double() for name, x in records_of(0).items()}}),
        ({"model": frozen(1.0)}, {"model": frozen(2.0)}),
        ({"model": frozen(1.0)}, {}),
    ],
    ids=["loss", "width", "dtype", "a frozen weight", "what is frozen"],
)
def test_another_network_is_refused_in_words(tmp_path, server, client):
    told = []
    broadcast = server_of(**server).broadcasts([0])[0]
    with networks_in(tmp_path, told, **client) as residents:
        assert residents[0].answer(broadcast) == b""
        assert residents[0].ledger.sessions[0].queries_made == 0
    assert "use the same model, loss, version of torch and kind of device" in told[0]


def test_the_id_of_a_network_depends_on_no_row_and_no_trained_weight(tmp_path):
    """A client may have any number of rows, also none, and any first weights."""
    with networks_in(tmp_path / "a") as a, networks_in(tmp_path / "b", data=records_of(0, 0)) as b:
        ids = {one.federation for one in (*a.values(), *b.values())} | {server_of(model=network(seed=7)).federation}
        broadcasts = server_of().broadcasts([0])
        assert b[0].answer(broadcasts[0])
    assert len(ids) == 1
    assert ids.pop().startswith(OWN.id + " ")


def test_the_folder_of_a_network_takes_no_other(tmp_path):
    with networks_in(tmp_path):
        pass
    for change in ({"model": network(width=5)}, {"data": records_of(0, 9)}, {"loss": absolute_error}):
        with pytest.raises(ResumeError, match="model or data are not those"), networks_in(tmp_path, **change):
            pass


def test_a_network_that_is_no_program_is_refused_before_there_is_a_folder(tmp_path):
    of_batches = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"), networks_in(tmp_path, model=of_batches):
        pass
    with pytest.raises(ValueError, match="data must be tensors or arrays in a tuple"):
        joined(OWN, [(torch.ones(3), torch.tensor(0.0))], number=0, folder=tmp_path / "0", model=network(),
               loss=lambda model, batch: model(batch[0]).squeeze(1)).__enter__()  # fmt: skip
    with pytest.raises(ValueError, match="features and classes must be given"):
        OWN.coordinator()
    assert not [*tmp_path.iterdir()]


class Words(nn.Module):
    """Raises on a word that it does not know."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 2)

    def forward(self, x):
        return self.words(x).sum(dim=(1, 2)).unsqueeze(1)


def of_words(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]).square()


@pytest.mark.parametrize("word", [7, -1, 2])
def test_all_that_a_client_of_a_network_sends_is_alike_on_neighbouring_data(tmp_path, word):
    """99 rows, and 100 of which one is a word that the program raises on."""
    words, y = torch.arange(297).reshape(99, 3) % 5, torch.ones(99)
    more = {"x": torch.cat([words, torch.full((1, 3), word)]), "y": torch.ones(100)}
    settings, found = msgspec.structs.replace(OWN, epsilon=8.0), []
    for rows, data in ((99, {"x": words, "y": y}), (100, more)):
        place = tmp_path / str(rows)
        given = {"model": Words(), "loss": of_words, "randomness": tacita.Randomness.insecure(0)}
        with torch.random.fork_rng(devices=[]), joined(settings, data, number=0, folder=place, **given) as client:
            torch.manual_seed(0)
            server = settings.coordinator(model=Words(), loss=of_words, record=data)
            replies = [client.answer(server.broadcasts([0])[0]) for _ in range(3)]
            assert (place / "private" / "problems.txt").exists() == (rows == 100 and word != 2)
        found.append(replies)
    assert all(replies)
    assert 0 < max(map(differs_by, *found)) <= 2 * settings.max_grad_norm * (1 + 1e-9)


def test_accuracy_is_that_of_public_rows():
    model, (features, labels) = SETTINGS.build_model(), rows_of(0)
    params = {"weight": torch.tensor([[0.0] * 3, [1.0] * 3]).double(), "bias": torch.zeros(2).double()}
    assert accuracy(model, params, features, labels) == 1.0
    assert accuracy(model, params, features, 1 - labels) == 0.0
