"""`steady export`: the tables hold what the journal holds, to the bit, and no spreadsheet runs a cell of them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from trained_run import BAD_STEPS, HOSTILE, NUM_STEPS, Call, copied, forbid, make_call, newer, one_sentence, torn, train

from steadygrad.journal import Journal, read_incidents, read_steps, tensor_names
from steadygrad.records import StepRecord


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("export") / "tiny")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return make_call(capsys, monkeypatch)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def same(left: float | None, right: float | None) -> bool:
    return left == right or (left is not None and right is not None and math.isnan(left) and math.isnan(right))


def test_csv_holds_every_step_to_the_last_bit(call: Call, run: Path, tmp_path: Path) -> None:
    code, out, _ = call("export", str(run), "--csv", str(tmp_path / "steps.csv"))
    assert (code, out) == (0, f"{tmp_path / 'steps.csv'}: 60 steps\n")
    rows, records = rows_of(tmp_path / "steps.csv"), list(read_steps(run))
    assert len(rows) == len(records) == NUM_STEPS
    for row, record in zip(rows, records, strict=True):
        assert int(row["step"]) == record.step
        assert same(float(row["loss"]), record.loss)
        assert same(float(row["grad_norm"]), record.grad_norm)
        assert float(row["lr"]) == record.lr
        assert row["applied"] == ("true" if record.applied else "false")
        assert row["flags"].split() == list(record.flags)
        assert same(float(row["term_fit"]), record.terms["fit"])
        assert row["loss_scale"] == ""
    bad = {int(row["step"]): row["loss"] for row in rows if row["applied"] == "false"}
    assert bad == dict.fromkeys(BAD_STEPS, "nan")


def test_infinities_of_both_signs_survive_in_both_formats(call: Call, tmp_path: Path) -> None:
    values = [math.inf, -math.inf, math.nan, 5e-324, -0.0, 1e308]
    with Journal(tmp_path / "run", norms_every=1) as journal:
        for step, value in enumerate(values):
            journal.step(StepRecord(run="", step=step, loss=value, terms={"a": value}, norms=[value]))
        assert journal.flush(60)
    code, _, _ = call(
        "export", str(tmp_path / "run"), "--csv", str(tmp_path / "o.csv"), "--parquet", str(tmp_path / "o.parquet"),
        "--norms",
    )  # fmt: skip
    assert code == 0
    rows = rows_of(tmp_path / "o.csv")
    assert [row["loss"] for row in rows] == ["inf", "-inf", "nan", "5e-324", "-0.0", "1e+308"]
    assert [row["term_a"] for row in rows] == [row["loss"] for row in rows]
    assert json.loads(rows[1]["norms"]) == ["-inf"]
    table = pq.read_table(tmp_path / "o.parquet")
    assert all(same(a, b) for a, b in zip(table.column("loss").to_pylist(), values, strict=True))


def test_parquet_holds_the_journal_s_own_columns_and_the_names_of_the_norms(
    call: Call, run: Path, tmp_path: Path
) -> None:
    assert call("export", str(run), "--parquet", str(tmp_path / "steps.parquet"))[0] == 0
    table = pq.read_table(tmp_path / "steps.parquet")
    records = list(read_steps(run))
    assert table.column("step").to_pylist() == [record.step for record in records]
    assert table.column("applied").to_pylist() == [record.applied for record in records]
    assert dict(table.column("terms")[0].as_py()).keys() == records[0].terms.keys()
    names = table.schema.metadata[b"steadygrad.norms"].decode().split("\n")
    assert tuple(names) == tensor_names(run) == ("weight", "bias")


def test_incidents_are_a_table_too(call: Call, run: Path, tmp_path: Path) -> None:
    code, out, _ = call(
        "export", str(run), "--table", "incidents", "--csv", str(tmp_path / "i.csv"), "--parquet",
        str(tmp_path / "i.parquet"),
    )  # fmt: skip
    assert code == 0
    assert "2 incidents" in out
    incidents = read_incidents(run)
    rows = rows_of(tmp_path / "i.csv")
    assert [(int(row["first_step"]), row["symptom"], row["actions"]) for row in rows] == [
        (incident.first_step, incident.symptom, "skip") for incident in incidents
    ]
    assert pq.read_table(tmp_path / "i.parquet").column("number").to_pylist() == [1, 2]


def test_a_cell_that_a_spreadsheet_would_run_is_disarmed(call: Call, run: Path, tmp_path: Path) -> None:
    for table in ("steps", "incidents"):
        call("export", str(run), "--table", table, "--csv", str(tmp_path / f"{table}.csv"))
        keys = [row["batch_key"] for row in rows_of(tmp_path / f"{table}.csv")]
        assert "'" + HOSTILE in keys
        assert not [key for key in keys if key[:1] in "=+-@"]


def test_a_dash_is_standard_output_with_nothing_else_on_it(call: Call, run: Path) -> None:
    code, out, err = call("export", str(run), "--csv", "-")
    assert code == 0
    assert len(list(csv.DictReader(out.splitlines()))) == NUM_STEPS
    assert "60 steps" in err


def test_a_run_without_incidents_gives_an_empty_table(call: Call, tmp_path: Path) -> None:
    Journal(tmp_path / "fine").close()
    for kind, name in (("--csv", "i.csv"), ("--parquet", "i.parquet")):
        assert call("export", str(tmp_path / "fine"), "--table", "incidents", kind, str(tmp_path / name))[0] == 0
    assert rows_of(tmp_path / "i.csv") == []
    assert pq.read_table(tmp_path / "i.parquet").num_rows == 0


def test_json_tells_what_was_written(call: Call, run: Path, tmp_path: Path) -> None:
    told = json.loads(call("export", str(run), "--csv", str(tmp_path / "s.csv"), "--json")[1])
    assert told["files"] == [{"path": str(tmp_path / "s.csv"), "rows": NUM_STEPS}]


def test_a_torn_journal_is_exported_as_far_as_it_goes(call: Call, run: Path, tmp_path: Path) -> None:
    cut = torn(copied(run, tmp_path / "torn"))
    for kind in ("csv", "parquet"):
        assert call("export", str(cut), f"--{kind}", str(tmp_path / f"s.{kind}"))[0] == 0
    assert len(rows_of(tmp_path / "s.csv")) == pq.read_table(tmp_path / "s.parquet").num_rows == NUM_STEPS


def test_a_damaged_journal_leaves_the_old_file_in_place(call: Call, run: Path, tmp_path: Path) -> None:
    damaged = copied(run, tmp_path / "damaged")
    (segment,) = (damaged / "steps").iterdir()
    (segment.with_name("rank0-0009.arrow")).write_bytes(
        segment.read_bytes().replace(b"steadygrad-steps", b"steadygrad-stops")
    )
    output = tmp_path / "steps.csv"
    output.write_text("from yesterday")
    one_sentence(call("export", str(damaged), "--csv", str(output)), "rank0-0009.arrow")
    assert output.read_text() == "from yesterday"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_bad_input_is_one_sentence(call: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("--csv", "--parquet"):
        output = str(tmp_path / "out")
        one_sentence(call("export", str(tmp_path / "none"), kind, output), "does not exist")
        one_sentence(call("export", str(tmp_path), kind, output), "not a run directory")
        if not (tmp_path / "empty").exists():
            Journal(tmp_path / "empty").close()
            newer(copied(run, tmp_path / "newer"))
        one_sentence(call("export", str(tmp_path / "empty"), kind, output), "holds no steps yet")
        one_sentence(call("export", str(tmp_path / "newer"), kind, output), "upgrade steadygrad")
        one_sentence(call("export", str(run), kind, str(tmp_path / "no" / "out")), "cannot be written")
        one_sentence(call("export", str(run), kind, str(run / "run.json")), "a part of the run itself")
        assert not Path(output).exists()
    one_sentence(call("export", str(run)), "--parquet FILE, --csv FILE or both")
    one_sentence(call("export", str(run), "--parquet", "-"), "cannot go to a pipe")
    code, out, err = call("export", str(run), "--csv", "-", "--json")
    assert (code, err) == (2, "")
    assert "choose one" in json.loads(out)["error"]
    forbid(monkeypatch, run / "run.json")
    one_sentence(call("export", str(run), "--csv", str(tmp_path / "out")), "permission denied")
