"""An incident as a page shows it: plain values with their words, ready for the template."""

from __future__ import annotations

import math
import shlex
from typing import Any

from ...records import SKIPPED_ALREADY, Diagnosis, Incident, Kind, TensorDigest, Trial, rules
from ...records.errors import UsageError
from ..run_data.run_summary import cause_in_words, place_without_module
from ..terminal.print_diagnosis import of_trials, short_source, steps_not_looked_at, steps_of
from ..terminal.print_incidents import done
from .number_text import figure

MAX_SHOWN = 12
LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895314e38, "float32": 3.4028235e38, "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0, "float8_e5m2fnuz": 57344.0,
}  # fmt: skip
BITS_DRAWN = 24.0
AMPLE_BITS = 20.0
MAX_LIKE = 24


def incident_view(incident: Incident, kind: Kind, *, anchor: str, run_path: str, root: str) -> dict[str, Any]:
    """Everything about an incident but the steps before it. Paths below `root` are shown without it."""
    diagnosis = incident.diagnosis
    return {
        "anchor": anchor,
        "number": incident.number,
        "first": incident.first_step,
        "last": incident.last_step,
        "when": steps_of(incident),
        "symptom": incident.symptom,
        "looked_at": steps_not_looked_at(incident),
        "headline": incident.headline or incident.symptom,
        "subtitle": "" if _same(cause_in_words(incident), incident.headline) else incident.headline or incident.symptom,
        "done": done(incident.decision),
        "reason": incident.decision.reason if incident.decision is not None else "",
        "batch_key": incident.batch_key,
        "findings": [
            {"code": found.code, "slug": found.slug, "severity": str(found.severity), "detail": found.detail}
            for found in incident.findings[:MAX_SHOWN]
            if not _same(found.detail, incident.headline) or incident.symptom != "silent"
        ],
        "cause": _sentence(cause_in_words(incident)),
        "like": [steps_of(other).partition(" ")[2] for other in kind.incidents if other is not incident][:MAX_LIKE],
        "num_like": len(kind.incidents) - 1,
        "diagnosed": diagnosis is not None,
        "diagnosis": _diagnosis(diagnosis, root) if diagnosis is not None else None,
        "next": _next(incident, run_path),
        "advice": _advice(diagnosis),
    }


def _same(one: str | None, other: str) -> bool:
    """Whether two sentences say the same in the same words."""
    return one is not None and one.strip().rstrip(".").casefold() == other.strip().rstrip(".").casefold()


def _sentence(words: str | None) -> str | None:
    """With a capital letter, unless it begins with a name such as layers.1."""
    return words[:1].upper() + words[1:] if words and words.split(" ")[0].isalpha() else words


def _diagnosis(diagnosis: Diagnosis, root: str) -> dict[str, Any]:
    origin = diagnosis.origin
    again, tries = (*diagnosis.reproduced, 0, 0)[:2]
    silent = diagnosis.symptom == "silent" and not tries  # a rule said it, and nothing was run again
    return {
        "code": diagnosis.cause.code if diagnosis.cause else None,
        "slug": diagnosis.cause.slug if diagnosis.cause else None,
        "phase": diagnosis.phase,
        "because": diagnosis.because,
        "reproduced": f"reproduced {again} of {tries}" if tries else "" if silent else "not replayed",
        "confidence": f"{100 * diagnosis.confidence:.0f} %" if diagnosis.confidence and not silent else None,
        "notes": [note.replace(f"{root}/", "") for note in diagnosis.notes[:MAX_SHOWN]],
        "rows": _rows(diagnosis),
        "row_words": _row_words(diagnosis),
        "samples": diagnosis.sample_ids[:MAX_SHOWN],
        "samples_left_out": max(0, len(diagnosis.sample_ids) - MAX_SHOWN),
        "origin": None
        if origin is None
        else {
            "label": "about" if silent else "module",
            "module": (origin.phase != "data" and origin.module) or place_without_module(origin.phase),
            "op": origin.op,
            "tensor": origin.tensor,
            "phase": origin.phase,
            "source": short_source(origin.source, root),
            "code_line": (origin.code_line or "").strip("\n"),
            "line_number": (origin.source or "").rpartition(":")[2] if ":" in (origin.source or "") else "",
            "stack": [short_source(frame, root) for frame in origin.stack[:MAX_SHOWN]],
            "ordinal": origin.ordinal,
            "lead_up": [_lead_up(digest, root) for digest in origin.lead_up[:MAX_SHOWN]],
            "digests": [
                *(_digest(digest, "in") for digest in origin.inputs[:MAX_SHOWN]),
                *(_digest(digest, "out") for digest in origin.outputs[:MAX_SHOWN]),
            ],
        },
        "trials": [
            _trial(trial, diagnosis)
            for trial in (*diagnosis.remedies, *(trial for trial in diagnosis.trials if not trial.verified))
        ],
        "about_trials": [f"{label.capitalize()} {text}." for label, text in of_trials(diagnosis) if label != "so"],
        "best": _trial(diagnosis.remedies[0], diagnosis) if diagnosis.remedies else None,
    }


