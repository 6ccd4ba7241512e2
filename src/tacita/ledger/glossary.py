"""The glossary of a statement: one line for every technical term that a reader who is no expert meets in its text."""

TERMS = {  # a word of the statement -> what it means; a term is explained only where it stands in the text
    "Differential privacy": "Differential privacy is a promise about a method: what it releases depends so little on "
    "any one unit that nobody can tell well whether, or how, that unit took part.",
    "epsilon": "Epsilon is the strength of the promise: 0 reveals nothing, and each step up reveals more.",
    "delta": "Delta is the part of the probability for which the promise may fail.",
    "privacy unit": "The privacy unit is whose data is protected as a whole, such as one row or one person.",
    "Neighbours": "Neighbours are two data sets that differ in one unit, and that must not be told apart.",
    "session": "A session is a series of queries for one purpose; a query is one noisy answer computed from the data.",
    "Poisson sampling": "Poisson sampling lets a separate random coin decide whether a record enters a query; the "
    "sample rate is the coin's chance.",
    "Fixed-size sampling": "Fixed-size sampling draws the records of each query anew, always the same number of them.",
    "Disjoint batches": "Disjoint batches put no record into two queries.",
    "Shuffled epochs": "Shuffled epochs put a record into one query of each pass through the data.",
    "amplification": "Amplification is the gain in privacy from nobody knowing which records a query used.",
    "max_contribution": "max_contribution is the most that one record can add to a sum (its length as a vector, the L2 "
    "norm).",
    "max_grad_norm": "max_grad_norm is the clipping threshold: a record's gradient is shortened to this length.",
    "noise_std": "noise_std is the standard deviation of the noise that is added to every entry of a sum.",
    "mu^2": "mu^2 is the square of what one unit can change over noise_std, a measure of what is spent.",
    "blocks": "Blocks are sums that one query releases together.",
    "hidden error": "A hidden error is a correction that a session remembers, adds to later sums and never releases.",
    "residual": "A residual is what clipping cut off a record's gradient; max_residual is the most that one record "
    "adds to the hidden error at a time.",
    "Stable counts": "Stable counts are counts of values that the data itself names; only large ones are released.",
    "failure probability": "The failure probability is the chance of what the noise does not cover; delta includes it.",
    "AboveThreshold": "AboveThreshold releases only whether a value passed a threshold, with noise on both.",
    "sensitivity": "Sensitivity is the most that the data of one unit can change a value.",
    "rho": "rho is the cost of a query in zero-concentrated privacy, a form of differential privacy; costs add up.",
    "hardened": "Hardened noise consists of whole steps of a public grid; the caveats say which attacks that closes.",
    "discrete Gaussian": "Discrete Gaussian noise has whole numbers in place of real ones.",
    "of split": "A split divides the records into parts; a session on one part sees no other records.",
    "share-": "A share is an epsilon and a delta set aside in advance, for sessions whose settings are chosen later.",
    "counted as spent": "Queries are reserved on disk before their noise is drawn, so that a process which stops "
    "suddenly cannot have released more than is counted.",
    "held out": "Rows that are held out take no part in the training, so that the score is about rows which the model "
    "has not seen.",
    "divisor": "The divisor turns a sum over records into a mean; it is public, so that it reveals no count.",
    "private/": "private/ is the folder of a run for what must not leave it; it is removed when the run is finished.",
    "SHA-256": "SHA-256 is a fingerprint of bytes: another content has, in practice, another fingerprint.",
    "seal": "The seal is the last line of a ledger, which holds the fingerprints of statement and files.",
}


def explained(text: str) -> list[str]:
    """Return the meanings of the terms that stand in ``text``, in the order of ``TERMS``.

    Example:
        >>> explained("... 3 blocks")
        ['Blocks are sums that one query releases together.']
    """
    words = " ".join(text.split())
    return [meaning for term, meaning in TERMS.items() if term in words]
