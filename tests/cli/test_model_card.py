"""The model card of a run: the statement's facts in the order of a card, and no word more."""

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
    assert "## Evaluation\n\n- not verified\n" in changed.out
    assert "## Files" not in changed.out
