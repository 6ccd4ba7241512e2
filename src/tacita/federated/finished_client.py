"""The end of a client's part in a federation: its statement, sealed over its ledger, and no private file left.

Place: federated.federation, in the client's folder -> [federated.finished_client]. It needs no rows, no model and no
server, and ends the client for good: a folder without its key answers no broadcast.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita.errors import ResumeError, TacitaError
from tacita.federated.algorithm_settings import hold_to
from tacita.federated.federation import SETTINGS, UNIT, FederationSettings
from tacita.federated.simulated_run import NOT_ANONYMISED, tidied
from tacita.federated.views import SECURE_AGGREGATION
from tacita.ledger import Statement, statement
from tacita.ledger.journal import ends_with_seal
from tacita.ledger.run_sections import check_about, leaving
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_facts
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.run_list import ListedRun, check_name, finish_sealed
from tacita.runs.sealed_run import SealedRun, publish

CAVEATS = (
    "The guarantee is against the server and whoever sees this client's messages, or the models made of them: all data "
    "of this client is protected. That it took part, and when, is not.",
    SECURE_AGGREGATION,
    "It holds if one copy alone of this client's folder has sent messages: what another one has sent comes on top.",
)


def finish_client(
    settings: FederationSettings,
    *,
    number: int,
    folder: str | Path,
    about: Mapping[str, str] | None = None,
    dataset_name: str | None = None,
) -> str:
    """Seal the folder of a client that has sent messages, remove its key, and return its statement.

    A process that is killed leaves a folder with which the same call goes on.

    Args:
        settings: The federation.
        number: The client's number.
        folder: The client's folder, which no process uses.
        about: What the statement says as given, as in :func:`tacita.fit`.
        dataset_name: Public name of the client's data, under which its runs are listed beside their folders.

    Raises:
        ResumeError: The folder is not that of this client, or is sealed, and ``about`` is not what it states.
        TacitaError: The client has sent no message.
        LedgerError: The client is still running.
    """
    check_about(about or {})
    check_name(dataset_name, folder)
    place = RunFolder(folder)
    if ends_with_seal(place.ledger):
        return _sealed_before(place, about or {})
    if not place.unfinished or not place.checkpoint.exists():
        raise ResumeError(f"folder must be that of a client that has started, got {str(folder)!r}.")
    hold_to(place.private / SETTINGS, settings.public)
    _, head = checkpoint.load(place.checkpoint)
    federation = str(head.get("federation"))
    if not federation.startswith(settings.id) or head.get("client") != number:
        raise ResumeError(f"{str(folder)!r} is the folder of another federation or client.")
    run = RunLifecycle.start(place)
    with run.ledger(neighboring_relation="replace_one", privacy_unit=UNIT) as ledger:
        session = ledger.sessions[0]
        if not session.opened:
            raise TacitaError(f"no message was sent from {str(folder)!r}, so that nothing is to be stated: remove it.")
        if not session.closed:
            session.close()

        said: dict[str, Any] = {"about": dict(about or {})}
        if dataset_name is not None:
            listed = ListedRun(dataset_name, str(folder), settings.epsilon, settings.delta, "replace_one", UNIT)
            run.record(listed)
            said["dataset"] = listed.stated(run.randomness)

        def make_statement(hashes: dict[str, str]) -> Statement:
            return statement(
                ledger,
                settings.delta,
                num_units=settings.clients,
                caveats=[*CAVEATS, settings.loudness(head["size"])],
                model=f"{settings.algorithm} in {settings.rounds} rounds, as client {number} of the federation "
                f"{federation}",
                task="classification",
                target="labels",
                files=hashes,
                files_policy=leaving(hashes),
                rows={"value": settings.clients, "how": "public", "of": "clients"},
                run=run_facts(run.randomness),
                **said,
                not_anonymised=list(NOT_ANONYMISED),
            )

        words = publish(ledger, make_statement)
    run.finish()
    return words.text


def _sealed_before(place: RunFolder, about: Mapping[str, str]) -> str:
    """Remove private files that may be there still, and return the statement, which stays as it is."""
    stated = SealedRun.intact(place.path).stated
    if about and dict(about) != stated.get("about"):
        raise ResumeError(
            f"{str(place.path)!r} is sealed already, and what it states stays as it is: tacita sign takes "
            "--responsible, --contact and --purpose."
        )
    finish_sealed(place.path, stated)
    return tidied(place)
