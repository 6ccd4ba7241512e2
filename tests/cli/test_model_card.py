"""The model card of a run: the statement's facts in the order of a card, and no word more."""

import json
import re
from pathlib import Path

from tacita.tables import train_table

ABOUT = {"responsible": "Ward *analytics*", "contact": "privacy@example.org", "purpose": "to plan beds"}
SECTIONS = [
    "Model details",
    "Intended use",
    "Training data",
    "Privacy",
    "Evaluation",
    "Caveats and recommendations",
    "What the guarantee does not cover",
    "What is not known",
    "Files",
]


def test_a_card_says_what_the_statement_says(settings, table, tacita_command):
    run = train_table(settings(about=ABOUT, dataset_name="patients"))
    done = tacita_command("card", "run")
    assert done.code == 0
    assert [line[3:] for line in done.out.splitlines() if line.startswith("## ")] == SECTIONS
    assert "**Made by**: Ward \\*analytics\\*" in done.out
    assert "**Recipients**: not given" in done.out
    assert f"**Verdict**: {run.fields['verdict']}" in done.out
    assert "- **Data set**: patients\n" in done.out
    assert f"accuracy: {run.fields['holdout_score']['value']:.3f}" in done.out
    Path("run/model.safetensors").write_bytes(b"x")
    changed = tacita_command("card", "run")
    assert changed.code == 1
    assert "**Verdict**: changed" in changed.out
    assert "**Epsilon**: not verified" in changed.out
    assert [line for line in changed.out.splitlines() if line.startswith("## ")] == ["## Privacy"]


MANGLED = {
    "caveats": [None, True, 7, {}, [1, "2", None]],
    "neighboring_relation": [[], {}, 1],
    "columns": [[], {"number": 3}],
    "dataset": [{"other_runs": "1", "list": None}],
    "files_policy": [{"may_leave": 1, "never": 2}],
    "not_anonymised": [7, {"a": 1}],
}


def test_a_card_of_a_mangled_run_has_the_verdict_that_show_has(settings, table, tacita_command):
    run = train_table(settings())
    path = Path("run/statement.json")
    sealed = path.read_bytes()
    for name, values in MANGLED.items():
        for value in values:
            path.write_text(json.dumps({**run.fields, name: value}, indent=2) + "\n")
            check_like_show(tacita_command, (name, value))
    path.write_bytes(sealed)
    for file in ("statement.json", "ledger.jsonl", "ledger.head.json", "config.toml", "model.safetensors"):
        whole = Path("run", file).read_bytes()
        for data in (whole[: len(whole) // 2], b"", b"null\n"):
            Path("run", file).write_bytes(data)
            check_like_show(tacita_command, (file, data[:9]))
        Path("run", file).write_bytes(whole)
    assert tacita_command("card", "run").code == tacita_command("show", "run").code == 0


def check_like_show(tacita_command, of):
    card, show = tacita_command("card", "run"), tacita_command("show", "run")
    said = re.findall(r"^verdict +(.*)$", show.out, re.M)
    assert re.findall(r"\*\*Verdict\*\*: (.*)", card.out) == said, of
    assert (card.code, bool(said)) in ((1, True), (2, False)), of
