"""Checks that every case in the zoo tells the truth: the program is run and its TRUTH is compared with what happened.

    python -m zoo.verify [--cases GLOB] [--quick]

For one case it runs the reference loop once as written, once for every repair it names, and once for every guilty row
it names, and returns a list of complaints in plain words (an empty list: the case is honest). Nothing here looks inside
the program; it reads the log of `protocol.train` alone, so it cannot agree with a diagnosis by sharing its reasoning.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

ZOO = pathlib.Path(__file__).resolve().parent
if str(ZOO) not in sys.path:
    sys.path.insert(0, str(ZOO))

import protocol  # noqa: E402  (the cases import it by this plain name, so there must be one copy of it)

GENERIC = frozenset({"skip_batch", "clip", "zero_nan_grads", "drop_rows", "lr_down", "fp32", "bf16"})
MOST_SKIPS = 3  # a repair by skipping may give up this many steps
JUMP = 3.0  # a finite blow-up is this many times more than anything before it
CONTROL = "none"


def build(module: ModuleType, fix: str | None = None) -> Any:
    """A fresh case with the random state pinned, so two builds of one case are the same program."""
    torch.manual_seed(0)
    return module.make(fix=fix)


def run_with(module: ModuleType, slug: str) -> tuple[Any, list[Any]]:
    """Run the case repaired by `slug`: the case's own repair if it has one by that name, else the generic one."""
    truth = module.TRUTH
    if slug in getattr(module, "FIXES", ()):
        case = build(module, slug)
        return case, protocol.train(case)
    if slug not in GENERIC:
        raise ValueError(f"{truth['id']} names the repair {slug!r}, which is neither its own nor a generic one")
    case = build(module)
    drop = None
    policy: tuple[str, ...] = ()
    if slug in ("skip_batch", "clip", "zero_nan_grads"):
        policy = (slug,)
    elif slug == "drop_rows":
        drop = {truth["first_bad_step"]: list(truth["bad_rows"])}
    elif slug == "lr_down":
        scale_learning_rate(case, 0.01)
    else:
        if case.autocast is None:
            raise ValueError(f"{truth['id']} names the generic repair {slug!r} but does not run under autocast")
        case.autocast = torch.bfloat16 if slug == "bf16" else None
        case.scaler = None
    return case, protocol.train(case, policy=policy, drop=drop)


def scale_learning_rate(case: Any, factor: float) -> None:
    for group in case.optimizer.param_groups:
        group["lr"] *= factor
        if "initial_lr" in group:
            group["initial_lr"] *= factor
    if case.scheduler is not None and hasattr(case.scheduler, "base_lrs"):
        case.scheduler.base_lrs = [lr * factor for lr in case.scheduler.base_lrs]


def works(case: Any, log: list[Any], slug: str) -> bool:
    """The README's definition: everything finite to the end, or what the case itself calls healthy."""
    if case.healthy is not None:
        return bool(case.healthy(log))
    bad = [r for r in log if not (r.loss_ok and r.grad_ok)]
    if slug == "skip_batch":
        if len(bad) > MOST_SKIPS or not all(r.skipped for r in bad):
            return False
    elif any(not (case.scaler is not None and r.loss_ok and r.skipped) for r in bad):
        return False  # a scaler that skips a scaled overflow is normal life
    return all_finite_at_the_end(case) and not any(math.isnan(r.loss) for r in log if not r.skipped and r.stepped)


def all_finite_at_the_end(case: Any) -> bool:
    return (
        protocol.finite(case.model.parameters())
        and protocol.finite(case.model.buffers())
        and protocol.finite(protocol.opt_state(case.optimizer))
    )


def first(log: list[Any], bad: Callable[[Any], bool]) -> int | None:
    return next((r.step for r in log if bad(r)), None)


def first_jump(log: list[Any]) -> int | None:
    """The first step whose loss, gradient norm or update is far beyond everything before it."""
    for i in range(1, len(log)):
        for field in ("loss", "grad_norm", "update_norm"):
            past = max(abs(getattr(r, field)) for r in log[:i])
            now = getattr(log[i], field)
            if not math.isfinite(now) or (past > 0 and abs(now) > JUMP * past):
                return i
    return None


