"""Chat templates: which tokens of a conversation the assistant says. Public: a template is tested before any record.

A template may mark what the assistant says ({% generation %} to {% endgeneration %}). Without such marks the text of a
conversation up to a turn must be a beginning of its text up to the next turn: what the assistant says is then what its
turn adds. Each piece is encoded apart from the others, so that no token spans two turns.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from tacita.finetune.plain_templates import MARK, rendered
from tacita.finetune.records import Turn

SYNTHETIC, OTHER = (
    tuple(Turn(role, text) for role, text in zip(("user", "assistant") * 2, texts, strict=True))
    for texts in (
        ("Which letter follows a?", "b.", "And then?", "Then comes c."),
        ("What is 2 + 2?", "It is 4.", "Plus 3?", "7."),
    )
)
GENERATION = re.compile(r"\{%([-+]?)\s*(?:end)?generation\s*([-+]?)%\}")
TIMES, OWN = 8, 2**16  # a template may write each letter eight times (JSON has six for one), and so many of its own
WAY_OUT = (
    "give another with --template FILE, or --no-messages, and records with messages contribute nothing "
    "(in Python: set tokenizer.chat_template, or chat=None of TokenEncoder)"
)


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, which was tested on two synthetic conversations.

    Raises:
        ValueError: The tokenizer has no template; the template fails; what it writes of one turn depends on a later
            one, and it has no generation marks; or not on what was said; or tokens span two turns.
    """

    tokenizer: Any

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ValueError(f"the tokenizer has no chat template, and records may hold messages: {WAY_OUT}.")
        try:
            pieces, others = self.pieces(SYNTHETIC), self.pieces(OTHER)
        except Exception as error:  # a template is code of its own; nothing private has been read
            why = str(error).rstrip(".")
            raise ValueError(
                f"the chat template fails on a conversation of two questions: {why}. Another way: {WAY_OUT}."
            ) from error
        if pieces is None or others is None:
            raise ValueError(
                "the chat template is not additive (a later turn changes how an earlier one is written), so that "
                f"the assistant's tokens cannot be found: use one with generation marks, {WAY_OUT}."
            )
        for (text, said), (other, _) in zip(pieces, others, strict=True):
            if text == other:
                who = "assistant" if said else "user"
                raise ValueError(f"the chat template writes the same whatever the {who} says: {WAY_OUT}.")
        apart = [token for text, _ in pieces for token in self.tokens(text)]
        if apart != self.tokens("".join(text for text, _ in pieces)):
            meet = " | ".join(repr(text[-12:]) for text, _ in pieces[:2])
            raise ValueError(
                "tokens of the chat template span the edge of what the assistant says, so that its own cannot be told "
                f"apart: {meet} of the first answer. A mark that is a token of its own there helps, or a space on the "
                f"other side of the edge: {WAY_OUT}."
            )

    def pieces(self, turns: Sequence[Turn]) -> list[tuple[str, bool]] | None:
        """Return the text of a conversation up to its last answer, in pieces, and whether the assistant says each.

        Returns:
            ``None`` if the template writes an earlier turn in another way when a later one is there, without marks.
        """
        if GENERATION.search(self.tokenizer.get_chat_template()):
            return self._marked(turns)
        found: list[tuple[str, bool]] = []
        done = ""
        for number, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            for end, asks in ((number, True), (number + 1, False)):
                text = "".join(self._written(turns[:end], asks))
                if not text.startswith(done):
                    return None
                found.append((text[len(done) :], not asks and number > 0))  # a first turn has the template's own words
                done = text
        return found

    def _marked(self, turns: Sequence[Turn]) -> list[tuple[str, bool]]:
        """Return the same pieces by the template's generation marks."""
        answered = max((end for end, turn in enumerate(turns, 1) if turn.role == "assistant"), default=0)
        if not answered:
            return []
        pieces = self._written(turns[:answered], False)
        marks = [place for place, piece in enumerate(pieces) if piece is MARK]
        if not marks or len(marks) % 2:
            raise ValueError("its generation marks are around no answer, or open.")
        ends = enumerate(pairwise([0, *marks]))
        return [("".join(pieces[start:end]), number % 2 == 1) for number, (start, end) in ends]

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a piece, in which the template's own marks are tokens of their own."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _written(self, turns: Sequence[Turn], asks: bool) -> list[str]:
        if not turns:  # before a first turn of the assistant; transformers refuses to write nothing
            return []
        said = [{"role": turn.role, "content": turn.content} for turn in turns]
        most = OWN + TIMES * sum(len(turn.content) for turn in turns)
        return written(self.tokenizer, said, asks=asks, most=most)


def written(tokenizer: Any, messages: list, *, asks: bool, most: float = inf) -> list[str]:
    """Return a conversation as the template writes it, in pieces: ``MARK`` is one where a generation mark stands.

    The date is a fixed one: a run that is killed and continued, tomorrow perhaps, reads the same records.
    """
    # White space at a mark is controlled as before.
    template = GENERATION.sub(r"{%\1 if true %}{{ generation_mark }}{% endif \2%}", tokenizer.get_chat_template())
    tokens = getattr(tokenizer, "special_tokens_map", {})
    return rendered(template, messages, asks=asks, tokens=tokens, most=most)
