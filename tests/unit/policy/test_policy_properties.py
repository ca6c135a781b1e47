"""What holds of the policy for any sequence of findings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from steadygrad.policy import PRESETS, Capabilities, Ledger, Policy, decide
from steadygrad.records import Action, Finding, Reading, Severity, from_plain, to_plain

CODES = ["SY101", "SY102", "SY103", "SY104", "SY105", "SY106", "SY107", "SY108", "SY201", "SY202", "SY203", "SY204"]
CODES += ["SY301", "SY302", "SY303", "SY304"]


@st.composite
def one_finding(draw: st.DrawFn) -> Finding:
    code = draw(st.sampled_from(CODES))
    terms = draw(st.lists(st.sampled_from(["ce", "kd", "anchor"]), unique=True)) if code == "SY102" else []
    severity = draw(st.sampled_from(list(Severity)))
    return Finding(code=code, slug="x", severity=severity, step=0, detail="seen", evidence={"terms": terms})


steps = st.tuples(st.lists(one_finding(), max_size=3), st.booleans(), st.integers(min_value=1, max_value=30))
abilities = st.builds(
    Capabilities,
    clip=st.booleans(),
    lr=st.booleans(),
    rollback=st.booleans(),
    terms=st.sampled_from([(), ("ce",), ("ce", "kd"), ("ce", "kd", "anchor")]),
    widen=st.booleans(),
)
policies = st.builds(
    Policy.but,
    st.sampled_from([PRESETS["balanced"], PRESETS["ultra_conservative"]]),
    recovery_steps=st.integers(1, 40),
    skip_streak_halt=st.integers(1, 12),
    max_rollbacks=st.integers(0, 4),
)


@settings(max_examples=200, deadline=None)
@given(policies, abilities, st.lists(steps, max_size=30))
def test_whatever_comes_the_promises_hold(
    policy: Policy, can: Capabilities, story: list[tuple[list[Finding], bool, int]]
) -> None:
    ledger, step, applied, streak = Ledger(), 0, 0, 0
    for findings, refused, repeats in story:
        for _ in range(repeats):
            step += 1
            before = ledger
            reading = Reading(step=step, loss=1.0, refused=refused)
            decision, ledger = decide(policy, ledger, reading, findings, can=can)
            dropped = set(before.dropped_terms)
            fatal = any(
                found.severity is Severity.FATAL
                and not (found.code == "SY102" and found.evidence["terms"] and set(found.evidence["terms"]) <= dropped)
                for found in findings
            )
            assert not (decision.applies and (fatal or refused)), "a fatal finding was applied"
            applied += decision.applies
            streak = ledger.streak
            assert (ledger.steps, ledger.applied) == (step, applied)
            assert ledger.steps == ledger.applied + ledger.skipped
            assert 0 <= ledger.overflows <= ledger.skipped
            assert 0.0 < policy.min_lr_factor <= ledger.lr_factor <= 1.0
            assert ledger.clip_factor in policy.clip_ladder
            assert (decision.lr_factor, decision.clip_factor) == (ledger.lr_factor, ledger.clip_factor)
            assert set(ledger.dropped_terms) < set(can.terms) or not ledger.dropped_terms
            assert ledger.rollbacks <= policy.max_rollbacks
            assert ledger.halted or streak < policy.skip_streak_halt
            assert (Action.HALT in decision.actions) == ledger.halted
            assert decision.reason or decision.actions == (Action.PROCEED,)
            assert not (decision.widened and not can.widen)
            if not ledger.rungs:
                assert (ledger.lr_factor, ledger.clip_factor, ledger.dropped_terms) == (1.0, 1.0, ())
            if ledger.halted:
                return
    assert from_plain(Ledger, to_plain(ledger)) == ledger


@settings(max_examples=100, deadline=None)
@given(policies, abilities, st.lists(steps, max_size=20))
def test_a_long_healthy_stretch_always_leads_back_to_the_start(
    policy: Policy, can: Capabilities, story: list[tuple[list[Finding], bool, int]]
) -> None:
    ledger, step = Ledger(), 0
    for findings, refused, _ in story:
        step += 1
        _, ledger = decide(policy, ledger, Reading(step=step, loss=1.0, refused=refused), findings, can=can)
        if ledger.halted:
            return
    longest = policy.recovery_steps * 32 * (len(ledger.rungs) + 1)
    for _ in range(longest):
        step += 1
        decision, ledger = decide(policy, ledger, Reading(step=step, loss=1.0), (), can=can)
        assert decision.applies
        if not ledger.rungs:
            break
    assert (ledger.lr_factor, ledger.clip_factor, ledger.dropped_terms, ledger.widened) == (1.0, 1.0, (), False)


@given(st.lists(one_finding(), max_size=4), st.booleans(), abilities)
def test_deciding_twice_gives_the_same_and_leaves_the_ledger_alone(
    findings: list[Finding], refused: bool, can: Capabilities
) -> None:
    ledger = Ledger(steps=9, applied=7, skipped=2, streak=2, recent="aaaaaaass")
    reading = Reading(step=10, loss=1.0, refused=refused)
    first = decide(PRESETS["balanced"], ledger, reading, findings, can=can)
    assert decide(PRESETS["balanced"], ledger, reading, findings, can=can) == first
    assert ledger == Ledger(steps=9, applied=7, skipped=2, streak=2, recent="aaaaaaass")
