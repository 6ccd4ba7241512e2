"""Bugs of a run's life in its folder: what binds it to its inputs, and what it leaves behind."""

import hashlib
import json

from tacita.errors import ResumeError
from tacita.runs.run_lifecycle import RunLifecycle
from tests.planted.plant import bug, put

RUN = "tests/runs/test_run_lifecycle.py::"


@bug(caught_by=[RUN + "test_the_tag_shows_no_open_hash_of_the_inputs"])
def inputs_bound_by_an_open_hash():
    """A run is bound to its data by a hash without a key, which lets anybody test a guessed table."""

    def bind(self, parts, inputs=""):
        tag = hashlib.sha256(b"\0".join(parts)).hexdigest()
        path = self.folder.binding
        if path.exists() and json.loads(path.read_bytes())["tag"] != tag:
            raise ResumeError(inputs)
        path.write_text(json.dumps({"tag": tag}))

    put(RunLifecycle, "bind", bind)


@bug(caught_by=[RUN + "test_a_run_is_held_to_what_it_was_started_with"])
def inputs_joined_without_their_bounds():
    """Two lists of inputs whose bytes are the same once joined are taken for one."""
    whole = RunLifecycle.bind
    put(RunLifecycle, "bind", lambda self, parts, *inputs: whole(self, [b"".join(parts)], *inputs))


@bug(caught_by=[RUN + "test_a_sealed_run_has_its_private_files_removed_and_no_more"])
def private_files_of_a_killed_run_stay():
    """A run that was killed after its seal keeps its key and its working folders."""
    put(RunLifecycle, "finish", lambda self: None)
