"""The client's part: the resident of this machine makes the noisy message, and SecAgg+ masks it.

The guarantee is the resident's own, that of local privacy: its message is private before SecAgg+ touches it, and what
SecAgg+ does to it (clip each coordinate, round it, mask it) is post-processing. Nothing else here depends on data: the
number of examples is the constant 1, and whatever goes wrong is one constant error.
"""
# pyright: reportMissingImports=false

import msgspec
import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from tacita.federated.frames import ask

SECONDS = 600.0  # that the resident may take for a message


class ResidentClient(NumPyClient):
    """Asks the resident at a socket for its message."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fit(self, parameters, config):
        """Return the resident's noisy message, array by array in the order of their names."""
        broadcast = config.get("broadcast")
        reply = ask(self.path, broadcast, seconds=SECONDS) if isinstance(broadcast, bytes) else b""
        try:
            values = msgspec.msgpack.decode(reply)["values"]
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise RuntimeError("no message") from None
        arrays = [np.frombuffer(one["data"], "<f8").reshape(one["shape"]) for _, one in sorted(values.items())]
        return arrays, 1, {}  # a number of examples, or a metric, would be sent in the clear


def client_fn(context: Context) -> Client:
    """Return the client of a node, whose configuration names the resident's socket."""
    return ResidentClient(str(context.node_config["socket"])).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