def _trial(trial: Trial, diagnosis: Diagnosis) -> dict[str, Any]:
    measured = trial.compared_with_most
    return {
        "code": trial.remedy.code,
        "slug": trial.remedy.slug,
        "change": _sentence(trial.remedy.change or trial.remedy.slug.replace("_", " ")),
        "changes": {"exact": "no", "close": "rounding only"}.get(trial.remedy.safety, "yes"),
        "code_change": trial.remedy.code_change,
        "finite": "yes" if trial.finite else "no",
        "tried": trial.tried,
        "skips": SKIPPED_ALREADY.capitalize() if trial.skips else None,
        "verified": trial.verified,
        "loss_gap": _percent(trial.loss_gap) if measured else None,
        "cosine": None if trial.gradient_cosine is None or not measured else f"{trial.gradient_cosine:.4f}",
        "followed": trial.steps_followed,
        "verdict": trial.verdict,
        "best": bool(diagnosis.remedies) and trial is diagnosis.remedies[0] and not trial.skips,
    }


def _percent(gap: float | None) -> str | None:
    if gap is None:
        return None
    if not abs(gap) < 10:
        return "> 1000 %"
    return f"{100 * gap:.2g} %" if gap == 0 or abs(gap) >= 1e-4 else "< 0.01 %"


def _lead_up(digest: TensorDigest, root: str) -> dict[str, Any]:
    """A step before the origin; its name holds op, module and line, the line last."""
    words = [short_source(word, root).rpartition("/")[2] for word in digest.name.split("  ")]
    return _digest(digest, "in") | {"name": "  ".join(words)}


def _digest(digest: TensorDigest, role: str) -> dict[str, Any]:
    limit = LARGEST.get(digest.dtype.removeprefix("torch."))
    floating = "float" in digest.dtype
    ample = limit is not None and 0 <= digest.absmax < limit * 2.0**-AMPLE_BITS
    full = _fullness(digest.absmax, limit) if limit is not None and not ample else None
    return {
        "role": role,
        "name": digest.name or ("input" if role == "in" else "output"),
        "dtype": digest.dtype,
        "shape": " \u00d7 ".join(str(size) for size in digest.shape) or "scalar",
        "largest": figure(digest.absmax) if floating else "",
        "smallest": figure(digest.absmin) if floating and digest.absmin else "",
        "nan": digest.num_nan,
        "inf": digest.num_inf,
        "zero": digest.num_zero,
        "full": full,
        "headroom": _headroom(digest.absmax, limit) if limit is not None and not ample else None,
    }


def _fullness(absmax: float, limit: float) -> int:
    """How far up the top BITS_DRAWN bits of its type a number reaches, in per cent."""
    if not math.isfinite(absmax) or absmax >= limit:
        return 100
    if absmax <= 0:
        return 0
    return round(100 * min(1.0, max(0.0, 1.0 - (math.log2(limit) - math.log2(absmax)) / BITS_DRAWN)))


def _headroom(absmax: float, limit: float) -> str:
    if not math.isfinite(absmax):
        return "not finite"
    if absmax <= 0:
        return ""
    return f"2^{math.log2(limit) - math.log2(absmax):.0f} before overflow"


def _rows(diagnosis: Diagnosis) -> str | None:
    if diagnosis.rows_coupled:
        return "coupled: no row fails alone"
    if diagnosis.rows is None:
        return None
    if not diagnosis.rows:
        return "not found"
    more = len(diagnosis.rows) - MAX_SHOWN
    listed = ", ".join(str(row) for row in diagnosis.rows[:MAX_SHOWN])
    return listed + (f" and {more} more" if more > 0 else "")


def _row_words(diagnosis: Diagnosis) -> str | None:
    """Row 5 of the batch = sample 346."""
    if not diagnosis.rows or diagnosis.rows_coupled:
        return None
    samples = diagnosis.sample_ids[:MAX_SHOWN]
    named = f" = sample{'s' if len(samples) > 1 else ''} {', '.join(samples)}" if samples else ""
    return f"Row{'s' if len(diagnosis.rows) > 1 else ''} {_rows(diagnosis)} of the batch{named}"


def _next(incident: Incident, run_path: str) -> list[str]:
    """Commands that help further."""
    commands = []
    if incident.diagnosis is not None and incident.diagnosis.cause is not None:
        commands.append(f"steady explain {incident.diagnosis.cause.code}")
    if incident.capsule:
        place = shlex.quote(f"{run_path}/incidents/{incident.number:04d}")
        commands.append(f"steady replay {place}")
    return commands


def _advice(diagnosis: Diagnosis | None) -> str | None:
    """What the page of the cause says to do."""
    if diagnosis is None or diagnosis.cause is None:
        return None
    try:
        text = rules.page(diagnosis.cause.code).sections.get("What to do", "")
    except UsageError:  # a code this steadygrad does not know
        return None
    return "\n".join(line.strip() for line in text.splitlines()) or None
