"""Scores of generated text against several references: BLEU, NIST, ROUGE-L and CIDEr, on words.

Each is the published formula on words split at white space, without stemming or synonyms. METEOR, which needs both, is
not here. Scripts that split words differently give other numbers.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

Words = Sequence[str]
References = Sequence[Words]
ORDERS, NIST_ORDERS = 4, 5
BETA = 1.2  # weight of recall in ROUGE-L's F measure
NIST_PENALTY = math.log(0.5) / math.log(1.5) ** 2  # so that the penalty is 1/2 at two thirds of the length


def ngrams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    """Return how often each sequence of ``order`` words occurs."""
    return Counter(tuple(words[place : place + order]) for place in range(len(words) - order + 1))


def bleu(generated: Sequence[Words], references: Sequence[References]) -> float:
    r"""Return corpus BLEU-4, :math:`\min(1, e^{1 - r/c}) \prod_n p_n^{1/4}`, in [0, 1]; 0 if some precision is 0.

    r sums, for each text, the length of the reference nearest in length (the shorter one of two).
    Source: Papineni et al. (2002), sections 2.1 and 2.3.

    Example:
        >>> bleu([["a", "b", "c", "d"]], [[["a", "b", "c", "d"]]])
        1.0
    """
    matched, made = [0] * ORDERS, [0] * ORDERS
    length = wanted = 0
    for words, known in zip(generated, references, strict=True):
        length += len(words)
        wanted += min((abs(len(one) - len(words)), len(one)) for one in known)[1]
        for order in range(1, ORDERS + 1):
            mine, allowed = ngrams(words, order), Counter()
            for one in known:
                allowed |= ngrams(one, order)
            matched[order - 1] += (mine & allowed).total()
            made[order - 1] += mine.total()
    if not all(matched):
        return 0.0
    mean = sum(math.log(hit / of) for hit, of in zip(matched, made, strict=True)) / ORDERS
    return math.exp(min(0.0, 1 - wanted / length) + mean)


def nist(generated: Sequence[Words], references: Sequence[References]) -> float:
    r"""Return the NIST-5 score: matched n-grams weighted by their information, with its penalty for short texts.

    The information of a sequence is :math:`\log_2` of the count of its first n - 1 words over that of all n, in all
    references.
    Source: Doddington (2002), section 4.

    Example:
        >>> nist([["a", "b"]], [[["a", "b"], ["b", "c"]]])
        1.5
    """
    counts = [Counter[tuple[str, ...]]() for _ in range(NIST_ORDERS + 1)]
    for known in references:
        for one in known:
            for order in range(1, NIST_ORDERS + 1):
                counts[order] += ngrams(one, order)
    counts[0][()] = counts[1].total()
    length, wanted = 0, 0.0
    sums, made = [0.0] * (NIST_ORDERS + 1), [0] * (NIST_ORDERS + 1)
    for words, known in zip(generated, references, strict=True):
        length += len(words)
        wanted += sum(map(len, known)) / len(known)
        for order in range(1, NIST_ORDERS + 1):
            mine, allowed = ngrams(words, order), Counter()
            for one in known:
                allowed |= ngrams(one, order)
            made[order] += mine.total()
            sums[order] += sum(
                count * math.log2(counts[order - 1][gram[:-1]] / counts[order][gram])
                for gram, count in (mine & allowed).items()
            )
    score = sum(total / of for total, of in zip(sums, made, strict=True) if of)
    short = min(1.0, length / wanted)
    return score * math.exp(NIST_PENALTY * math.log(short) ** 2) if short > 0 else 0.0


def rouge_l(generated: Sequence[Words], references: Sequence[References]) -> float:
    r"""Return the mean of :math:`(1 + \beta^2) P R / (R + \beta^2 P)`, with the best precision and recall of a text.

    P and R divide the longest common subsequence by the length of the text and of the reference; beta is 1.2.
    Source: Lin (2004), section 3.1, with the maximum over references of its section 2.

    Example:
        >>> rouge_l([["a", "c"]], [[["a", "b", "c", "d"]]])  # P = 1, R = 1/2
        0.6288659793814433
    """
    found = []
    for words, known in zip(generated, references, strict=True):
        common = [_common(words, one) for one in known]
        precision = max(common) / len(words) if words else 0.0
        recall = max(hit / len(one) for hit, one in zip(common, known, strict=True))
        below = recall + BETA**2 * precision
        found.append((1 + BETA**2) * precision * recall / below if below else 0.0)
    return sum(found) / len(found)


def cider(generated: Sequence[Words], references: Sequence[References]) -> float:
    r"""Return CIDEr: ten times the mean cosine between tf-idf vectors of n-grams, over n = 1 to 4 and the references.

    The document frequency of a sequence is the number of texts whose references have it.
    Source: Vedantam et al. (2015), equations (1) to (3), with the factor of ten of its published code.

    Example:
        >>> round(cider([["a", "b"], ["c", "d"]], [[["a", "b"]], [["c", "d"]]]), 6)  # orders 3 and 4 have no sequence
        5.0
    """
    total = 0.0
    for order in range(1, ORDERS + 1):
        seen = Counter(gram for known in references for gram in set().union(*(ngrams(one, order) for one in known)))
        rare = {gram: math.log(len(references) / count) for gram, count in seen.items()}
        unseen = math.log(len(references))
        for words, known in zip(generated, references, strict=True):
            mine = _weights(ngrams(words, order), rare, unseen)
            total += sum(_cosine(mine, _weights(ngrams(one, order), rare, unseen)) for one in known) / len(known)
    return 10 * total / ORDERS / len(generated)


def _weights(
    counts: Counter[tuple[str, ...]], rare: Mapping[tuple[str, ...], float], unseen: float
) -> dict[tuple[str, ...], float]:
    made = counts.total()
    return {gram: count / made * rare.get(gram, unseen) for gram, count in counts.items()}


def _cosine(one: Mapping[tuple[str, ...], float], other: Mapping[tuple[str, ...], float]) -> float:
    product = sum(weight * other.get(gram, 0.0) for gram, weight in one.items())
    norms = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / norms if norms else 0.0


def _common(first: Words, second: Words) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        left = 0
        for place, other in enumerate(second, start=1):
            above = row[place]
            row[place] = left + 1 if word == other else max(above, row[place - 1])
            left = above
    return row[-1]
