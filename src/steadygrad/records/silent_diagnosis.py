"""The diagnosis that a finding about a silent error is by itself."""

from __future__ import annotations

from . import Cause, Diagnosis, Finding, Origin


def silent_diagnosis(found: Finding) -> Diagnosis:
    """What the rule says, as a diagnosis: it names the cause, the place and what to change."""
    phase, source = str(found.evidence.get("phase", "loop")), found.evidence.get("source")
    return Diagnosis(
        symptom="silent",
        phase=phase,
        cause=Cause(**found.evidence.get("cause", {"code": found.code, "slug": found.slug})),
        origin=Origin(phase=phase, source=source, module=found.subject or None) if source or found.subject else None,
        confidence=0.8 if found.evidence.get("candidate") else 1.0,
        because=found.detail,
        notes=(f"what to do: {found.evidence['fix']}",) if "fix" in found.evidence else (),
    )
