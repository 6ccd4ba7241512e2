"""Chat templates: which tokens of a conversation the assistant says. Public: a template is tested before any record.

The text of a conversation up to a turn must be a beginning of its text up to the next turn. Then what the assistant
says is what its turn adds, and each piece is encoded apart from the others, so that no token spans two turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacita.finetune.records import Turn

SYNTHETIC = (
    Turn("user", "Which letter follows a?"),
    Turn("assistant", "b."),
    Turn("user", "And then?"),
    Turn("assistant", "Then comes c."),
)
NO_TEMPLATE = (
    "the tokenizer has no chat template, and records may hold messages: give --template FILE, or --no-messages (such "
    "records then contribute nothing)"
)


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a tokenizer, which was tested on a synthetic conversation.

    Raises:
        ValueError: The tokenizer has no template; the template fails; what it writes of one turn depends on a later
            one; or tokens span two turns.
    """

    tokenizer: Any

    def __post_init__(self) -> None:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ValueError(f"{NO_TEMPLATE}.")
        try:
            pieces = self.pieces(SYNTHETIC)
        except Exception as error:  # a template is code of its own; nothing private has been read
            raise ValueError(f"the chat template fails on a conversation of two questions: {error}.") from error
        if pieces is None:
            raise ValueError(
                "the chat template is not additive (a later turn changes how an earlier one is written), so that "
                "the assistant's tokens cannot be found: give another with --template FILE, or --no-messages."
            )
        apart = [token for text, _ in pieces for token in self.tokens(text)]
        if apart != self.tokens("".join(text for text, _ in pieces)):
            raise ValueError(
                "tokens of the chat template span two turns, so that the assistant's cannot be told apart: give a "
                "template with a mark of its own token between turns (--template FILE), or --no-messages."
            )

    def pieces(self, turns: Sequence[Turn]) -> list[tuple[str, bool]] | None:
        """Return the text of a conversation up to its last answer, in pieces, and whether the assistant says each.

        Returns:
            ``None`` if the template writes an earlier turn in another way when a later one is there.
        """
        found: list[tuple[str, bool]] = []
        done = ""
        for number, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            for end, asks in ((number, True), (number + 1, False)):
                text = self._text(turns[:end], asks)
                if not text.startswith(done):
                    return None
                found.append((text[len(done) :], not asks))
                done = text
        return found

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a piece, in which the template's own marks are tokens of their own."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _text(self, turns: Sequence[Turn], asks: bool) -> str:
        said = [{"role": turn.role, "content": turn.content} for turn in turns]
        return self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=asks)