def check_symptom(truth: dict[str, Any], case: Any, log: list[Any]) -> list[str]:
    symptom, at = truth["symptom"], truth["first_bad_step"]
    seen = {
        "loss": first(log, lambda r: not r.loss_ok),
        "grad": first(log, lambda r: r.loss_ok and not r.grad_ok and case.scaler is None),
        "param": first(log, lambda r: not r.param_ok),
        "state": first(log, lambda r: not (r.state_ok and r.buffer_ok)),
    }
    says: list[str] = []
    if symptom == CONTROL:
        noisy = [k for k, v in seen.items() if v is not None]
        if noisy and not truth.get("nonfinite_in_passing"):
            says.append(f"a healthy control shows non-finite {noisy}: {seen}")
        if case.healthy is not None and not case.healthy(log):
            says.append("a healthy control is not healthy by its own criterion")
        return says
    if symptom in ("silent", "spike"):
        if case.healthy is None:
            return [f"a {symptom} case needs healthy(log)"]
        if case.healthy(log):
            says.append("healthy(log) calls the sick program healthy")
        if symptom == "spike" and at > 0 and first_jump(log) != at:
            says.append(f"the blow-up begins at step {first_jump(log)}, not {at}")
        if symptom == "silent":
            if not truth.get("nonfinite_in_passing") and any(v is not None for v in seen.values()):
                says.append(f"a silent case shows non-finite values: {seen}")
            when = case.extra.get("first_bad")
            if when is not None and when(log) != at:
                says.append(f"the silent failure begins at step {when(log)}, not {at}")
            if when is None and at != 0:
                says.append("a silent case that begins after step 0 needs extra['first_bad'](log)")
        return says
    key = {"nan_loss": "loss", "inf_loss": "loss", "nan_grad": "grad", "nan_param": "param", "nan_state": "state"}
    kind = key[symptom]
    if seen[kind] != at:
        says.append(f"{symptom} at step {seen[kind]}, not {at}: {seen}")
        return says
    shows = log[at].loss
    if symptom == "nan_loss" and not math.isnan(shows):
        says.append(f"the loss at step {at} is {shows}, not NaN")
    if symptom == "inf_loss" and not math.isinf(shows):
        says.append(f"the loss at step {at} is {shows}, not infinite")
    order = ["loss", "grad", "param", "state"]
    earlier_kinds = order[: order.index(kind)]
    for other in order:
        step = seen[other]
        if step is None or other == kind:
            continue
        if step < at and truth.get("phase") != "state" and not truth.get("nonfinite_in_passing"):
            says.append(f"non-finite {other} already at step {step}, before {symptom} at {at}")
        if step == at and other in earlier_kinds:
            says.append(f"{symptom} claims a finite {other} but it is not at step {step}")
    if truth.get("gradients_are_zero") and any(g for g in (log[at].grads or {}).values()):
        says.append("gradients_are_zero, yet a gradient is not zero")
    return says


def symptom_at(module: ModuleType, drop: list[int]) -> bool:
    """Does the named step still fail when these rows are taken out of its batch?"""
    truth = module.TRUTH
    at = truth["first_bad_step"]
    case = build(module)
    if len(drop) == protocol.n_rows(case.batches[at]):
        return False  # nothing is left to fail
    log = protocol.train(case, steps=at + 1, drop={at: drop})
    watched = ("loss_ok", "grad_ok", "param_ok", "state_ok", "buffer_ok")
    fresh = [
        w for w in watched if at == 0 or getattr(log[at - 1], w)
    ]  # what was bad before says nothing about these rows
    return not all(getattr(log[at], w) for w in fresh)


