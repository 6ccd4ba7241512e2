"""The table of pitfalls: how private training goes wrong, and what of tacita stands in the way."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pitfall:
    """One row.

    Attributes:
        row: Its number.
        failure: What goes wrong elsewhere.
        answer: What makes it impossible here.
        later: The part that will have it; empty where it exists. Bugs that can be planted now are, even so.
    """

    row: int
    failure: str
    answer: str
    later: str = ""


ITSELF = 45  # tests that cannot fail: what planting is against

SECTIONS = {
    "Sampling and accounting": range(1, 20),
    "Clipping and sensitivity": range(20, 34),
    "Noise, randomness, state": range(34, 53),
    "Found in tacita": range(53, 81),
    "Found later, in tacita and elsewhere": range(81, 103),
}

PITFALLS = [
    Pitfall(
        1,
        "shuffled or fixed batches accounted as Poisson sampling",
        "the sampler states its law, the event follows from the law, and a loader is refused",
    ),
    Pitfall(
        2,
        "fixed-size sampling with a noise multiplier over C, not 2C",
        "events hold noise and contribution; `moved` has the factor 2, once",
    ),
    Pitfall(
        3,
        "two accountants with two conventions for replace-one",
        "one adapter; the Rényi curve is held against the distribution in every cell",
    ),
    Pitfall(
        4,
        "a sample rate inferred from the number of batches",
        "the rate, or the expected size and a public number, is asked for; what is drawn is held against it",
    ),
    Pitfall(5, "queries counted by int(1 / q) in floating point", "rational arithmetic, rounded up"),
    Pitfall(
        6,
        "a divisor that depends on the private number of records: where it changes, so does the scale of the noise, "
        "and a network has enough coordinates to see it (arXiv 2605.15648)",
        "only declared public numbers divide; under add_or_remove_one they are never compared with the data",
    ),
    Pitfall(7, "dividing by the realised batch size", "a sum is released, and divided by a constant afterwards"),
    Pitfall(
        8, "an empty batch crashes, is skipped, or gets no noise", "a query of pure noise with a line like any other"
    ),
    Pitfall(
        9,
        "a rank whose share is empty falls out of step",
        "rank 0's plan drives all ranks; a rank without rows adds zeros, and an exception of one is an error of all",
    ),
    Pitfall(
        10,
        "ranks that draw the same batch, or all of the data",
        "rank 0 draws for all, and each rank reads its rows of that draw; settings and records are compared",
    ),
    Pitfall(
        11,
        "steps that are not counted on some path",
        "noise comes out of `ReleaseGate.release` alone, for what `commit` wrote down; reservations outlive a kill",
    ),
    Pitfall(
        12,
        "an estimate reported as a bound",
        "privacy losses are rounded up, both directions of a pair are composed, and a condition takes the epsilon away",
    ),
    Pitfall(
        13,
        "grids that overflow and print nonsense",
        "a value is finite and checked against its own delta, or an error is raised",
    ),
    Pitfall(
        14,
        "a parameter inverted on its way to an accountant",
        "more noise must give a smaller epsilon, and closed forms must be met",
    ),
    Pitfall(
        15,
        "the unit misread: a row for a person",
        "the unit stands in the ledger; several rows a person have a cap, a sampler and an event of their own",
    ),
    Pitfall(
        16,
        "tuning that nobody pays for",
        "a selection is one session, on disk before its number of runs is drawn; a choice by hand is declared, and "
        "runs on one named data set are flagged",
    ),
    Pitfall(
        17,
        "the best iterate chosen on private data",
        "a choice by results is a private selection, by a score that each run buys",
    ),
    Pitfall(
        18,
        "a default delta, or bounds taken from the data",
        "delta is always asked for; types, bounds and texts are bought with noise from the same ledger",
    ),
    Pitfall(
        19,
        "the classical Gaussian formula where it does not hold, rounds that do not compose",
        "the exact Gaussian; each client has a ledger, and all rounds are in it, asked for or not",
    ),
    Pitfall(
        20,
        "noise for the sum on the mean, or for another sensitivity",
        "the estimator states the sensitivity, the mechanism multiplies by it, and the ledger holds both",
    ),
    Pitfall(
        21,
        "clipping averages of groups of samples",
        "weights are for samples; wrappers that add gradients up first are refused",
    ),
    Pitfall(
        22,
        "noise or threshold that change with the physical batch",
        "noise is added once, above all chunks; any physical batch gives the same release, up to rounding and, with "
        "dropout, to masks that each draws for itself",
    ),
    Pitfall(
        23,
        "adaptive thresholds: a query not counted, a wrong sensitivity or sign",
        "thresholds are settings; one that follows gradients or clients' updates is a function of noisy counts, "
        "which are part of the same query",
    ),
    Pitfall(
        24,
        "batch normalisation and other layers that mix samples or remember them",
        "every module is scanned, frozen ones too, and the model is tried on synthetic rows, in content and number",
    ),
    Pitfall(
        25,
        "a NaN that poisons the sum, or passes unclipped",
        "a norm that is not finite has weight 0, and weight 0 is absence, not a factor",
    ),
    Pitfall(
        26,
        "norms, sums or noise in half precision",
        "norms in float64, sums and noise in float32 or better, clip factors rounded down",
    ),
    Pitfall(
        27,
        "parameters trained outside the mechanism, or left out in silence",
        "what is not updated after the first step is named; the set of parameters is fixed",
    ),
    Pitfall(
        28, "tied parameters counted twice, or half", "a parameter has one name, and the norm of all its uses together"
    ),
    Pitfall(
        29, "norms of an earlier step kept where a layer is not used", "what a pass records lives as long as the pass"
    ),
    Pitfall(30, "a gradient used again because nobody cleared it", "`backward` assigns"),
    Pitfall(31, "weights of an aggregation left out of its sensitivity", "weights are taken into [0, 1]"),
    Pitfall(
        32,
        "a cohort smaller than the noise was made for",
        "the noise follows from the plan alone: a client's from its own, a trusted server's whoever takes part",
    ),
    Pitfall(
        33,
        "a mean loss, or one divided by a count over the batch",
        "one loss a sample is asked for, and tried on synthetic rows",
    ),
    Pitfall(
        34,
        "the same noise twice: per parameter, round, session, or after a resume",
        "a stream for each generation of the key, session, query, purpose and block; the key moves on one way",
    ),
    Pitfall(35, "keys of 31 bits, user seeds", "256 bits of the system; a seeded run says that it is not private"),
    Pitfall(
        36,
        "noise from every rank, or from none",
        "rank 0 alone has the key; it adds the noise once, or lends the others one query's, a range of it to each",
    ),
    Pitfall(
        37,
        "noise of the full shape on each shard",
        "each rank draws the range of its own shards; all ranks check that the ranges tile every parameter",
    ),
    Pitfall(
        38,
        "attacks on floating-point noise",
        "noise of whole steps with its exact law, on request; the statement says what is closed and what is not",
    ),
    Pitfall(
        39,
        "a floating-point sum that exceeds its sensitivity",
        "weights leave room for every rounding of a contribution; hardened, whole steps are summed exactly and each "
        "record computed alone, or the rounding of a float sum is bounded and in the sensitivity",
    ),
    Pitfall(40, "a secure mode that nobody can install", "no mode: every run is keyed by the system"),
    Pitfall(
        41,
        "buffers of raw gradients in what is shared",
        "a hidden error is never public state; key and checkpoint are the owner's alone and gone at the end",
    ),
    Pitfall(
        42,
        "diagnostics that leak: norms, losses, an early stop",
        "nothing of the data is printed or in a message; the guarantee is the plan's",
    ),
    Pitfall(
        43,
        "a resume that starts the sampler again, or repeats its noise",
        "what was released is redone bit for bit, what is new has a new key; ledger, checkpoint, key survive a kill",
    ),
    Pitfall(44, "checkpoints loaded by pickle", "safetensors and JSON, nothing else"),
    Pitfall(
        45,
        "tests that cannot fail",
        "this table: every bug below is planted and must be seen, and the same tests pass without it",
    ),
    Pitfall(46, "an epsilon without a mechanism", "a statement is made from a ledger"),
    Pitfall(
        47,
        "ghost norms that cancel, so that a record is not clipped",
        "norms are upper bounds, and a Gram norm that may have cancelled is computed again",
    ),
    Pitfall(
        48,
        "a query redone with fresh noise and no charge",
        "a redo is identical, or takes the next unused number with its batch, noise and charge, or is refused",
    ),
    Pitfall(
        49,
        "one direction of a fixed-size pair composed with itself",
        "the pair whose divergence is the envelope of both directions, and one direction alone is caught",
    ),
    Pitfall(
        50,
        "parsers that quote a row",
        "cells are strings until a public or bought type says otherwise; no parser's message is shown",
    ),
    Pitfall(
        51,
        "records grouped by their position in the batch",
        "an engine labels records by their own index, and a median of means groups them by it",
    ),
    Pitfall(
        52,
        "an in-place operation that hides a use of a layer",
        "uses are counted in the graph, and a fast engine is tried against the loop first",
    ),
    Pitfall(
        53,
        "a forward pass that writes parameters (an embedding with max_norm, a frozen counter)",
        "parameters and buffers are compared after the trial, and writing them is refused",
    ),
    Pitfall(
        54,
        "rows reordered by data inside the model, so that hooks credit a gradient to the wrong record",
        "the model's code sees one record, whatever it does",
    ),
    Pitfall(
        55,
        "trials on rows too tame to show that a model mixes records",
        "no trial is a proof: the model's code sees one record",
    ),
    Pitfall(
        56,
        "a layer used twice whose norm has no rounding margin",
        "the margin is part of every rule's contract, used once and three times",
    ),
    Pitfall(57, "modes that change after the check", "a change of any module's mode is checked again"),
    Pitfall(58, "padding to the longest record of the batch", "records are collated one at a time"),
    Pitfall(
        59, "an error message of our own that counts records", "no message holds a number that came out of a batch"
    ),
    Pitfall(60, "two threads on one oracle: one number's noise on two values", "one lock around a query"),
    Pitfall(
        61,
        "splits drawn twice under one name with other fractions or units, taken for disjoint",
        "the drawing's tag covers all it depends on; fractions of one drawing add up to at most 1",
    ),
    Pitfall(62, "splits by unit under replace_one, whose sizes follow the names of persons", "refused"),
    Pitfall(63, "the same row several times in the records of an oracle", "refused"),
    Pitfall(
        64,
        "one key file for two ledgers: the same noise on two releases",
        "a key serves one ledger, and its streams are named after that ledger",
    ),
    Pitfall(
        65,
        "a ledger that does not bind what it paid for",
        "a sealing line holds the hashes of model, preprocessing, configuration and statement",
    ),
    Pitfall(
        66,
        "a held-out score that leaves out rows whose label was not bought",
        "such a row counts as wrong; the stated error covers sampling and noise",
    ),
    Pitfall(
        67,
        "a task, a type, a class guessed from a noisy count and not said",
        "decided by a public rule, said where it is decided, and overridable",
    ),
    Pitfall(
        68,
        "the low bits of a record's companions",
        "records computed alone, or the weaker claim by name",
        later="the threat model",
    ),
    Pitfall(
        69,
        "a state whose two worlds differ rounds differently in every later query",
        "hidden sums stay float64 until the noise is in them",
    ),
    Pitfall(
        70,
        "an interruption between the payment and the change of state loses a step",
        "pay and remember, both or neither",
    ),
    Pitfall(
        71,
        "a session resumed under another key deals one-pass batches anew",
        "a checkpoint holds a keyed tag of the session's key",
    ),
    Pitfall(72, "a working folder continued under another budget", "a folder is bound to its settings"),
    Pitfall(73, "the winner of several private runs is scored too well", "said in the statement"),
    Pitfall(
        74,
        "reservation sizes that follow measured time, or that charge a client for a thousand rounds",
        "sizes are public; 1 for clients",
    ),
    Pitfall(75, "augmentation tied to the position in the batch", "seeds by record"),
    Pitfall(
        76,
        "Rényi curves that underflow to 0, or are infinite at fractional orders",
        "own quadrature for every order",
    ),
    Pitfall(
        77,
        "a lost message biases Clip21 for good",
        "the state moves when the server has acknowledged",
    ),
    Pitfall(
        78,
        "a server that refuses every private message as too long",
        "a public bound with the noise in it",
    ),
    Pitfall(
        79,
        "exceptions of a client that travel to the server word for word",
        "everything is caught, a constant is answered",
    ),
    Pitfall(
        80,
        "objective perturbation without an exact minimiser",
        "not in use: fits release noisy sums, and no proof needs a minimiser",
        later="objective perturbation",
    ),
    Pitfall(
        81,
        "features or masks made in the forward pass with a fixed seed: each place in the batch has its own slice",
        "a draw that no record enters, or that follows a seed, is refused; the loop draws by record",
    ),
    Pitfall(
        82,
        "generators of Python, of NumPy and of one's own: public, shared by records, and counting them",
        "one law for coins: seeded from the query's secret and put back, or refused",
    ),
    Pitfall(
        83,
        "modes around a query, debug_unwrap, subclasses as frozen weights: the physical batch in the user's hands",
        "the model's code never meets a record: a query runs operators that were written down before, with all modes "
        "off; a tensor subclass among the weights is refused",
    ),
    Pitfall(
        84,
        "operators written in Python that keep state",
        "PyTorch's own operators, or declared ones",
    ),
    Pitfall(
        85,
        "a refused query, or an interrupted one, leaves something behind in the model, the oracle or the ledger",
        "user code gets copies, which are dropped; a line that was begun is finished or taken back",
    ),
    Pitfall(
        88,
        "a Poisson draw for each micro-batch of a step, charged as one draw at the rate of the step (8.0 claimed, 9.5 "
        "to 10.5 true)",
        "a query is one draw, refused if it names a row twice, and physical batches are parts of it; several releases "
        "of one step are several queries",
    ),
    Pitfall(
        94,
        "off the CPU no fingerprint, so nothing is redone: runs pay twice, or cannot go on",
        "values are copied and fingerprinted; the suite runs on a simulated device, too",
    ),
    Pitfall(
        98,
        "a loss that is a mean over the tokens of the batch: each term has the others' number of tokens below it",
        "one loss a sample is asked for, and the model's code sees one record",
    ),
    Pitfall(
        99,
        "a second pass of the model beside the engine (for a Hessian, a score) runs its code on whole batches of "
        "records: one of them moved a private value by 247 times the stated sensitivity, and a row was kept",
        "the products of each record's Hessian are a program; in the loop, code meets one record at a time, on copies",
    ),
    Pitfall(
        100,
        "amplification by a secret batch that others know, or whose coins are not uniform; an epoch that the plan ends "
        "within, or another relation, charged too little",
        "the law says whose batches are secret, and under which relations; a sampler's own coins are held to their "
        "law, and an attacker knows them wherever the claim does not need them",
    ),
    Pitfall(
        101,
        "a largest batch charged as Poisson sampling without one, or for a number of records that nobody stated",
        "a record that takes the place of another moves the sum by 2C: the event mixes both pairs, and states how many "
        "records there may be",
    ),
    Pitfall(
        102,
        "correlated noise charged for one draw of a record, or as independent noise; a record that is in two queries "
        "in a row, where the noise has just been taken back; a record that changes its group; other noise taken back",
        "the event adds up a record's movements over all its turns, and takes cyclic and disjoint batches alone, whose "
        "samplers are held to their law; each query's noise has a key of its own, and audits undo the correlation",
    ),
]
