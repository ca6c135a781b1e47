"""Mapping a file gives the same answers as reading it, and a file cut short under a map is a sentence, not a crash."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from steadygrad.checkup.scan import child_process, measure_tensors
from steadygrad.checkup.scan.file_source import Source
from steadygrad.checkup.scan.scan import scan


def script(body: str) -> subprocess.CompletedProcess[str]:
    text = "from steadygrad.checkup.scan.child_process import can_guard, guarded\n" + body
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_a_file_cut_short_under_a_map_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "shrinking.bin"
    path.write_bytes(b"\0" * (1 << 20))
    done = script(
        f"""
import os
from pathlib import Path
from steadygrad.checkup.scan.unreadable import Unreadable

def look():
    from steadygrad.checkup.scan.file_source import Source
    with Source(Path({str(path)!r})) as source:
        window = source.window(0, 1 << 20)
        os.truncate({str(path)!r}, 0)
        return int(window[-1])  # the kernel answers this touch with SIGBUS

assert can_guard()
try:
    guarded(look)
except Unreadable as why:
    print(f"told: {{why}}, {{why.exit_code}}")
"""
    )
    assert done.returncode == 0, done.stderr
    assert "told: A file was cut short while it was being scanned" in done.stdout
    assert done.stdout.endswith(", 2\n")


def test_exit_codes_output_and_errors_come_through_the_child() -> None:
    done = script(
        """
from steadygrad.records.errors import UsageError
import os
def prints():
    print("from the child")
    return 7
def errs():
    raise UsageError("a mistake of the caller's")
def breaks():
    raise RuntimeError("a mistake of ours")
print("before")
print(guarded(prints))
try:
    guarded(errs)
except Exception as error:
    print(error, error.exit_code)
print(guarded(breaks))
"""
    )
    assert done.stdout.splitlines() == ["before", "from the child", "7", "a mistake of the caller's 2", "1"]
    assert "RuntimeError: a mistake of ours" in done.stderr


def test_a_process_with_threads_is_not_forked() -> None:
    assert "torch" in sys.modules
    assert not child_process.can_guard()
    assert script("assert can_guard()\nimport numpy, sys\nprint('numpy' in sys.modules)").stdout == "True\n"


def test_the_command_itself_is_guarded(tmp_path: Path) -> None:
    """A child does the work: a scan of a file that ends in a sentence still ends in exit code 2 and that sentence."""
    save_file({"w": torch.tensor([1.0, math.nan])}, tmp_path / "bad.safetensors")
    command = [sys.executable, "-m", "steadygrad.commands", "scan"]
    done = subprocess.run([*command, "--json", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "poisoned"
    done = subprocess.run(
        [*command, "--expect-dtype", "int3", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("steady: int3 is no floating-point type known here")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e5m2], ids=str
)
def test_mapping_and_reading_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(measure_tensors, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(measure_tensors, "PIECE_BYTES", 5 * 4096)
    monkeypatch.setattr(measure_tensors, "COUNT_ALL_BYTES", 8192)
    torch.manual_seed(0)
    values = torch.randn(30_001)
    values[7::1000] = 0.0
    values[12_345] = math.inf
    values[29_999] = math.nan
    path = tmp_path / "x.pt"
    torch.save({"a": values.to(dtype), "b": torch.ones(3).to(dtype)}, path)
    read, mapped = (scan([path], threads=2, mapped=mapped).files[0] for mapped in (False, True))
    assert read.tensors == mapped.tensors
    assert read.findings == mapped.findings
    assert read.tensors[0].first_bad == (12_345,)
    assert (read.tensors[0].num_nan, read.tensors[0].num_inf) == (1, 1)


def test_a_tensor_that_is_not_aligned_is_read_instead_of_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_tensors, "BLOCK_BYTES", 4096)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4096], "data_offsets": [0, 16384]}}).encode()
    header += b" " * (3 - (len(header) + 8) % 4)  # the values begin at an odd place
    values = torch.ones(4096)
    values[4000] = math.nan
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + values.numpy().tobytes())
    assert (8 + len(header)) % 4 != 0
    assert scan([path], mapped=True).files[0].tensors[0].first_bad == (4000,)


def test_a_file_that_shrank_before_it_is_mapped_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_tensors, "BLOCK_BYTES", 4096)
    path = tmp_path / "shrinking.safetensors"
    save_file({"w": torch.ones(100_000)}, path)
    true_window = Source.window

    def cut_then_map(self: Source, offset: int, length: int) -> object:
        path.write_bytes(path.read_bytes()[:1000])
        return true_window(self, offset, length)

    monkeypatch.setattr(Source, "window", cut_then_map)
    report = scan([path], mapped=True)
    assert report.exit_code == 2
    assert "cut short while it was being read" in report.files[0].problems[0]
