"""Checksummed lines: whole or not there."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.journal.checksummed_lines import LineFile, cut_torn_tail, decode_line, encode_line, read_lines

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(data=plain)
def test_a_line_reads_back_as_what_was_written(data: object) -> None:
    line = encode_line({"kind": "x", "data": data})
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == {"kind": "x", "data": data}
    assert json.loads(line)["kind"] == "x"  # any reader of JSON lines can use it


@given(cut=st.integers(0, 60), flip=st.integers(0, 60), to=st.integers(0, 255))
def test_a_shortened_or_changed_line_is_never_parsed(cut: int, flip: int, to: int) -> None:
    line = encode_line({"kind": "decision", "data": {"step": 12345, "why": "a spike"}})[:-1]
    assert len(line) > 60
    assert decode_line(line[:cut]) is None
    changed = line[:flip] + bytes([to]) + line[flip + 1 :]
    assert changed == line or decode_line(changed) is None


def test_the_checksum_is_a_plain_crc32_of_what_stands_before_it() -> None:
    line = encode_line({"a": 1})
    assert line == b'{"a":1,"crc":"%08x"}\n' % zlib.crc32(b'{"a":1')


@pytest.mark.parametrize("tail", [b"", b"x", b'{"kind":"half', b"\0" * 70_000, b"y" * 200_000])
def test_reopening_cuts_what_was_never_acknowledged(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "events.jsonl"
    whole = b"".join(encode_line({"n": number}) for number in range(3))
    path.write_bytes(whole + tail)
    file = LineFile(path)
    file.append(encode_line({"n": 3}))
    file.close()
    assert path.read_bytes() == whole + encode_line({"n": 3})
    assert [line["n"] for line in read_lines(path)] == [0, 1, 2, 3]


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [encode_line({"n": number}) for number in range(4)]
    lines[1] = lines[1].replace(b"1", b"7", 1)
    path.write_bytes(b"".join(lines))
    assert [line["n"] for line in read_lines(path)] == [0, 2, 3]


def test_a_descriptor_that_breaks_under_the_writer_is_replaced_on_the_next_try(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "events.jsonl")
    file.append(encode_line({"n": 0}))
    assert file._descriptor is not None
    os.close(file._descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append(encode_line({"n": 1}))
    file.append(encode_line({"n": 1}))
    file.close()
    assert [line["n"] for line in read_lines(tmp_path / "events.jsonl")] == [0, 1]


def test_a_short_write_is_finished_and_a_failed_one_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    answers = [3, 5]

    def short(descriptor: int, data: memoryview) -> int:
        return real(descriptor, bytes(data[: answers.pop(0)] if answers else data))

    path = tmp_path / "events.jsonl"
    file = LineFile(path)
    monkeypatch.setattr(os, "write", short)
    file.append(encode_line({"n": 0}))
    before = path.read_bytes()
    assert before == encode_line({"n": 0})

    def full(descriptor: int, data: memoryview) -> int:
        if len(data) > 10:
            return real(descriptor, bytes(data[:10]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        file.append(encode_line({"n": 1, "long": "x" * 15}))
    assert path.read_bytes() == before
    file.close()


def test_cutting_a_file_without_any_newline_empties_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"z" * 150_000)
    descriptor = os.open(path, os.O_RDWR)
    assert cut_torn_tail(descriptor) == 150_000
    os.close(descriptor)
    assert path.stat().st_size == 0
