"""Files on systems other than this one: what is asked of them, and what is not."""

import os
from types import SimpleNamespace

import pytest

from tacita import _files
from tacita._files import flush, flush_folder, replace_durably


class Os:
    """The ``os`` that is seen, with some functions replaced."""

    def __init__(self, **functions):
        self.__dict__.update(functions)

    def __getattr__(self, name):
        return getattr(os, name)


def test_a_mac_is_asked_to_flush_its_drive(tmp_path, monkeypatch) -> None:
    asked, flushed = [], []
    drive = SimpleNamespace(F_FULLFSYNC=51, fcntl=lambda handle, what: asked.append((handle, what)))
    monkeypatch.setattr(_files, "fcntl", drive)
    monkeypatch.setattr(_files, "os", Os(fsync=flushed.append))
    flush(7)
    assert (asked, flushed) == ([(7, 51)], [])

    def unknown(handle, what):
        raise OSError("no such request")

    monkeypatch.setattr(_files, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=unknown))
    flush(7)  # a file system that does not know of it
    monkeypatch.setattr(_files, "fcntl", None)
    flush(8)
    assert flushed == [7, 8]


def test_a_failed_flush_is_an_error_everywhere(monkeypatch) -> None:
    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_files, "fcntl", SimpleNamespace(F_FULLFSYNC=51, fcntl=refuse))
    monkeypatch.setattr(_files, "os", Os(fsync=refuse))
    with pytest.raises(OSError, match="Input/output error"):
        flush(7)


def test_no_folder_is_opened_on_windows(tmp_path, monkeypatch) -> None:
    def refuse(*_):
        raise PermissionError("folders cannot be opened")

    monkeypatch.setattr(_files, "os", Os(open=refuse))
    with pytest.raises(PermissionError):
        flush_folder(tmp_path)
    monkeypatch.setattr(_files, "ON_WINDOWS", True)
    flush_folder(tmp_path)


def test_a_file_that_is_being_read_is_replaced_once_it_is_not(tmp_path, monkeypatch) -> None:
    """Windows refuses as long as a reader has the old file open."""
    path, tries = tmp_path / "file", []

    def replace(one, other):
        tries.append(one)
        if len(tries) < 4:
            raise PermissionError(13, "Access is denied")
        os.replace(one, other)

    monkeypatch.setattr(_files, "os", Os(replace=replace))
    monkeypatch.setattr(_files, "_PAUSE", 0)
    with pytest.raises(PermissionError):
        replace_durably(path, b"elsewhere it is an error at once")
    assert not path.exists()
    monkeypatch.setattr(_files, "ON_WINDOWS", True)
    replace_durably(path, b"new")
    assert path.read_bytes() == b"new"
    tries[:] = []
    monkeypatch.setattr(_files, "_TRIES", 2)
    with pytest.raises(PermissionError):
        replace_durably(path, b"never")
    assert path.read_bytes() == b"new"


def test_line_ends_are_those_that_were_written(tmp_path, monkeypatch) -> None:
    """Files are opened as binary where a system makes a difference."""
    seen = []

    def look(path, flags, *mode):
        seen.append(flags)
        return os.open(path, flags & ~(1 << 30), *mode)

    monkeypatch.setattr(_files, "BINARY", 1 << 30)
    monkeypatch.setattr(_files, "os", Os(open=look))
    replace_durably(tmp_path / "file", b"one\ntwo\n")
    assert seen[0] & 1 << 30
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"
