"""``tacita federate``: federated clients that send clipped and noisy messages, simulated or for real."""

from typing import Annotated

from cyclopts import App, Parameter

from tacita.cli.federate_real import add_to
from tacita.cli.outputs import check_folder, say_written
from tacita.cli.working import Working

HELP = """Train over clients that send noisy messages, simulated or for real.

Example: tacita federate simulate federation.toml
"""


def simulate(config: str, /, *, quiet: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Run the simulation that a TOML file describes, and print its privacy statement; docs/federated.md has the file.

    Run it again to continue a simulation that was interrupted.

    Example: tacita federate simulate federation.toml

    Args:
        config: The TOML file.
        quiet: Show no progress.
    """
    from tacita.federated.settings import read_settings
    from tacita.federated.simulated_run import run_simulation

    settings = read_settings(config)
    check_folder("output", settings.output)
    with Working("federated rounds", quiet=quiet) as working:
        text = run_simulation(settings, lambda share: working.show("federated rounds", share))
    print(text)
    say_written(settings.output)
    return 0


APP = App(name="federate", help=HELP, help_epilogue="", help_format="plaintext")
APP.command(simulate)
add_to(APP)
