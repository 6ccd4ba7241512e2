"""The folder of the Flower app that ``flwr run`` sends to the server and to every client: no data and no settings.

It asks for Flower alone: a SuperLink may install what an app names from a public index, where nobody keeps our name.
"""

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation-app"
version = "1.0.0"
description = "Clients under local differential privacy train a model together"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "tacita"

[tool.flwr.app.components]
serverapp = "federation_app.server:app"
clientapp = "federation_app.client:app"

[tool.flwr.app.config]
federation = "federation.toml"
output = "server"
minimum-clients = 0
seconds = 600.0
model = ""
test = ""
"""
APP = {
    "pyproject.toml": PROJECT,
    "federation_app/__init__.py": "",
    "federation_app/client.py": "from tacita.federated.flower import client_app\n\napp = client_app()\n",
    "federation_app/server.py": "from tacita.federated.flower import server_app\n\napp = server_app()\n",
}
