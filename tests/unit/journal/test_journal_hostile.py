"""A run directory from a stranger is data: bounded, nothing outside it is read, and a sentence for what is wrong."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest

from steadygrad.journal import Journal, read_events, read_incidents, read_quarantine, read_run, read_steps
from steadygrad.journal.steps.columns import SCHEMA, batch_of, row_of, schema_of
from steadygrad.journal.steps.ipc_frames import RECORD_BATCH, frames
from steadygrad.journal.steps.segment import encode_batch, encode_schema
from steadygrad.records import Incident, StepRecord
from steadygrad.records.errors import JournalError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Journal(tmp_path / "run", names=["w"]) as journal:
        for step in range(20):
            journal.step(StepRecord(run="r", step=step, batch_key=f"k{step}", norms=(1.0,), terms={"ce": 1.0}))
        journal.event("made")
        journal.quarantine("k1", step=1)
        journal.incident(Incident(number=1, first_step=1, last_step=1, symptom="nan_loss"))
    return tmp_path / "run"


def segment(run: Path) -> Path:
    return run / "steps" / "rank0-0001.arrow"


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file, not a run directory"),
        (lambda path: path.mkdir(), "is not a run directory: it holds no run.json"),
    ],
)
def test_what_is_no_run_is_said_in_one_sentence(tmp_path: Path, prepare: object, sentence: str) -> None:
    path = tmp_path / "not a run"
    prepare(path)  # type: ignore[operator]
    for read in (read_run, read_incidents, read_events, read_quarantine, lambda p: list(read_steps(p))):
        with pytest.raises(JournalError, match=sentence) as caught:
            read(path)  # type: ignore[operator]
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"run": "x"}',
        '{"format": "other", "version": 1, "run": "x"}',
        "\x00" * 64,
        "9" * 5000,
    ],
)
def test_a_run_json_steadygrad_did_not_write_is_refused(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(JournalError, match=r"run\.json"):
        read_run(run)


def test_a_run_from_a_newer_steadygrad_asks_for_an_upgrade(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(about | {"version": 2}))
    with pytest.raises(JournalError, match=r"format version 2 .* reads up to 1: upgrade steadygrad"):
        read_run(run)


def test_steps_from_a_newer_steadygrad_ask_for_an_upgrade(run: Path) -> None:
    schema = schema_of(run_id="r", rank=0, names=(), segment=1)
    newer = schema.with_metadata({**schema.metadata, b"steadygrad.version": b"2"})
    segment(run).write_bytes(encode_schema(newer))
    with pytest.raises(JournalError, match=r"format version 2.*upgrade steadygrad"):
        list(read_steps(run))


def test_an_arrow_file_from_elsewhere_is_refused(run: Path) -> None:
    table = pa.table({"step": [1, 2]})
    with pa.OSFile(str(segment(run)), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(JournalError, match="not steps that steadygrad wrote"):
        list(read_steps(run))


def test_a_batch_that_claims_to_unpack_to_terabytes_is_refused_without_trying(run: Path) -> None:
    batch = batch_of([row_of(StepRecord(run="r", step=step), (), norms=False) for step in range(100)])
    packed = encode_batch(batch, level=1)
    raw_lengths = [index for index in range(len(packed) - 8) if packed[index : index + 8] == struct.pack("<q", 800)]
    assert raw_lengths  # 100 rows of eight bytes: the length before each packed column of numbers
    bomb = bytearray(packed)
    bomb[raw_lengths[0] : raw_lengths[0] + 8] = struct.pack("<q", 1 << 50)
    segment(run).write_bytes(encode_schema(schema_of(run_id="r", rank=0, names=(), segment=1)) + bomb)
    with pytest.raises(JournalError, match="claims to unpack to"):
        list(read_steps(run))


@pytest.mark.parametrize("column", ["step", "loss", "applied", "flags", "terms"])
def test_a_row_without_a_value_it_must_have_is_refused(run: Path, column: str) -> None:
    batch = batch_of([row_of(StepRecord(run="r", step=1), (), norms=False)])
    place = SCHEMA.get_field_index(column)
    holed = batch.set_column(place, SCHEMA.field(place), pa.nulls(1, SCHEMA.field(place).type))
    head = encode_schema(schema_of(run_id="r", rank=0, names=(), segment=1))
    segment(run).write_bytes(head + encode_batch(holed, level=1))
    with pytest.raises(JournalError, match="a value is missing"):
        list(read_steps(run))


def test_a_message_of_a_foreign_kind_is_refused(run: Path) -> None:
    schema = pa.schema([("x", pa.dictionary(pa.int8(), pa.string()))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.record_batch([pa.array(["a"]).dictionary_encode().cast(schema.field(0).type)], schema=schema)
        )
    data = sink.getvalue().to_pybytes()
    assert any(frame.kind not in (1, RECORD_BATCH) for frame in frames(data))
    segment(run).write_bytes(data)
    with pytest.raises(JournalError, match="a kind steadygrad does not write"):
        list(read_steps(run))


def test_flipping_any_byte_gives_records_or_a_sentence_and_nothing_else(run: Path) -> None:
    whole = segment(run).read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 8))):
            changed[rng.randrange(len(whole))] = rng.randrange(256)
        segment(run).write_bytes(changed)
        try:
            assert len(list(read_steps(run))) <= 20
        except JournalError:
            refused += 1
    assert refused > 0


def test_links_pipes_and_huge_files_among_the_segments_are_refused_at_once(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.arrow"
    secret.write_bytes(segment(run).read_bytes())
    planted = run / "steps" / "rank0-0002.arrow"
    start = time.monotonic()

    planted.symlink_to(secret)
    with pytest.raises(JournalError, match="symbolic link"):
        list(read_steps(run))
    planted.unlink()

    os.mkfifo(planted)
    with pytest.raises(JournalError, match="not a regular file"):
        list(read_steps(run))
    planted.unlink()

    with planted.open("wb") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(JournalError, match="more than the"):
        list(read_steps(run))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kibibytes
    assert time.monotonic() - start < 30.0


def test_a_linked_directory_inside_a_run_is_neither_read_nor_written(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "incidents").rename(elsewhere)
    (run / "incidents").symlink_to(elsewhere)
    with pytest.raises(JournalError, match="symbolic link"):
        read_incidents(run)
    with pytest.raises(JournalError, match="symbolic link"):
        Journal(run)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"version": 9}',
        '{"version": 1}',
        '{"version": 1, "number": 1, "first_step": 1, "last_step": 1, "symptom": "x", "findings": 3}',
        '{"version": 1, "number": 1, "first_step": 1, "last_step": 1, "symptom": "x", "findings": [{"severity": "?"}]}',
        '{"version": 1, "number": 1, "first_step": 1, "last_step": 1, "symptom": "x", "time": "soon"}',
    ],
)
def test_an_incident_steadygrad_did_not_write_is_refused(run: Path, text: str) -> None:
    (run / "incidents" / "0001" / "incident.json").write_text(text)
    with pytest.raises(JournalError, match=r"0001/incident\.json"):
        read_incidents(run)


def test_foreign_lines_are_passed_over_and_a_forged_one_is_refused(run: Path) -> None:
    from steadygrad.journal.checksummed_lines import encode_line

    with (run / "events.jsonl").open("ab") as file:
        file.write(
            b"not json\n" + b'{"kind":"unsigned"}\n' + b'{"kind":"x","crc":"00000000"}\n' + b"[" * 200_000 + b"\n"
        )
        file.write(b"x" * (3 << 20) + b"\n")
    assert [event.kind for event in read_events(run)] == ["made", "program_ended"]
    with (run / "events.jsonl").open("ab") as file:
        file.write(encode_line({"kind": "x", "time": [1]}))
    with pytest.raises(JournalError, match=r"events\.jsonl"):
        read_events(run)


def test_the_schema_on_disk_is_the_one_that_is_promised() -> None:
    # Renaming or retyping a column breaks what others wrote against it: raise the format version when this changes.
    assert [(field.name, str(field.type)) for field in SCHEMA] == [
        ("step", "int64"),
        ("attempt", "int32"),
        ("rank", "int32"),
        ("time", "double"),
        ("batch_key", "string"),
        ("loss", "double"),
        ("grad_norm", "double"),
        ("lr", "double"),
        ("loss_scale", "double"),
        ("applied", "bool"),
        ("rung", "int16"),
        ("flags", "list<item: string>"),
        ("terms", "map<string, double>"),
        ("norms", "list<item: float>"),
    ]
