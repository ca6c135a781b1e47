"""The zoo through the entry points: what a user is told of a case is what the case knows to be true."""

import importlib
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # the zoo is not installed with the package
    sys.path.insert(0, str(ROOT))
guard = importlib.import_module("zoo.entry_points.guard")
attach = importlib.import_module("zoo.entry_points.attach")
steady_run = importlib.import_module("zoo.entry_points.steady_run")
loop_script = importlib.import_module("zoo.loop_script")
truth = importlib.import_module("zoo.truth")
protocol = importlib.import_module("zoo.protocol")
load_case = importlib.import_module("zoo.patients").load_case
CASES = ROOT / "zoo" / "cases"

# One of each kind that a guard meets: forward, loss, backward, data, state from outside, accumulation, a raised rate,
# and what nothing non-finite shows.
FAST = (
    "012_variance_cancellation",
    "015_mask_sum_zero_row",
    "024_log_softmax_by_hand",
    "030_where_log_trap",
    "054_bitflip_in_weight",
    "211_class_weight_of_absent_class",
    "228_inf_in_regression_target",
    "230_resized_embedding_never_initialised",
    "240_encoder_behind_detach",
    "241_head_replaced_after_optimizer",
    "313_resume_with_wrong_rate",
)
# What a guard does not report today, and why: nothing but a buffer is bad; hooks between the steps that a re-run cannot
# repeat; an activation hit by chance, which leaves nothing to find again; a warning of the sampled checks that comes
# before there is an incident; gradients that an 8-bit format rounds to zero.
KNOWN = {
    "023_custom_bn_running_var_batch_of_one": {
        "detected",
        "phase",
        "operation",
        "module",
        "line",
        "rows",
        "cause",
        "remedy",
    },
    "048_resume_fp16_optimizer_state": {"phase", "cause", "remedy"},
    "205_adam_eps_after_unfreeze_fp16": {"detected", "phase", "operation", "cause", "remedy"},
    "239_bitflip_in_activation": {"module"},
    "349_fp8_gradients_below_its_smallest_number": set(truth.FIELDS),
    "1353_resume_momentum_from_other_run": {"detected", "phase", "module", "rows", "cause", "remedy"},
    "1371_llama_fp16_gate_times_up": {"detected", "phase", "operation", "module", "line", "rows", "cause"},
    "1380_no_warmup_rate_too_high": {"remedy"},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def missed(path: pathlib.Path) -> set[str]:
    """The fields a guard gets wrong, or "false alarm"."""
    module = load_case(str(path))
    torch.manual_seed(0)
    case = module.make()
    if guard.why_not(case) is not None:
        pytest.skip("not for a guard")
    answer = guard.guard(truth.Subject(case, path))
    if module.TRUTH["symptom"] == "none":
        return {"false alarm"} if answer.alarm_step is not None else set()
    return {
        name for name, right in truth.judge(answer, module.TRUTH, path, case.accumulation).items() if right is False
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.unmet) if n.startswith("313_") else n for n in FAST]
)  # 313: a finite divergence that is not demonstrated in its few steps
def test_an_incident_tells_the_truth_about_its_case(name: str):
    assert missed(CASES / f"{name}.py") == set()


@pytest.mark.filterwarnings("ignore")
def test_a_control_is_left_alone():
    assert missed(CASES / "283_control_double_where_log.py") == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted(CASES.glob("[0-3]*.py")), ids=lambda p: p.stem)
def test_every_case_a_guard_can_own_is_told_as_it_is(path: pathlib.Path):
    assert missed(path) - KNOWN.get(path.stem, set()) == set()


def test_a_loop_with_another_rule_is_not_for_a_guard():
    case = load_case(str(CASES / "006_clip_before_unscale.py")).make()
    assert guard.why_not(case) == "clips scaled gradients"


def subject(name: str) -> "truth.Subject":
    path = CASES / f"{name}.py"
    torch.manual_seed(0)
    return truth.Subject(load_case(str(path)).make(), path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["024_log_softmax_by_hand", "211_class_weight_of_absent_class"])
def test_an_attached_optimizer_detects_a_non_finite_step_when_it_happens(name: str):
    case = subject(name)
    first_bad = load_case(str(case.path)).TRUTH
    answer = attach.attach(case)
    assert truth.on_time(answer.alarm_step, first_bad, case.case.accumulation)


@pytest.mark.filterwarnings("ignore")
def test_an_attached_optimizer_reports_nothing_of_a_control():
    assert attach.attach(subject("283_control_double_where_log")).alarm_step is None


def losses_of_the_script(made: "truth.Subject", capsys: pytest.CaptureFixture[str]) -> list[float]:
    capsys.readouterr()
    exec(compile(loop_script.script_of(made), "train.py", "exec"), {"__name__": "__main__"})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [float(words[1]) for words in printed if words[0].isdigit()]


# A window, a scaler that backs off, clipping in the wrong place, a hand-made scale, a hook between steps, a loop that
# skips, a loss without a graph.
LOOPS = (
    "211_class_weight_of_absent_class",
    "1402_control_scaler_finds_its_scale",
    "006_clip_before_unscale",
    "1303_fixed_loss_scale_too_high",
    "047_resume_with_nan_optimizer_state",
    "057_batchnorm_buffers_poisoned_by_skipped_batch",
    "059_reentrant_checkpoint_no_lora_grad",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOOPS)
def test_the_script_of_a_case_trains_as_the_reference_loop_does(name: str, capsys: pytest.CaptureFixture[str]):
    expected = [record.loss for record in protocol.train(subject(name).case)]
    assert losses_of_the_script(subject(name), capsys) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_report_is_about_the_batch_at_work_or_the_earlier_one_that_it_names():
    said = "batch 0 at 10.0\nupdate after batch 0\nbatch 1 at 20.0\nbatch 2 at 30.0\nupdate after batch 2\n"
    timeline = steady_run._Timeline.of(said)
    assert timeline.batch_of(update=1, time=31.0) == 2
    assert timeline.batch_of(update=1, time=25.0) == 1, "the loop skipped batch 1: it made no update"
    assert timeline.batch_of(update=40, time=25.0) == 1, "updates of other trainings in the process are counted too"
    assert timeline.batch_of(update=0, time=25.0) == 0, "it went back and caught the update before"
    assert steady_run._Timeline.of("").batch_of(update=3, time=25.0) == 3
