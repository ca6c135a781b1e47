"""The doctor over files: what it reads, where it points, what silences it, and that nothing in them runs."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from steadygrad.checkup.doctor import doctor_files, judge
from steadygrad.checkup.inputs.input_files import read_target
from steadygrad.checkup.inputs.run_settings import Settings
from steadygrad.checkup.inputs.script import Script
from steadygrad.checkup.rule_selection import Selection
from steadygrad.commands import main
from steadygrad.records.checks.checkup import Level
from steadygrad.records.errors import UsageError

Call = Callable[..., tuple[int, str, str]]
BOTH = """from transformers import TrainingArguments
args = TrainingArguments(
    output_dir='x',
    fp16=True,
    bf16=True,
)
"""
UNSCALED = """import torch
for x in loader:
    optimizer.zero_grad()
    scaler.scale(model(x)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){comment}
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steady", "doctor", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def codes(*paths: Path, **options: object) -> list[str]:
    return [advice.code for advice in doctor_files(list(paths), **options).advice]  # type: ignore[arg-type]


# -- places


def test_advice_points_at_the_line_that_has_to_change(tmp_path: Path) -> None:
    script = written(tmp_path, "train.py", UNSCALED.format(comment=""))
    (advice,) = doctor_files([script], select=["PF2"]).advice
    assert (advice.line, advice.column, advice.level) == (5, 5, Level.ERROR)
    assert "clip_grad_norm_" in advice.code_line


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("run.yaml", "training:\n  bf16: true\n  fp16: true\n", 3),
        ("run.toml", "[training]\nbf16 = true\nfp16 = true\n", 3),
        ("run.json", '{\n "bf16": {"enabled": true},\n "fp16": {\n  "enabled": true\n }\n}\n', 4),
        ("train.py", BOTH, 4),
    ],
)
def test_the_same_setting_is_found_in_every_format_at_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = written(tmp_path, name, text)
    (advice,) = doctor_files([path], select=["PF103"]).advice
    assert advice.line == line
    assert "fp16" in path.read_text().splitlines()[advice.line - (2 if name == "run.json" else 1)]


def test_a_notebook_is_read_as_the_script_its_cells_make(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# title\n"]},
        {"cell_type": "code", "source": ["!pip install torch\n", "%matplotlib inline\n", "import torch\n"]},
        {"cell_type": "code", "source": "p = torch.softmax(x, -1)\nloss = torch.log(p).mean()\n"},
        {"cell_type": "code", "source": "%%bash\nrm -r nothing\n"},
    ]
    path = written(tmp_path, "train.ipynb", json.dumps({"cells": cells}))
    assert codes(path) == ["PF401"]


# -- saved arguments


