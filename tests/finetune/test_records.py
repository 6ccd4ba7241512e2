"""Lines are read by their own keys; whatever a line holds, nothing raises, and no other line's record changes."""

import gzip
import json
import tracemalloc

import pytest

import tacita
from tacita.finetune import read_records, records
from tacita.finetune.records import Turn, read_line

GOOD = {
    '{"text": "a"}': ("text", [("assistant", "a")]),
    '{"prompt": "a", "completion": "b", "text": "c"}': ("pair", [("user", "a"), ("assistant", "b")]),
    '{"prompt": "a", "text": "c"}': ("text", [("assistant", "c")]),
    '{"messages": [{"role": "user", "content": "a"}], "text": "c"}': ("messages", [("user", "a")]),
    '{"text": "\\ud83d\\ude00", "other": [1, {"x": null}]}': ("text", [("assistant", "\N{GRINNING FACE}")]),
    '\ufeff{"text": "a"}\r': ("text", [("assistant", "a")]),
    '{"text": "a", "text": "b"}': ("text", [("assistant", "b")]),
}
HOSTILE = [
    b"", b" ", b"\0", b"null", b"1", b"NaN", b"-1e999", b"true", b'"text"', b"[]", b"[[[[", b"{}", b"{", b"}", b"{]",
    b'{"text"}', b'{"text":}', b'{"text": null}', b'{"text": 1}', b'{"text": ["a"]}', b'{"text": {"a": 1}}',
    b'{"text": "a"} {"text": "b"}', b'{"text": "a"},', b"{'text': 'a'}", b'{"text": "a\n', b'{"text": "\\u12"}',
    b'{"text": "\\ud800"}', b'{"text": "\\udfff a"}', b'{"text": "\xff"}', b'\xff\xfe{"text": "a"}', b'{"Text": "a"}',
    b'{"text ": "a"}', b'{"prompt": "a"}', b'{"completion": "a"}', b'{"prompt": "a", "completion": null}',
    b'{"prompt": 1, "completion": "a"}', b'{"prompt": "\\ud800", "completion": "a"}', b'{"messages": null}',
    b'{"messages": "a", "text": "b"}', b'{"messages": []}', b'{"messages": [1]}', b'{"messages": [[]]}',
    b'{"messages": {"role": "user", "content": "a"}}', b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"content": "a"}]}', b'{"messages": [{"role": "tool", "content": "a"}]}',
    b'{"messages": [{"role": 1, "content": "a"}]}', b'{"messages": [{"role": [], "content": "a"}]}',
    b'{"messages": [{"role": "user", "content": null}]}', b'{"messages": [{"role": "user", "content": ["a"]}]}',
    b'{"messages": [{"role": "' + b"u" * 1000 + b'", "content": "a"}]}',
    b'{"messages": [{"role": "user", "content": "a"}, null]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b"[" * 100_000, b'{"text": ' * 100_000, b'{"a":' + b"9" * 10_000 + b"}", b'{"text": ' + b"9" * 10_000 + b"}",
    b'{"text": "a"' + b"\0" + b"}", b'{"text": "' + b"\0" + b'"}', b'{"text": "a\tb"}', b"\xef\xbb\xbf", b"\xc3(",
]  # fmt: skip


@pytest.mark.parametrize("line", GOOD)
def test_a_line_is_read_by_its_own_keys(line):
    form, turns = GOOD[line]
    assert read_line(line.encode()).record == records.TextRecord(form, tuple(Turn(*turn) for turn in turns))


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_record_contributes_nothing(line):
    assert read_line(line).record is None


@pytest.mark.parametrize(
    ("value", "unit"),
    [('"ann"', "ann"), ("7", "7"), ('"7"', "7"), ("null", None), ("true", None), ("[1]", None), ("1.5", None)],
)
def test_a_person_is_a_text_or_an_integer_and_seven_is_the_text_of_it(value, unit):
    assert read_line(f'{{"text": "a", "who": {value}}}'.encode(), "who").unit == unit
    assert read_line(b'{"text": "a"}', "who").unit is None


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_line_keeps_its_place(name, ending, tmp_path):
    data = ('{"text": "a"}\n\nx\n{"text": "b"}' + ending).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = [line.record for line in read_records(tmp_path / name)]
    assert [None if one is None else one.turns[0].content for one in found] == ["a", None, None, "b"]


def test_a_line_that_is_too_long_is_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST", 20)
    monkeypatch.setattr("tacita.tables.csv_lines.BLOCK", 7)
    lines = [json.dumps({"text": "a" * length}) for length in (8, 100, 9, 3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = [line.record for line in read_records(tmp_path / "a.jsonl")]
    assert [one and len(one.turns[0].content) for one in found] == [8, None, None, 3]  # with its quotes and brackets


def test_a_broken_archive_is_refused(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(tacita.DataStructureError, match="is it gzip, and whole"):
        list(read_records(tmp_path / "a.jsonl.gz"))


def test_the_longest_line_takes_little_memory_to_read():
    line = b'{"text": "a", "x": [' + b"[]," * ((records.LONGEST - 30) // 3) + b"[]]}"
    assert len(line) <= records.LONGEST
    tracemalloc.start()
    try:
        assert read_line(line).record is not None
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