def check_rows(module: ModuleType) -> list[str]:
    truth = module.TRUTH
    rows = truth.get("bad_rows")
    if not rows or truth.get("row_test") == "none" or truth["symptom"] in ("silent", "spike"):
        return []
    case = build(module)
    total = protocol.n_rows(case.batches[truth["first_bad_step"]])
    units = [u for u in (case.row_units or [[r] for r in range(total)]) if set(u) <= set(rows)]
    says = []
    if len(rows) < total and symptom_at(module, rows):
        says.append(f"dropping the guilty rows {rows} does not heal the step")
    for unit in units:
        others = [r for r in rows if r not in unit]
        if not symptom_at(module, others):
            says.append(f"rows {unit} are called guilty but alone they do not make the step fail")
    return says


def check_shape(module: ModuleType, path: pathlib.Path) -> list[str]:
    truth = module.TRUTH
    says = []
    if truth["id"] != path.stem:
        says.append(f"the id {truth['id']!r} is not the file name")
    if not truth.get("source"):
        says.append("no source")
    for key, vocabulary in (("cause", known_causes()), ("symptom", protocol.SYMPTOMS), ("phase", protocol.PHASES)):
        if truth[key] not in vocabulary:
            says.append(f"{key} {truth[key]!r} is not in the vocabulary")
    marker = truth.get("line_marker")
    if marker:
        count = sum(line.rstrip().endswith(marker) for line in path.read_text().splitlines())
        if count != 1:
            says.append(f"the line marker ends {count} lines, not one")
    both = set(truth["fixes_that_work"]) & set(truth["fixes_that_do_not"])
    if both:
        says.append(f"repairs called both working and not: {sorted(both)}")
    idle = set(getattr(module, "FIXES", ())) - set(truth["fixes_that_work"]) - set(truth["fixes_that_do_not"])
    if idle:
        says.append(f"repairs that the case offers and never judges: {sorted(idle)}")
    return says


def known_causes() -> set[str]:
    gpu_only = {"library_bug", "compiler_numerics", "fp8_overflow", "async_race"}
    return set(protocol.CAUSES) | gpu_only


def check_module_names(module: ModuleType) -> list[str]:
    truth = module.TRUTH
    names = {n for n, _ in build(module).model.named_modules()}
    wanted = [truth.get("module"), *truth.get("module_also", [])]
    return [f"the model has no module {n!r}" for n in wanted if n is not None and n not in names]


def check(path: pathlib.Path, *, quick: bool = False) -> list[str]:
    """Everything that is wrong with one case, in words. `quick` leaves out repairs and rows."""
    module = protocol.load(path)
    truth = module.TRUTH
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        says = check_shape(module, path)
        case = build(module)
        log = protocol.train(case)
        says += check_symptom(truth, case, log)
        says += check_module_names(module)
        again = [r.loss for r in protocol.train(build(module))]
        if not all(a.loss == b or (math.isnan(a.loss) and math.isnan(b)) for a, b in zip(log, again, strict=True)):
            says.append("two runs of the same case give different losses")
        if quick:
            return says
        for slug in truth["fixes_that_work"]:
            fixed, fixed_log = run_with(module, slug)
            if not works(fixed, fixed_log, slug):
                says.append(f"{slug} is said to work and does not")
        for slug in truth["fixes_that_do_not"]:
            fixed, fixed_log = run_with(module, slug)
            if works(fixed, fixed_log, slug):
                says.append(f"{slug} is said not to work and does")
        says += check_rows(module)
    return says


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zoo.verify", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="*.py", help="file name pattern inside zoo/cases, or a path pattern")
    parser.add_argument("--quick", action="store_true", help="symptom and shape only: no repairs, no rows")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    root = pathlib.Path(options.cases).parent if "/" in options.cases else ZOO / "cases"
    paths = sorted(root.glob(pathlib.Path(options.cases).name))
    if not paths:
        print(f"No case matches {options.cases!r} in {root}.")
        return 2
    wrong = 0
    for path in paths:
        began = time.perf_counter()
        try:
            says = check(path, quick=options.quick)
        except Exception as error:
            says = [f"it crashed: {type(error).__name__}: {error}"]
        took = time.perf_counter() - began
        wrong += bool(says)
        print(f"{'lies' if says else 'true'}  {took:5.1f} s  {path.stem}")
        for line in says:
            print(f"        {line}")
    print(f"{len(paths) - wrong} of {len(paths)} cases tell the truth")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
