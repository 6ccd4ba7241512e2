"""Bugs of a run's life in its folder: what binds it to its inputs, and what it leaves behind."""

import hashlib
import json

from tacita.errors import ResumeError
from tacita.training.resumable_run import INPUT, ResumableRun
from tests.planted.plant import bug, put

RUN = "tests/training/test_resumable_run.py::"


@bug(caught_by=[RUN + "test_the_tag_shows_no_open_hash_of_the_inputs"])
def inputs_bound_by_an_open_hash():
    """A run is bound to its data by a hash without a key, which lets anybody test a guessed table."""

    def bind(self, parts, names):
        tag = hashlib.sha256(b"\0".join(parts)).hexdigest()
        path = self.folder.private / INPUT
        if path.exists() and json.loads(path.read_bytes())["tag"] != tag:
            raise ResumeError(names)
        path.write_text(json.dumps({"tag": tag}))

    put(ResumableRun, "bind", bind)


@bug(caught_by=[RUN + "test_inputs_are_held_against_those_of_the_start"])
def inputs_joined_without_their_bounds():
    """Two lists of inputs whose bytes are the same once joined are taken for one."""
    whole = ResumableRun.bind
    put(ResumableRun, "bind", lambda self, parts, names: whole(self, [b"".join(parts)], names))


@bug(caught_by=[RUN + "test_a_sealed_run_has_its_private_files_removed_and_no_more"])
def private_files_of_a_killed_run_stay():
    """A run that was killed after its seal keeps its key and its working folders."""
    put(ResumableRun, "finish", lambda self: None)