class _Trap:
    """Unpickling this for real would make a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def test_a_saved_training_arguments_is_judged_without_running_what_it_holds(tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    state = {"output_dir": "x", "fp16": True, "bf16": True, "learning_rate": 1e-5, "trap": _Trap(str(proof))}
    saved = tmp_path / "training_args.bin"
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(state))
    found = doctor_files([saved], select=["PF103"])
    assert [advice.code for advice in found.advice] == ["PF103"]
    assert not proof.exists()


def test_what_transformers_really_saves_can_be_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), learning_rate=5e-3, save_total_limit=1, save_strategy="steps", use_cpu=True
    )
    torch.save(args, tmp_path / "training_args.bin")
    settings = read_target(tmp_path / "training_args.bin")
    assert isinstance(settings, Settings)
    assert settings.number("learning_rate") == 5e-3
    assert settings.word("save_strategy") == "steps"
    assert settings.on("use_cpu")
    assert "PF304" in codes(tmp_path / "training_args.bin")


# -- silence


def test_a_comment_allows_a_finding_on_its_line_above_it_and_for_the_file(tmp_path: Path) -> None:
    here = written(tmp_path, "here.py", UNSCALED.format(comment="  # steady: allow PF201 the scale is one"))
    above = UNSCALED.format(comment="").replace("    torch.nn", "    # steady: allow PF201, PF202\n    torch.nn")
    file = "# steady: allow-file PF2\n" + UNSCALED.format(comment="")
    for path in (here, written(tmp_path, "above.py", above), written(tmp_path, "file.py", file)):
        found = doctor_files([path])
        assert found.advice == ()
        assert found.num_allowed == 1


def test_a_comment_for_another_code_or_another_line_allows_nothing(tmp_path: Path) -> None:
    other = written(tmp_path, "other.py", UNSCALED.format(comment="  # steady: allow PF202"))
    far = written(tmp_path, "far.py", "# steady: allow PF201\n" + UNSCALED.format(comment=""))
    assert codes(other) == codes(far) == ["PF201"]


def test_select_and_ignore_take_codes_and_their_beginnings(tmp_path: Path) -> None:
    path = written(tmp_path, "train.py", BOTH + UNSCALED.format(comment=""))
    assert set(codes(path)) == {"PF103", "PF201", "PF301"}
    assert codes(path, select=["PF2"]) == ["PF201"]
    assert set(codes(path, ignore=["PF2,PF301"])) == {"PF103"}
    with pytest.raises(UsageError, match="no code of the doctor"):
        codes(path, select=["E501"])
    with pytest.raises(UsageError, match="no rule PF999"):
        codes(path, ignore=["PF999"])


def test_pyproject_chooses_rules_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    written(tmp_path, "pyproject.toml", '[tool.steadygrad.doctor]\nselect = ["PF1", "PF2"]\nignore = ["PF103"]\n')
    path = written(tmp_path, "deep/train.py", BOTH + UNSCALED.format(comment=""))
    assert codes(path) == ["PF201"]
    assert codes(path, select=["PF3"]) == ["PF301"]
    written(tmp_path, "pyproject.toml", "[tool.steadygrad.doctor]\nselct = []\n")
    with pytest.raises(UsageError, match=r"\[tool.steadygrad.doctor\] takes exclude, ignore, select"):
        codes(path)


def test_a_folder_is_searched_for_training_files_and_only_those(tmp_path: Path) -> None:
    written(tmp_path, "a/train.py", BOTH)
    written(tmp_path, "a/package.json", '{"fp16": true, "bf16": true}')
    written(tmp_path, "a/.hidden/train.py", BOTH)
    written(tmp_path, "a/broken.py", "import torch\ndef (")
    written(tmp_path, "a/run.yaml", "per_device_train_batch_size: 8\nfp16: true\nbf16: true\n")
    found = doctor_files([tmp_path], select=["PF103"])
    assert [Path(place).name for place in found.looked_at] == ["run.yaml", "train.py"]
    assert len(found.advice) == 2


# -- the command


def test_notes_stand_below_errors_with_a_sentence_that_says_what_they_are(tmp_path: Path, call: Call) -> None:
    note = "from transformers import TrainingArguments\nTrainingArguments(output_dir='x')\n"
    path = written(tmp_path, "both.py", note + UNSCALED.format(comment=""))
    for text in (call(path)[1], str(doctor_files([path]))):
        assert text.index("error PF201") < text.index("Worth a look") < text.index("note PF301")
    only = written(tmp_path, "bad.py", UNSCALED.format(comment=""))
    assert "Worth a look" not in call(only)[1]


def test_the_command_exits_with_1_for_warnings_and_errors_and_0_for_notes_alone(tmp_path: Path, call: Call) -> None:
    bad = written(tmp_path, "bad.py", UNSCALED.format(comment=""))
    noted = written(
        tmp_path, "noted.py", "from transformers import TrainingArguments\nTrainingArguments(output_dir='x')\n"
    )
    clean = written(tmp_path, "clean.py", "import torch\ndef loss(x, y):\n    return torch.dist(x, y)\n")
    code, out, _ = call(bad)
    assert code == 1
    assert f"{bad}:5:5 error PF201 clip_before_unscale" in out
    assert "scaler.unscale_(optimizer)" in out
    assert "1 finding (1 error)" in out
    code, out, _ = call(noted)
    assert code == 0
    assert "note PF301" in out
    assert call(noted, "--strict")[0] == 1
    assert call(clean, "--strict")[0] == 0
    code, out, _ = call(clean)
    assert code == 0
    assert "no findings (" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hello.py", 'print("hello")\n'),
        ("only_imports.py", "import torch\n"),
        ("service.yaml", "port: 8080\nname: web\n"),
        ("package.json", '{"name": "web"}'),
    ],
)
def test_a_file_without_training_is_not_called_healthy(tmp_path: Path, call: Call, name: str, text: str) -> None:
    path = written(tmp_path, name, text)
    code, out, err = call(path)
    assert (code, out) == (2, "")
    assert f"Nothing was checked: no training was recognised in {path}" in err.replace("\n", "")


def test_a_file_without_training_beside_a_healthy_one_is_named_and_ends_in_2(tmp_path: Path, call: Call) -> None:
    hello = written(tmp_path, "hello.py", 'print("hello")\n')
    clean = written(tmp_path, "clean.py", "import torch\ndef loss(x, y):\n    return torch.dist(x, y)\n")
    code, out, _ = call(hello, clean)
    assert code == 2
    assert f"nothing was checked in {hello}" in out.replace("\n", "")
    assert call(hello, written(tmp_path, "bad.py", UNSCALED.format(comment="")))[0] == 1


def test_json_holds_everything_a_program_needs(tmp_path: Path, call: Call) -> None:
    bad = written(tmp_path, "bad.py", UNSCALED.format(comment=""))
    code, out, _ = call(bad, "--json")
    found = json.loads(out)
    assert code == 1
    assert found["looked_at"] == [str(bad)]
    assert {"code": "PF201", "level": "error", "line": 5, "path": str(bad)}.items() <= found["advice"][0].items()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gone.py", None, "There is no file"),
        ("broken.py", "def (", "not Python that can be read"),
        ("broken.yaml", "a: [1\n", "cannot be parsed"),
        ("broken.json", "{", "cannot be parsed"),
        ("broken.toml", "=", "cannot be parsed"),
        ("picture.png", "x", "does not read .png"),
        ("weights.bin", "xx", "format torch has used since 1.6"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_code_2(
    tmp_path: Path, call: Call, name: str, text: str | None, words: str
) -> None:
    path = tmp_path / name if text is None else written(tmp_path, name, text)
    code, out, err = call(path)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_an_empty_folder_and_a_binary_file_are_refused_in_words(tmp_path: Path, call: Call) -> None:
    (tmp_path / "nothing").mkdir()
    assert "No training script" in call(tmp_path / "nothing")[2]
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00bad")
    assert "not text in UTF-8" in call(tmp_path / "bytes.py")[2]


def test_hostile_text_is_shown_without_its_control_characters(tmp_path: Path, call: Call) -> None:
    path = written(tmp_path, "run.yaml", 'output_dir: x\nmodel_name_or_path: "google/t5-\\e[2J"\nfp16: true\n')
    code, out, _ = call(path)
    assert code == 0
    assert "PF104" in out
    assert "\x1b" not in out


def test_yaml_that_repeats_itself_without_end_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 30)]
    with pytest.raises(UsageError, match="without end"):
        read_target(written(tmp_path, "bomb.yaml", "\n".join(lines)))


def test_reading_files_imports_no_torch(tmp_path: Path) -> None:
    path = written(tmp_path, "run.yaml", "fp16: true\nbf16: true\n")
    script = (
        "import sys\nfrom steadygrad.checkup.doctor import doctor_files\nfrom pathlib import Path\n"
        f"assert doctor_files([Path({str(path)!r})]).advice\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_optimizer_that_yaml_names_in_a_tag_is_the_one_that_is_judged(tmp_path: Path) -> None:
    text = "lr: 1.0\nprecision: bf16\nwarmup_steps: 10\nmodel: gpt2\nopt_class: !name:torch.optim.{}\n  lr: !ref <lr>\n"
    for name, expected in (("Adadelta", set()), ("AdamW", {"PF209"})):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.format(name))
        found = doctor_files([path], select=["PF209"])
        assert {each.code for each in found.advice} == expected


@pytest.mark.parametrize(
    "text",
    [
        """import torch
