"""Steps: what is put is what is read, whatever the numbers, however the segments were cut."""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steadygrad.journal import read_batches, read_steps, steps_table, tensor_names
from steadygrad.journal.run_directory import RunDirectory
from steadygrad.journal.steps.columns import rounded, to_float32
from steadygrad.journal.steps.segment import cut_torn_tail
from steadygrad.journal.steps.step_reader import segment_paths
from steadygrad.journal.steps.step_writer import StepWriter
from steadygrad.records import StepRecord
from steadygrad.records.errors import JournalError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / "run")
    yield directory
    directory.close()


def record(step: int, **changes: object) -> StepRecord:
    return StepRecord(run="r", step=step, loss=step / 8, **changes)  # type: ignore[arg-type]


def bits(value: float) -> bytes:
    """Equal bits and not equal values: nan is nan, -0.0 is not 0.0. A nan's payload is not a number we keep."""
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


any_float = st.floats(width=64)
any_text = st.text(st.characters(codec="utf-8"), max_size=30)
any_record = st.builds(
    StepRecord,
    run=st.just("r"),
    step=st.integers(0, 2**62),
    attempt=st.integers(0, 2**31 - 1),
    rank=st.integers(0, 100_000),
    time=st.floats(0, 1e12),
    batch_key=st.none() | any_text,
    loss=any_float,
    terms=st.dictionaries(any_text, any_float, max_size=4),
    grad_norm=any_float,
    norms=st.lists(st.floats(width=32), max_size=6).map(tuple),
    lr=any_float,
    loss_scale=st.none() | any_float,
    applied=st.booleans(),
    rung=st.integers(0, 100),
    flags=st.lists(any_text, max_size=3).map(tuple),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=st.lists(any_record, min_size=1, max_size=8), merge_after=st.integers(2, 4), flush_after=st.integers(1, 4)
)
def test_every_number_and_name_survives_the_round_trip(
    records: list[StepRecord], merge_after: int, flush_after: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        writer = StepWriter(run, merge_after=merge_after, norms_every=1)
        for number, each in enumerate(records):
            writer.put(each)
            if number % flush_after == 0:
                assert writer.drain(now=True)
        writer.close()
        run.close()
        assert writer.health.dropped == 0
        back = list(read_steps(run.path))
    assert len(back) == len(records)
    for put, got in zip(records, back, strict=True):
        for name in ("step", "attempt", "rank", "batch_key", "applied", "rung", "flags"):
            assert getattr(got, name) == getattr(put, name)
        for name in ("time", "loss", "grad_norm", "lr"):
            assert bits(getattr(got, name)) == bits(getattr(put, name))
        assert (got.loss_scale is None) == (put.loss_scale is None)
        assert bits(got.loss_scale or 0.0) == bits(put.loss_scale or 0.0)
        assert {key: bits(value) for key, value in got.terms.items()} == {k: bits(v) for k, v in put.terms.items()}
        assert len(got.norms) == len(put.norms)
        for before, after in zip(put.norms, got.norms, strict=True):
            if put.flags or not put.applied or not math.isfinite(before):
                assert bits(after) == bits(before)
            else:
                assert abs(after - before) <= abs(before) * 2**-11


def test_names_that_utf8_cannot_hold_are_escaped_and_the_row_is_kept(run: RunDirectory) -> None:
    writer = StepWriter(run)
    writer.put(record(1, batch_key="bad \ud800 key", flags=("\udfff",), terms={"\ud800": 1.0}))
    writer.close()
    (back,) = read_steps(run.path)
    assert back.batch_key == "bad \\ud800 key"
    assert back.flags == ("\\udfff",)
    assert back.terms == {"\\ud800": 1.0}


@given(st.lists(any_float, max_size=50))
def test_narrowing_norms_invents_neither_an_infinity_nor_a_zero(values: list[float]) -> None:
    wide = np.array(values, dtype=np.float64)
    narrow = to_float32(wide)
    for kept in (narrow, rounded(narrow)):
        assert (np.isfinite(kept) == np.isfinite(wide)).all()
        assert (np.isnan(kept) == np.isnan(wide)).all()
        assert ((kept == 0) == (wide == 0)).all()
        assert (np.signbit(kept[~np.isnan(kept)]) == np.signbit(wide[~np.isnan(wide)])).all()


def test_norms_are_kept_every_tenth_step_and_whenever_something_was_wrong(run: RunDirectory) -> None:
    writer = StepWriter(run, names=["a", "b"])
    for step in range(25):
        writer.put(record(step, norms=(1.0, 2.0), flags=("SY101",) if step == 7 else (), applied=step != 13))
    writer.close()
    assert [each.step for each in read_steps(run.path) if each.norms] == [0, 7, 10, 13, 20]
    assert tensor_names(run.path) == ("a", "b")


def test_many_small_flushes_become_few_batches_in_the_same_order(run: RunDirectory) -> None:
    writer = StepWriter(run, merge_after=8)
    for step in range(100):
        writer.put(record(step))
        assert writer.drain(now=True)
    writer.close()
    assert [each.step for each in read_steps(run.path)] == list(range(100))
    assert len(list(read_batches(run.path))) <= 100 / 8 + 2
    assert sorted(path.name for path in run.steps.iterdir()) == ["rank0-0001.arrow"]


def test_a_segment_past_its_size_is_followed_by_the_next(run: RunDirectory) -> None:
    writer = StepWriter(run, segment_bytes=6000)
    for step in range(40):
        writer.put(record(step, batch_key=f"key {step}"))
        assert writer.drain(now=True)
    writer.close()
    paths = segment_paths(run.path)
    assert len(paths) > 1
    assert [path.name for path in paths] == [f"rank0-{number + 1:04d}.arrow" for number in range(len(paths))]
    assert [each.step for each in read_steps(run.path)] == list(range(40))


def test_other_tools_see_a_plain_arrow_stream(run: RunDirectory) -> None:
    writer = StepWriter(run, names=["w"])
    writer.put(record(0, terms={"ce": math.inf}, norms=(math.nan,), flags=("SY101",)))
    writer.close()
    table = pa.ipc.open_stream((run.steps / "rank0-0001.arrow").read_bytes()).read_all()
    assert table.to_pylist()[0]["terms"] == [("ce", math.inf)]
    kinds = [str(field.type) for field in table.schema]
    assert not any("dictionary" in kind or "extension" in kind or "union" in kind for kind in kinds)


def test_new_names_start_a_new_segment_and_old_rows_keep_the_old_names(run: RunDirectory) -> None:
    writer = StepWriter(run, names=["a"], norms_every=1)
    writer.put(record(0, norms=(1.0,)))
    writer.set_names(["a", "b"])
    writer.put(record(1, norms=(1.0, 2.0)))
    writer.close()
    heads = [
        pa.ipc.open_stream(path.read_bytes()).schema.metadata[b"steadygrad.names"] for path in segment_paths(run.path)
    ]
    assert heads == [b'["a"]', b'["a", "b"]']
    assert [each.norms for each in read_steps(run.path)] == [(1.0,), (1.0, 2.0)]


def test_a_full_queue_drops_the_oldest_counts_them_and_says_so_once(run: RunDirectory) -> None:
    said: list[str] = []
    writer = StepWriter(run, max_queue=16)
    writer.health._on_degraded = said.append
    for step in range(100):
        writer.put(record(step))
    assert writer.waiting == 16
    assert writer.health.dropped == 84
    assert writer.degraded is not None
    assert "slower than the run" in writer.degraded
    assert len(said) == 1
    assert writer.drain(now=True)
    assert writer.degraded is None
    assert [each.step for each in read_steps(run.path)] == list(range(84, 100))


def test_a_record_no_column_fits_is_dropped_alone_and_counted(run: RunDirectory) -> None:
    writer = StepWriter(run)
    for step in (1, 2**70, 3):
        writer.put(record(step))
    writer.put(record(4, norms="no numbers", flags=("x",)))
    assert writer.drain(now=True)
    assert writer.health.dropped == 2
    assert [each.step for each in read_steps(run.path)] == [1, 3]


def test_a_segment_cut_anywhere_gives_exactly_its_whole_batches(run: RunDirectory) -> None:
    writer = StepWriter(run, merge_after=1000)
    ends = [0]
    for step in range(4):
        writer.put(record(step))
        assert writer.drain(now=True)
        ends.append((run.steps / "rank0-0001.arrow").stat().st_size)
    path = run.steps / "rank0-0001.arrow"
    whole = path.read_bytes()
    assert len(whole) == ends[-1]
    cuts = range(0, len(whole) + 1, 23)
    for cut in [*cuts, len(whole)]:
        path.write_bytes(whole[:cut])
        expected = sum(1 for end in ends[1:] if end <= cut)
        assert [each.step for each in read_steps(run.path)] == list(range(expected))


def test_zeros_and_garbage_after_the_last_batch_are_a_torn_tail(run: RunDirectory) -> None:
    writer = StepWriter(run)
    writer.put(record(5))
    writer.close()
    path = run.steps / "rank0-0001.arrow"
    whole = path.read_bytes()[:-8]  # without the mark of the end
    for tail in (b"\0" * 4096, b"garbage", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x10\0\0\0" + b"\x07" * 64):
        path.write_bytes(whole + tail)
        assert [each.step for each in read_steps(run.path)] == [5]
        assert cut_torn_tail(path) == len(tail)
        assert path.read_bytes() == whole


def test_resuming_continues_the_numbers_and_cuts_the_torn_tail_for_other_tools(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    writer = StepWriter(first)
    writer.put(record(0))
    writer.close()
    first.close()
    path = first.steps / "rank0-0001.arrow"
    path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\xff\x00\x02\0\0torn")
    second = RunDirectory(tmp_path / "run")
    again = StepWriter(second)
    again.put(record(1))
    again.close()
    second.close()
    assert second.continued
    assert second.run_id == first.run_id
    assert [each.name for each in segment_paths(tmp_path / "run")] == ["rank0-0001.arrow", "rank0-0002.arrow"]
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 1
    assert [each.step for each in read_steps(tmp_path / "run")] == [0, 1]


def test_a_table_of_chosen_columns_and_a_sentence_for_a_column_there_is_not(run: RunDirectory) -> None:
    with pytest.raises(JournalError, match="holds no steps yet"):
        steps_table(run.path)
    assert steps_table(run.path, allow_empty=True).num_rows == 0
    writer = StepWriter(run)
    writer.put(record(3))
    writer.close()
    assert steps_table(run.path, columns=["loss", "step"]).to_pylist() == [{"loss": 3 / 8, "step": 3}]
    with pytest.raises(JournalError, match=r"no column 'lost'.*choose from step"):
        steps_table(run.path, columns=["lost"])
