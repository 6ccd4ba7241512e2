"""Who is protected from whom, in words and numbers, for the statement of a federation.

A ledger holds one guarantee. Under local privacy that is the one against the server, which sees every message; whoever
sees the models alone learns less, by a second guarantee that follows from the same noise. Proof:
docs/derivations/clip21.md, section 5.
"""

import math

from tacita.accounting import FullBatchLaw, Spend, epsilon, gaussian_sum_event
from tacita.federated.privacy import LocalPrivacy, RecordPrivacy, TrustedServer
from tacita.federated.round_noise import loudness
from tacita.federated.simulation import Simulation
from tacita.ledger.text_lines import rounded_up

ONE_MACHINE = (
    "This federation was simulated on one machine, which saw all data. The guarantee is about the released models, and "
    "about what a real server would have seen in place of the machine."
)
DRAWN = (
    "The server draws who takes part in a round, and shows it to nobody. It adds up no other client's message; a "
    "client whose message was lost waits for its next turn."
)
SECURE_AGGREGATION = (
    "Nothing is stated for secure aggregation: it rounds every message to integers, and a sum of rounded messages is "
    "no Gaussian sum. With it the guarantee against the server holds as stated, and no smaller epsilon is claimed."
)


def models_epsilon(simulation: Simulation, delta: float) -> float | None:
    r"""Return an epsilon for whoever sees the models alone, if every client adds noise; ``None`` if none is proved.

    The models are functions of the noisy sums. With k messages in every round the noise of a sum is :math:`s \sqrt k`,
    so that T rounds are one Gaussian query of :math:`\mu = m C \sqrt T / (s \sqrt k)`, m = 1, and 2 if a client is
    replaced. This needs a fixed number of messages: under add_or_remove_one the number of clients is a secret that the
    noise would tell, and a lost message takes its noise along. Nor is it proved where clients feed back their own
    noise, which the sums do not fix.

    Args:
        simulation: Under :class:`~tacita.federated.LocalPrivacy`; for any other privacy the answer is ``None``.
        delta: In (0, 1).
    """
    relation, privacy = simulation.ledger.neighboring_relation, simulation.privacy
    if not isinstance(privacy, LocalPrivacy) or relation == "add_or_remove_one" or simulation.loss_rate:
        return None
    if simulation.algorithm.feeds_back:  # messages depend on noises that the sums do not fix
        return None
    asked = privacy.expected_clients(simulation.problem.num_clients)
    shapes = simulation.algorithm.message_shapes(simulation.problem.shapes)
    bounds = simulation.algorithm.clipper.max_contribution(shapes)
    noise = tuple(simulation.noise_std[block] * math.sqrt(asked) for block in bounds)
    if not all(noise):
        return None
    event = gaussian_sum_event(FullBatchLaw(), tuple(bounds.values()), noise, relation)
    return epsilon([Spend(event, simulation.rounds)], delta).epsilon


def _loudness(simulation: Simulation) -> list[str]:
    """Say how loud a round is, unless later rounds take back part of its noise."""
    if simulation.mechanism.lags:
        return []
    shapes = simulation.algorithm.message_shapes(simulation.problem.shapes)
    clipper = simulation.algorithm.clipper
    sizes = {block: sum(shapes[name].numel() for name in names) for block, names in clipper.groups(shapes).items()}
    messages = simulation.privacy.expected_clients(simulation.problem.num_clients)
    trusted = isinstance(simulation.privacy, TrustedServer)
    return [loudness(simulation.noise_std, clipper.max_contribution(shapes), sizes, messages, of_sum=trusted)]


def protected_from(simulation: Simulation, delta: float) -> list[str]:
    """Return sentences for the statement: against whom the ledger's guarantee holds, and how loud a round is."""
    privacy = simulation.privacy
    if not isinstance(privacy, LocalPrivacy | RecordPrivacy):
        drawn = isinstance(privacy, TrustedServer) and privacy.draws(simulation.problem.num_clients) is not None
        return [
            "The guarantee is against whoever sees the released models. The server is trusted: it sees every message "
            "without noise, and nothing is guaranteed against it.",
            *([DRAWN] if drawn else []),
            *_loudness(simulation),
            ONE_MACHINE,
        ]
    unit = "all data of a client" if isinstance(privacy, LocalPrivacy) else "one record of a client"
    words = [f"The guarantee is against the server and whoever sees the messages of the clients: {unit} is protected."]
    central = models_epsilon(simulation, delta)
    if central is not None:
        words.append(
            f"Against whoever sees the released models alone, of this one session, epsilon <= {rounded_up(central)} "
            "holds at the same delta, because the noises of all messages of a round add up. It takes a server that "
            "shows no message to anybody."
        )
    return [*words, *_loudness(simulation), SECURE_AGGREGATION, ONE_MACHINE]
