"""The server's part: rounds over the clients that are there."""

from tacita.federated.flower import server_app

app = server_app()