from peft import get_peft_model
class Runner:
    def load(self):
        if self.adapter:
            self.model = get_peft_model(self.model, self.config)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
""",
        "import torch\ndef scale(x):\n    return scale(x) / 2\ndef loss(x):\n    return torch.exp(x) / scale(x)\n",
    ],
    ids=["an object made from itself", "a function that returns itself"],
)
def test_names_that_lead_back_to_themselves_come_to_an_end(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "train.py", text)
    program = "import sys; import steadygrad as sg; sg.doctor(sys.argv[1], show=False)"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)


def test_a_large_file_of_data_beside_the_scripts_is_passed_over_in_seconds(tmp_path: Path) -> None:
    rows = {f"name{number}": {"id": number, "split": "train"} for number in range(30_000)}
    path = written(tmp_path, "names.json", json.dumps(rows, indent=1))
    start = time.process_time()
    found = read_target(path)
    assert isinstance(found, Settings)
    assert found.kind == "unknown"
    assert time.process_time() - start < 5


def test_a_line_of_data_without_a_key_is_passed_over_in_seconds(tmp_path: Path) -> None:
    path = written(tmp_path, "session.json", json.dumps({"image": "A" * 400_000}))
    start = time.process_time()
    read_target(path)
    assert time.process_time() - start < 5


def test_a_class_of_a_file_that_is_not_there_adds_no_calls(tmp_path: Path) -> None:
    models = "".join(f"model{n} = Net(model{n - 1}.part)\n" for n in range(1, 30))
    text = (
        f"import torch\nfrom models import Net\nmodel0 = Net(1)\n{models}torch.optim.Adam(model29.part.parameters())\n"
    )
    script = Script(str(tmp_path / "train.py"), text)
    num_calls = len(script.calls)
    for _ in range(3):
        list(judge(script, Selection()))
    assert len(script.calls) == num_calls


def test_a_file_of_metrics_is_not_differentiated(tmp_path: Path) -> None:
    text = "import torch\ndef loss(a, b):\n    return torch.sqrt(((a - b) ** 2).mean())\n"
    assert doctor_files([written(tmp_path, "bias_metrics.py", text)]).advice == ()
    assert len(doctor_files([written(tmp_path, "terms.py", text)]).advice) == 1


def test_a_benchmark_does_not_learn(tmp_path: Path) -> None:
    text = "import torch\nwith torch.autocast('cuda'):\n    loss = model(x).sum()\n    loss.backward()\n"
    assert doctor_files([written(tmp_path, "benchmark.py", text)]).advice == ()
    assert [each.code for each in doctor_files([written(tmp_path, "train.py", text)]).advice] == ["PF107"]


RATES = [{"epoch": 0.25, "learning_rate": 0.3, "loss": float("inf"), "step": 4}, {"learning_rate": 0.2, "step": 8}]


@pytest.mark.parametrize(
    "recorded",
    [
        {"log_history": RATES, "num_train_epochs": 2, "train_batch_size": 8, "logging_steps": 500, "save_steps": 16},
        {"history": [{"step": 1, "train_loss": 2.5, "lr": 0.3, "optimizer": "adamw"}], "epochs": 3},
        {"epoch": 1, "loss": 0.5, "learning_rate": 0.3, "optimizer": "adamw", "batch_size": 8},
    ],
    ids=["the state of a trainer", "a history", "a line of a log"],
)
def test_what_a_run_recorded_is_not_taken_for_its_settings(tmp_path: Path, recorded: dict[str, object]) -> None:
    path = written(tmp_path, "trainer_state.json", json.dumps(recorded, indent=1))
    with pytest.raises(UsageError, match="no training was recognised"):
        codes(path)


def test_a_configuration_that_names_its_loss_is_one_still(tmp_path: Path) -> None:
    chosen = {"loss": "l1", "step": 10, "optimizer": "adamw", "learning_rate": 0.3, "batch_size": 8, "epochs": 3}
    found = read_target(written(tmp_path, "config.json", json.dumps(chosen, indent=1)))
    assert isinstance(found, Settings)
    assert found.number("learning_rate") == 0.3
