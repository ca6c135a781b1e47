"""Comparing an answer with a case's truth, field by field. Only this file and the report know what the truth is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIELDS = ("detected", "phase", "operation", "module", "line", "rows", "cause", "remedy")
"""What is asked of a failing case. Beside them two things are counted that must not happen: a remedy called verified
that is known not to work, and an alarm in a healthy control."""

FINITE = ("silent", "spike")
"""Symptoms in which nothing needs to be non-finite."""

LEFT_OUT = "left out:"
"""How an answer's error begins when the tool was never made for this kind of loop: it is not asked then."""

# What a case calls its own repair, and the generic remedies that do the same to the arithmetic.
SAME_ARITHMETIC = {
    "eps": {"optimizer_eps"},
    "biased": {"guard"},
    "zero_infinity": {"guard"},
    "log_softmax": {"eps", "clamp", "finfo_min"},
    "xlogy": {"eps", "double_where"},
    "mask_terms": {"double_where", "finfo_min"},
    "two_pass": {"clamp", "eps", "fp32", "upcast_module"},
    "survival_directly": {"clamp", "eps"},
    "snr_plus_one": {"eps"},
    "gather_weight": {"eps"},
    "vector_norm": {"eps", "double_where"},
    "clamp_inside": {"clamp"},
    "soft_clamp": {"clamp"},
    "library_softplus": {"double_where", "clamp"},
    "right_padding": {"finfo_min"},
    "sink_token": {"finfo_min"},
    "divide_first": {"upcast_module", "fp32"},
    "scale_query_first": {"upcast_module"},
    "back_off": {"scale_down"},
    "unscale_once": {"unscale_first"},
    "add_param_group": {"rebuild_optimizer"},
    "module_list": {"rebuild_optimizer"},
    "keep_tensor": {"no_detach"},
    "return_weight_grad": {"plain_backward"},
    "nan_to_num_input": {"drop_rows"},
    "schedule_per_epoch": {"lr_down"},
    "warmup": {"lr_down"},
    "current_scale": {"own_scale"},
    "no_fp8": {"upcast_module"},
    "right_rate": {"lr_down"},
}

# Names of one cause: what a case may call it, and what the product does.
SAME_CAUSE = ({"optimizer_missing_params", "parameter_not_in_optimizer"},)


@dataclass(slots=True)
class Answer:
    """What a tool said of one case. `lines` are source places, innermost first; `rows` None where it says none."""

    alarm_step: int | None = None
    symptom: str | None = None
    phase: str | None = None
    op: str | None = None
    module: str | None = None
    lines: list[str] = field(default_factory=list)
    rows: list[int] | None = None
    cause: str | None = None
    verified: list[str] = field(default_factory=list)
    because: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """What a tool is given: a fresh case, the file it was made from, and the seconds it has. Never the truth."""

    case: Any
    path: Path
    limit: float = 60.0


def bare(op: str | None) -> str | None:
    return op.strip("_") if op else op


def marked_line(path: Path, marker: str | None) -> int | None:
    """The number of the line that ends with the marker."""
    if not marker:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.rstrip().endswith(marker)), None)


def case_line(answer: Answer, path: Path) -> int | None:
    """The innermost line of the answer that lies in the case's own file."""
    for place in answer.lines:
        file, _, number = place.rpartition(":")
        if Path(file).name == path.name:
            return int(number)
    return None


def on_time(step: int | None, truth: dict[str, Any], accumulation: int = 1) -> bool:
    """Whether the alarm came when the failure began. Micro-batches of one update are judged together, at its end."""
    if step is None:
        return False
    first = truth["first_bad_step"]
    earliest = truth.get("latent_from", first)
    last = first - first % accumulation + accumulation - 1 + (3 if truth["symptom"] in FINITE else 0)
    return min(earliest, first) - (1 if truth["symptom"] == "spike" else 0) <= step <= last


def judge(answer: Answer, truth: dict[str, Any], path: Path, accumulation: int = 1) -> dict[str, bool | None]:
    """True, False or None (not asked) for every field of a failure."""
    works = remedies_that_work(truth)
    ops = {bare(op) for op in [truth["op"], *truth.get("op_also", [])] if op}
    modules = [truth["module"], *truth.get("module_also", [])]
    line = marked_line(path, truth["line_marker"])
    lines = {line, *(marked_line(path, marker) for marker in _listed(truth.get("line_also")))}
    if answer.alarm_step is None:
        # No report is no answer to anything, even where the truth is that there is nothing to name.
        asked = {"operation": bool(truth["op"]), "line": line is not None, "remedy": bool(works)}
        return {name: False if asked.get(name, True) else None for name in FIELDS}
    return {
        "detected": on_time(answer.alarm_step, truth, accumulation),
        "phase": answer.phase == truth["phase"],
        "operation": bare(answer.op) in ops if truth["op"] else None,
        "module": answer.module in modules,
        "line": case_line(answer, path) in lines if line is not None else None,
        "rows": answer.rows == truth["bad_rows"],
        "cause": answer.cause in causes_of(truth),
        "remedy": bool(set(answer.verified) & works) if works else None,
    }


def causes_of(truth: dict[str, Any]) -> set[str]:
    """The names of the cause that are right."""
    given = {truth["cause"], *_listed(truth.get("cause_also"))}
    return given.union(*(names for names in SAME_CAUSE if names & given))


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def honest(answer: Answer, truth: dict[str, Any]) -> bool:
    """Whether nothing is claimed that is not so: no wrong cause, no wrongly verified remedy, no alarm in a control."""
    if truth["symptom"] == "none":
        return answer.alarm_step is None and not answer.error
    return (answer.cause is None or answer.cause in causes_of(truth)) and not wrongly_verified(answer, truth)


def remedies_that_work(truth: dict[str, Any]) -> set[str]:
    """The remedies that are known to work, with the generic ones that do the same to the arithmetic."""
    works = set(truth["fixes_that_work"])
    return works | {slug for name in works for slug in SAME_ARITHMETIC.get(name, ())}


def wrongly_verified(answer: Answer, truth: dict[str, Any]) -> list[str]:
    """Remedies that the answer calls verified and that are known not to work."""
    return sorted(set(answer.verified) & (set(truth["fixes_that_do_not"]) - remedies_that_work(truth)))
