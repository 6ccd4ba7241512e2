"""The commands ``tacita finetune`` and ``tacita generate``: from private texts to an adapter, and its use."""

import shlex
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tacita._whole_numbers import WHOLE
from tacita.cli.outputs import check_file, exit_code, in_short, say_written
from tacita.cli.train import FLAT, About
from tacita.finetune.settings import Files, FinetuneSettings, RecordSettings

FLAG = Parameter(negative=())
NOTHING_SAID = About()
COOLEST = 0.01  # the lowest temperature: below, numbers overflow, and the likeliest token is as good as certain
UNSEEN = (
    "what contributes nothing is not told here, for it would tell of a record; the holder of the texts sees it by: "
)


def finetune(
    model: Path,
    data: Path,
    /,
    *,
    settings: Annotated[FinetuneSettings, FLAT],
    about: Annotated[About, FLAT] = NOTHING_SAID,
    quiet: Annotated[bool, FLAG] = False,
    dry_run: Annotated[bool, FLAG] = False,
    audit: Annotated[int, FLAG, WHOLE] = 0,
) -> int:
    """Fine-tune a language model on private texts: an adapter that PEFT loads, with its statement, under a seal.

    To continue a run that was stopped, repeat the same command.

    Example: tacita finetune models/gpt2 letters.jsonl --epsilon 8 --delta 1e-6 --output runs/letters

    Args:
        model: Folder of the model, in the format of transformers; nothing is fetched.
        data: The texts: JSON lines with messages, with prompt and completion, or with text; compressed if .gz.
        quiet: Show no progress on standard error.
        dry_run: Print the plan and an estimate of its time; read no record, spend and write nothing.
        audit: In place of the run, audit its settings with so many canaries (200, say) put into DATA, which you declare
            public here: a lower bound of epsilon, and what a model learns of secrets. Exit code 1 if refuted.
    """
    files = Files(model, data, {name: value for name, value in asdict(about).items() if value is not None})
    files.check(settings)
    if dry_run and settings.rows is None:
        raise ValueError(
            "the plan needs rows, a public guess, for its tokens and its time: give --rows, beside --rate if you like."
        )
    from tacita.finetune.text_audit import audit_texts, power_in_words
    from tacita.finetune.text_run import Prepared
    from tacita.finetune.text_run import finetune as run_it
    from tacita.ledger.verdict import verdict

    if dry_run:
        from tacita.finetune.looking import plan_in_words

        prepared = Prepared.of(files, settings)
        print(plan_in_words(prepared, scored=not audit) + (power_in_words(prepared, audit) if audit else ""), end="")
        return 0
    if audit:
        print("DATA is taken for public: the model is thrown away, and nothing is kept.", file=sys.stderr)
        found = audit_texts(files, settings, audit, say=sys.stderr.write, progress=not quiet)
        print(found.text, end="")
        return int(found.audit.verdict == "refuted")
    run = run_it(files, settings, progress=not quiet)
    print(run.statement, end="")
    weighed = verdict(run.fields)
    if not quiet:
        base = f" --base {shlex.quote(str(model))}" if settings.train == "lora" else ""
        say_written(f"{settings.output}; tacita generate {settings.output}{base} --prompt TEXT uses the model")
        if "nothing was learned" in weighed.warnings:
            print(UNSEEN + _check_of(files, settings), file=sys.stderr)
        print(in_short(run.fields), file=sys.stderr)
    return exit_code(weighed)


def _check_of(files: Files, settings: RecordSettings) -> str:
    """Return the command ``tacita check`` with the same options of texts."""
    words = ["tacita", "check", str(files.data), "--model", str(files.model)]
    for one in fields(RecordSettings):
        value, name = getattr(settings, one.name), one.name.replace("_", "-")
        if value != one.default:
            words += [f"--no-{name}"] if value is False else [f"--{name}", str(value)]
    return shlex.join(words)


def generate(
    run: Path,
    /,
    *,
    prompt: str | None = None,
    file: Path | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    base: Path | None = None,
    max_new_tokens: Annotated[int, WHOLE] = 128,
    temperature: float = 0.0,
) -> int:
    """Let a fine-tuned model go on after a prompt. Costs no privacy; prompts are not covered, and may come out.

    A run in which something was changed since it was finished is refused, and so is another base model.

    Example: tacita generate runs/letters --prompt "Dear"

    Args:
        run: Folder of a finished run.
        prompt: The prompt.
        file: JSON lines with a prompt or messages each, in place of --prompt; goes with --output.
        output: File to write: the same lines, with a completion each.
        base: Folder of the base model; by default one of its name here, or one folder down.
        max_new_tokens: Most tokens of an answer.
        temperature: 0 for the likeliest token; above, tokens are drawn.
    """
    from tacita._files import replace_durably
    from tacita.finetune import generation
    from tacita.finetune.records import physical_lines

    if (prompt is None) == (file is None) or (file is None) != (output is None):
        raise ValueError("give --prompt TEXT, or --file FILE with --output FILE.")
    check_file("output", output, (run, file, base))
    if temperature and not COOLEST <= temperature <= 1 / COOLEST:
        raise ValueError(f"temperature must be 0, or from {COOLEST:g} to {1 / COOLEST:g}, got {temperature:g}.")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be >= 1, got {max_new_tokens}.")
    loaded = generation.load(run, base)
    print("prompts are not covered by the guarantee: what is typed in may come out.", file=sys.stderr)
    if prompt is not None:
        said = generation.generate(*loaded, prompt, max_new_tokens=max_new_tokens, temperature=temperature)
        print(said)
        if not said.strip():
            print("the model ended its answer at once: it says nothing after this prompt.", file=sys.stderr)
    elif file is not None and output is not None:
        said = generation.completed(
            *loaded, physical_lines(file), max_new_tokens=max_new_tokens, temperature=temperature
        )
        replace_durably(output, "".join(said).encode())
        say_written(output)
    return 0
