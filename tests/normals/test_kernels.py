"""Kernels of float32 normals: the bits of the definition, and without a kernel the definition."""

import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import tacita._normals
from tacita._normals import compiled, definition
from tacita._normals.definition import GROUP, LANES
from tacita.random import Key

KEY = bytes(range(7, 39))
CARRY = 2**32 // LANES
RANGES = [(0, 1), (3, 2), (CARRY - 1, 3), (CARRY - 600, 1201), (2**45, 17)]  # first group, groups
NEEDS_COMPILER = pytest.mark.skipif(not any(map(shutil.which, ["g++", "c++", "clang++"])), reason="no C++ compiler")


def defined(first, groups):
    out = np.empty(groups * GROUP, np.float32)
    definition.fill(KEY, first, out)
    return out.tobytes()


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache of kernels, and a process that knows none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tacita._normals._cpu_kernel.cache_clear()
    yield tmp_path / "tacita"
    tacita._normals._cpu_kernel.cache_clear()


@NEEDS_COMPILER
@pytest.mark.parametrize("flags", [(), ("-mno-avx512f",), ("-mno-avx",), ("-O1",)])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_cpp_kernel_has_the_bits_of_the_definition(fresh, flags, threads, monkeypatch):
    if flags and flags[0].startswith("-mno") and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("no processor of this kind")
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, *flags))
    kernel, before = tacita._normals._cpu_kernel(), torch.get_num_threads()
    assert kernel is not None
    torch.set_num_threads(threads)
    try:
        for first, groups in RANGES:
            assert kernel(KEY, first, groups).numpy().tobytes() == defined(first, groups)
    finally:
        torch.set_num_threads(before)


@NEEDS_COMPILER
def test_streams_draw_the_same_bits_with_the_kernel_and_without(fresh, monkeypatch):
    stream, count = Key.insecure(0).stream("a"), tacita._normals.WORTH_BUILDING + 77
    monkeypatch.setattr(tacita._normals, "WORTH_BUILDING", count)
    without = stream.normals(count - GROUP, offset=GROUP + 5)
    assert not fresh.exists()  # nothing is compiled for a small draw
    whole = stream.normals(count, offset=5)
    assert tacita._normals._cpu_kernel() is not None
    assert torch.equal(whole[GROUP:], without)


def test_a_kernel_with_other_bits_is_not_used(fresh, monkeypatch, caplog):
    def nearly(key, first, out):
        definition.fill(key, first, out)
        out[-1] = np.nextafter(out[-1], np.float32(0))

    monkeypatch.setattr(compiled, "load", lambda: nearly)
    assert tacita._normals._cpu_kernel() is None
    assert "without the C++ kernel: its bits are not those of the definition" in caplog.text


def test_a_kernel_that_is_wrong_beyond_block_2_to_the_32_is_not_used(fresh, monkeypatch):
    def carries_nothing(key, first, out):
        definition.fill(key, first, out)
        if first + len(out) // GROUP > CARRY:
            out[-1] = np.nextafter(out[-1], np.float32(0))

    monkeypatch.setattr(compiled, "load", lambda: carries_nothing)
    assert tacita._normals._cpu_kernel() is None


@pytest.mark.usefixtures("compiler")
def test_a_damaged_library_is_built_again(fresh):
    library = compiled._library()
    whole = library.read_bytes()
    library.write_bytes(whole + b"\n")
    assert compiled._library().read_bytes() == whole
    assert library.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("compiler", ["", "no-such-compiler", "false"])
def test_without_a_compiler_numpy_draws_and_one_line_says_so(fresh, monkeypatch, caplog, compiler):
    monkeypatch.setenv("CXX", compiler)
    count = tacita._normals.WORTH_BUILDING
    with caplog.at_level(logging.WARNING):
        drawn = [Key.insecure(0).stream("a").normals(count) for _ in range(2)]
    assert torch.equal(*drawn)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("float32 noise is drawn without the C++ kernel: ")
    assert [*fresh.glob("*")] == []  # nor is anything left behind


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that writes a file, which is no library."""
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\nfor last; do :; done\necho > "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


@pytest.mark.usefixtures("compiler")
def test_the_cache_has_one_library_for_each_source_compiler_and_processor(fresh, monkeypatch):
    first = compiled._library()
    made = first.stat().st_mtime_ns
    assert compiled._library() == first
    assert first.stat().st_mtime_ns == made  # not built again
    monkeypatch.setattr(compiled, "_processor", lambda: "another")
    second = compiled._library()
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-O1"))
    assert len({first, second, compiled._library()}) == 3
    assert {path.suffix for path in fresh.iterdir()} == {".so"}
    assert fresh.stat().st_mode & 0o777 == 0o700


@NEEDS_COMPILER
def test_processes_that_build_at_once_do_not_meet(fresh):
    code = "import tacita._normals as n; assert n._cpu_kernel() is not None"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [one.wait() for one in running] == [0, 0]
    assert len([*fresh.iterdir()]) == 1


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_others_may_write_to_is_not_trusted(fresh, caplog):
    fresh.mkdir()
    fresh.chmod(0o777)
    assert tacita._normals._cpu_kernel() is None
    assert "others may write to" in caplog.text


# -- Triton


TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
INTERPRETED = """
import sys, torch
from tacita._normals import on_cuda
for first, groups in {ranges}:
    sys.stdout.buffer.write(on_cuda.normals(torch.device("cpu"), {key}, first, groups).numpy().tobytes())
"""


@TRITON
def test_the_triton_kernel_has_the_bits_of_the_definition():
    """By Triton's interpreter, in a process of its own: it changes Triton for as long as a process lives."""
    ranges = [(0, 1), (3, 2), (CARRY - 1, 3), (2**45, 5)]
    code = INTERPRETED.format(ranges=ranges, key=KEY)
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, check=True
    )
    assert run.stdout == b"".join(defined(*one) for one in ranges)


@TRITON
def test_the_triton_kernel_compiled_for_a_device_has_no_fused_multiply_add(monkeypatch, tmp_path):
    triton = importlib.import_module("triton")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    code = importlib.import_module("tacita._normals.on_cuda")
    types = {"out": "*fp32", "groups": "i32", "first": "i64"} | {f"k{i}": "i32" for i in range(8)}
    source = importlib.import_module("triton.compiler").ASTSource(
        fn=code._normals, signature={**types, "BLOCKS": "constexpr"}, constexprs={(11,): code._BLOCKS}
    )

    def fused(options):
        ptx = triton.compile(source, target=target, options=options).asm["ptx"]
        return len(re.findall(r"\b(?:fma|mad)\.(?:rn\.)?f32", ptx))

    assert fused(code.OPTIONS) == 0
    assert fused({}) > 50  # as Triton compiles by default
