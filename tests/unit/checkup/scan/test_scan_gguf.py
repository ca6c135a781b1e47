"""GGUF: plain tensors by their values, quantised ones by their block scales."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from scan_specimens import codes, scanned

from steadygrad.checkup.scan.formats.gguf_file import QUANTISED
from steadygrad.records.checks.scan import ScanVerdict

NAN_HALF = b"\x00\x7e"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(tensors: list[tuple[str, tuple[int, ...], int, bytes]], *, alignment: int = 32, version: int = 3) -> bytes:
    """A file after the published layout: magic, version, counts, entries, infos, padding, data."""
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, alignment),
        text("tokenizer.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bb") + text("\N{SNOWMAN}"),
        text("tokenizer.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.5, 1.5, 2.5),
        text("flag") + struct.pack("<I?", 7, True),
    ]
    infos, data = b"", b""
    for name, shape, kind, values in tensors:
        data += b"\0" * (-len(data) % alignment)
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        infos += struct.pack("<IQ", kind, len(data))
        data += values
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + infos
    return head + b"\0" * (-len(head) % alignment) + data


def test_plain_tensors_are_read_in_their_own_types(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    values = np.linspace(-1, 1, 12, dtype=np.float32)
    brain = (values.view(np.uint32) >> 16).astype("<u2")
    brain[7] = 0x7FC0
    tensors = [
        ("f32", (3, 4), 0, values.tobytes()),
        ("f16", (12,), 1, values.astype(np.float16).tobytes()),
        ("bf16", (3, 4), 30, brain.tobytes()),
        ("i32", (3,), 26, b"\xff" * 12),
    ]
    path.write_bytes(gguf(tensors))
    found = scanned(path)
    assert [(f.code, f.tensor) for f in found.findings if f.code != "CK203"] == [("CK101", "bf16")]
    assert {tensor.name: tensor.first_bad for tensor in found.tensors}["bf16"] == (1, 3)
    assert [tensor.largest for tensor in found.tensors[:2]] == [1.0, 1.0]


# Where llama.cpp keeps the scales of a block: (type, values a block, bytes a block, byte positions).
SCALES = [
    (2, 32, 18, [0]), (3, 32, 20, [0, 2]), (6, 32, 22, [0]), (7, 32, 24, [0, 2]), (8, 32, 34, [0]),
    (10, 256, 84, [80, 82]), (11, 256, 110, [108]), (12, 256, 144, [0, 2]), (13, 256, 176, [0, 2]),
    (14, 256, 210, [208]), (20, 32, 18, [0]), (23, 256, 136, [0]), (34, 256, 54, [52]), (35, 256, 66, [64]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "size", "places"), SCALES)
def test_a_nan_scale_is_found_and_the_integers_beside_it_are_not_mistaken_for_numbers(
    tmp_path: Path, kind: int, values: int, size: int, places: list[int]
) -> None:
    path = tmp_path / "quantised.gguf"
    # All ones: wherever the integers are taken for floats they look like NaN.
    block = bytearray(b"\xff" * size)
    for place in places:
        block[place : place + 2] = b"\x00\x3c"  # 1.0
    clean = bytes(block) * 5
    path.write_bytes(gguf([("w", (5, values), kind, clean)]))
    assert scanned(path).verdict is ScanVerdict.CLEAN
    for place in places:
        bad = bytearray(clean)
        bad[3 * size + place : 3 * size + place + 2] = NAN_HALF
        path.write_bytes(gguf([("w", (5, values), kind, bytes(bad))]))
        found = scanned(path)
        assert codes(found) == ["CK101"]
        assert "block scales" in found.findings[0].detail
        assert "the first in block 3" in found.findings[0].detail


def test_the_table_of_types_covers_what_these_tests_know() -> None:
    for kind, values, size, places in SCALES:
        form = QUANTISED[kind]
        assert (form.values, form.blocks.size, list(form.blocks.places)) == (values, size, places)


def test_scales_that_are_spread_over_nibbles_or_are_powers_of_two_are_put_together(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    # iq1_m: the four nibbles of a half, lowest first, are the top nibbles of four words at byte 48.
    good, bad = bytearray(b"\0" * 56), bytearray(b"\0" * 56)
    for block, half in ((good, 0x3C00), (bad, 0x7E00)):
        words = [((half >> (4 * number)) & 0xF) << 12 for number in range(4)]
        block[48:56] = struct.pack("<4H", *words)
    mx_good, mx_bad = b"\x7f" + b"\xff" * 16, b"\xff" + b"\xff" * 16
    path.write_bytes(gguf([("iq1_m", (256,), 29, bytes(good)), ("mxfp4", (32,), 39, mx_good)]))
    found = scanned(path)
    assert found.verdict is ScanVerdict.CLEAN
    assert [tensor.largest for tensor in found.tensors] == [1.0, 1.0]
    path.write_bytes(gguf([("iq1_m", (256,), 29, bytes(bad)), ("mxfp4", (32,), 39, mx_bad)]))
    assert codes(scanned(path)) == ["CK101", "CK101"]


def test_a_file_with_a_type_not_known_here_is_not_clean_and_its_other_tensors_are_scanned(
    tmp_path: Path,
) -> None:
    path = tmp_path / "future.gguf"
    values = np.array([1.0, np.nan], np.float32).tobytes()
    path.write_bytes(gguf([("new", (32,), 99, b"\xff" * 18), ("w", (2,), 0, values)]))
    found = scanned(path)
    assert codes(found) == ["CK101"]
    assert "1 tensors have a GGML type that is not known here, type 99 (1), and were not checked" in found.problems[0]
    path.write_bytes(gguf([("new", (32,), 99, b"\xff" * 18)]))
    assert scanned(path).verdict is ScanVerdict.UNREADABLE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data[:30], "cut short"),
        (lambda data: b"GGUF" + struct.pack("<I", 1) + data[8:], "version 1"),
        (lambda data: b"GGUF" + struct.pack(">I", 3) + data[8:], "big-endian"),
        (lambda data: data[:8] + struct.pack("<Q", 1 << 40) + data[16:], "header lies"),
        (lambda data: data[:24] + struct.pack("<Q", 1 << 60) + data[32:], "claims a text"),
        (lambda data: b"GGML" + data[4:], "no GGUF file"),
    ],
)
def test_a_header_that_is_cut_short_or_lies_is_one_sentence(tmp_path: Path, change: object, words: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(change(gguf([("w", (4,), 0, b"\0" * 16)])))  # type: ignore[operator]
    found = scanned(path)
    assert found.verdict is ScanVerdict.UNREADABLE
    (problem,) = found.problems
    assert words in problem
    assert problem.endswith(".")
