"""`steady run` with real processes: what passes through, what is said in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steadygrad.commands import main
from steadygrad.integrations.zero_code.launch.clean_tracebacks import without_ours
from steadygrad.integrations.zero_code.launch.run_options import RunOptions
from steadygrad.integrations.zero_code.launch.supervise import command_line, default_run_dir, own_run_dir
from steadygrad.journal import read_incidents, read_quarantine
from steadygrad.records.errors import UsageError

ROOT = Path(__file__).resolve().parents[4]
STEADY = [sys.executable, "-m", "steadygrad.commands"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

LOOP = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = [torch.randn(4, 3) for _ in range(6)]
if "--poison" in sys.argv:
    bad = data[0].clone()
    bad[1, 1] = float("nan")
    data.insert(3, bad)
torch.manual_seed(1)
for x in data:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
torch.save([model.state_dict(), optimizer.state_dict(), schedule.state_dict()], sys.argv[1])
"""


def steady_run(*words: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STEADY, "run", *map(str, words)], cwd=cwd, env=options.pop("env", ENVIRONMENT), capture_output=True,
        text=True, check=False, timeout=240, **options,
    )  # fmt: skip


def bits(path: Path) -> list[bytes]:
    import torch

    def leaves(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            yield value.numpy().tobytes()
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                yield from leaves(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                yield from leaves(item)
        else:
            yield repr(value).encode()

    return list(leaves(torch.load(path, weights_only=True)))


def test_one_poisoned_batch_ends_in_the_bits_of_the_run_without_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    subprocess.run([sys.executable, script, tmp_path / "alone.pt"], check=True, env=ENVIRONMENT, timeout=240)
    done = steady_run("--run-dir", "run", "train.py", "guarded.pt", "--poison", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert bits(tmp_path / "guarded.pt") == bits(tmp_path / "alone.pt")
    assert "steady run: 6 of 7 updates applied, 1 refused (step 3)." in done.stderr
    assert "DX401 bad_input" in done.stderr
    assert "next      steady diagnose run" in done.stderr
    (incident,) = read_incidents(tmp_path / "run")
    assert (incident.first_step, incident.symptom) == (3, "nan_loss")


def test_the_example_runs_and_names_the_broken_sample(tmp_path: Path) -> None:
    done = steady_run("--json", ROOT / "examples" / "plain_loop.py", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "weights finite" in done.stdout
    told = json.loads(done.stderr.splitlines()[-1])
    assert (told["steps"], told["skipped"], told["exit_code"]) == (8, 1, 0)
    (run,) = told["run_dirs"]
    assert Path(run).parent == tmp_path / "runs"
    (entry,) = read_quarantine(run)
    assert list(entry.sample_ids) == ["137"]


PROBE = """
import __main__, json, sys
print(json.dumps({"argv": sys.argv, "name": __name__, "file": __file__, "main": __main__.__file__, "path": sys.path[0],
                  "sitecustomize": "chained" if hasattr(sys, "chained") else "none"}))
print("to stderr", file=sys.stderr)
sys.stdout.flush()
sys.exit(7)
"""


def test_arguments_main_output_and_exit_code_are_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.chained = True\n")
    arguments = ["probe.py", "--policy", "mine", "-h", "--", "x y"]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(theirs), os.environ.get("PYTHONPATH", "")])}
    alone = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    guarded = steady_run("--policy", "observe", *arguments, cwd=tmp_path, env=environment)
    assert guarded.returncode == alone.returncode == 7
    assert guarded.stdout == alone.stdout
    assert json.loads(alone.stdout)["sitecustomize"] == "chained"  # the one that was there before runs too
    assert guarded.stderr.startswith("to stderr\n")
    assert "nothing was checked: the program did not import torch." in guarded.stderr
    assert not (tmp_path / "runs").exists()


def test_a_module_runs_as_python_m_would_run_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    done = steady_run("-m", "package.train", "--run-dir", "theirs", cwd=tmp_path)
    assert done.stdout == "__main__ package ['--run-dir', 'theirs']\n"
    assert done.returncode == 0


def test_a_command_behind_two_dashes_is_run_as_it_is(tmp_path: Path) -> None:
    done = steady_run("--", "sh", "-c", "echo $0 $1; exit 5", "a", "b", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("a b\n", 5)
    assert "no Python process loaded steadygrad" in done.stderr


def test_a_traceback_is_the_programs_own_and_names_the_nan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(3, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "class Broken(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): raise ValueError('from their backward')\n"
        "probability = Broken.apply(model(torch.zeros(4, 3))) * 0.0 / 0.0\n"
        "probability.sum().backward()\n"
    )
    done = steady_run("train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: from their backward" in done.stderr
    start = done.stderr.index("Traceback")
    trace = done.stderr[start : done.stderr.index("ValueError", start)]
    assert "train.py" in trace
    assert "steadygrad" not in trace
    assert "steadygrad: where this error was raised, `g`" in done.stderr
    assert "holds 8 NaN among its 8 values" in done.stderr


def test_a_halt_by_the_policy_is_exit_code_23(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    optimizer.zero_grad()\n"
        "    (model(torch.ones(2, 3)) * float('nan')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = steady_run("--diagnose", "off", "train.py", cwd=tmp_path)
    assert done.returncode == 23
    assert "TrainingHalted" in done.stderr
    assert "steady run: halted at step 99: " in done.stderr
    assert " 0 of 100 updates applied, 100 refused (steps 0-99)." in done.stderr
    assert "last good" not in done.stderr[done.stderr.index("steady run: halted") :]


def test_a_program_that_exits_without_a_report_is_described_from_its_journal(tmp_path: Path) -> None:
    """Killed, out of memory, or `os._exit`: no clean-up of ours runs in it."""
    (tmp_path / "train.py").write_text(
        "import os\n"
        "import torch\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.full((2, 3), float('nan'))).sum().backward()\n"
        "optimizer.step()\n"
        "os._exit(3)\n"
    )
    done = steady_run("--diagnose", "off", "--run-dir", "run", "train.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "the program exited without a report (killed?); recorded until then:" in done.stderr
    assert "incident  1, step 0: the loss is nan" in done.stderr


SLEEPER = """
import signal, sys, time
if "--quiet" in sys.argv:
    def asked(number, frame):
        print("asked to end", number, flush=True)
        sys.exit(9)
    signal.signal(signal.SIGTERM, asked)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("words", "expected"), [(["--quiet"], 9), ([], -signal.SIGTERM)])
def test_a_signal_sent_to_us_reaches_the_program_and_its_end_is_ours(
    words: list[str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "sleep.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [*STEADY, "run", "sleep.py", *words], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == expected
    assert out == ("asked to end 15\n" if words else "")


def test_a_supervisor_that_is_killed_takes_the_program_with_it(tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [*STEADY, "run", "sleep.py"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    # The pipe's other end is the program's too: it closes when the program is gone.
    out, _ = process.communicate(timeout=120)
    assert out == ""


# -- what cannot be run, in one sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "There is nothing to run"),
        (["missing.py"], "There is no script missing.py"),
        (["no-such-command-anywhere"], "neither a script nor a command no-such-command-anywhere"),
        (["."], "is a directory without a __main__.py"),
    ],
)
def test_what_cannot_be_run_gets_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        command_line(words)


def test_a_wrong_option_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    done = steady_run("--policy", "brave", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("steady: There is no policy 'brave'.")


def test_a_script_is_told_from_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "without_suffix").write_text("")
    assert command_line(["train.py", "-x"]) == [sys.executable, "train.py", "-x"]
    assert command_line(["without_suffix"]) == [sys.executable, "without_suffix"]
    assert command_line(["pkg.train", "a"], module=True) == [sys.executable, "-m", "pkg.train", "a"]
    assert Path(command_line(["sh", "-c", "true"])[0]).name == "sh"


def test_a_run_without_a_name_gets_one_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    first = default_run_dir(["torchrun", "--nproc-per-node", "2", "src/fine tune.py"])
    assert first == Path("runs/fine-tune-now")
    first.mkdir(parents=True)
    assert default_run_dir(["fine tune.py"]) == Path("runs/fine-tune-now-2")


def test_settings_travel_through_the_environment_unchanged() -> None:
    settings = RunOptions(run_dir="a b", policy="observe", notify="https://example.org/?a=b", reports=None)
    environment = settings.environment({"PYTHONPATH": "mine"})
    assert RunOptions.from_environment(environment) == settings
    assert environment["PYTHONPATH"].split(os.pathsep)[1:] == ["mine"]
    assert RunOptions.from_environment({}) is None


def test_a_traceback_loses_our_frames_and_keeps_the_rest() -> None:
    from steadygrad.policy import Policy

    try:
        Policy.named("nobody")
    except UsageError as error:
        frames = []
        trace = without_ours(error.__traceback__)
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
    assert frames == ["test_a_traceback_loses_our_frames_and_keeps_the_rest"]


def test_a_second_run_into_one_directory_gets_the_next_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    command = command_line(["train.py"])
    assert own_run_dir(Path("runs/a"), command) == Path("runs/a")
    for name in ("a", "a-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        assert own_run_dir(Path("runs") / name, command) == Path("runs") / name  # an empty folder holds no run
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    assert own_run_dir(Path("runs/a"), command) == Path("runs/a-3")
    assert own_run_dir(Path("runs/a"), ["torchrun", "--nnodes=2", "train.py"]) == Path("runs/a")
    monkeypatch.setattr(sys, "argv", ["steady", "run", "--run-dir", "runs/a", "train.py"])
    with pytest.raises(SystemExit):
        main()
    assert "steady run: runs/a holds a run already, so this one is written to runs/a-3." in capsys.readouterr().err
