"""Paths of results: what is refused before the work, and what is not."""

import os
from pathlib import Path

import pytest

from tacita.cli.outputs import check_figure, check_file, check_folder, check_page, write_json


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()


@pytest.mark.parametrize("path", [None, "new.json", "file", "folder/new.json", Path("folder/new.json")])
def test_a_file_that_can_be_written(path):
    check_file("json", path)
    assert not Path("new.json").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere/a.json", "json must be in a folder that exists, got 'nowhere/a.json': make '.*nowhere' first"),
        ("file/a.json", "json must be in a folder that exists"),
        ("folder", "json must be a file, got the folder 'folder'"),
    ],
)
def test_a_file_that_cannot(path, says):
    with pytest.raises(ValueError, match=says):
        check_file("json", path)


def test_a_folder_that_may_not_be_written(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ValueError, match="json must be in a folder that you may write"):
        check_file("json", "a.json")
    with pytest.raises(ValueError, match="output must be a folder that you may write"):
        check_folder("output", "folder/new")


def test_pictures_have_an_ending():
    pytest.importorskip("matplotlib")
    for path in (None, "a.png", "a.PDF", Path("a.svg")):
        check_figure("plot", path)
    for path in ("a", "a.jpg", "png"):
        with pytest.raises(ValueError, match=r"plot must end in .png, .svg or .pdf"):
            check_figure("plot", path)
    with pytest.raises(ValueError, match="plot must be in a folder that exists"):
        check_figure("plot", "nowhere/a.png")


def test_pages_end_like_pages():
    for path in (None, "a.html", "a.HTM", Path("folder/a.html")):
        check_page("output", path)
    for path in ("a", "a.pdf", "html"):
        with pytest.raises(ValueError, match=r"output must end in .html or .htm, got"):
            check_page("output", path)
    for path in ("nowhere/a.html", "folder"):
        with pytest.raises(ValueError, match=r"output must be (in a folder that exists|a file)"):
            check_page("output", path)


def test_folders_are_made_later_and_files_are_none():
    for path in (None, "folder", "new", "new/er", Path("new")):
        check_folder("output", path)
    assert not Path("new").exists()
    for path in ("file", "file/new"):
        with pytest.raises(ValueError, match="output must be a folder"):
            check_folder("output", path)


def test_what_is_written_is_whole_or_an_error():
    write_json("a.json", {"one": 1})
    assert Path("a.json").read_text() == '{\n  "one": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json("a.json", {"one": float("nan")})
    assert Path("a.json").read_text() == '{\n  "one": 1\n}\n'
