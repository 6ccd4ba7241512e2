"""The client's part: it hands each broadcast to the resident client of this machine (``tacita federate join``)."""

from tacita.federated.flower import client_app

app = client_app()
