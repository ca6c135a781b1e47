"""The policy: exact sequences of decisions over exact sequences of findings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise

import pytest

from steadygrad.policy import PRESETS, Capabilities, Ledger, Policy, decide
from steadygrad.policy.escalation import others_are_due, step_down, with_tried_rate
from steadygrad.records import Action, Decision, Finding, Reading, Severity, from_plain, to_plain
from steadygrad.records.errors import UsageError

DEFAULT = Policy.named("balanced")
BALANCED = DEFAULT.but(escalation=Policy.named("ultra_conservative").escalation, refuse_spikes=True)
"""The default with the strict preset's escalation: what streaks of any kind do to a policy that was chosen by name."""
ALL = Capabilities(clip=True, lr=True, rollback=True, terms=("ce", "kd"), widen=True)
NONE = Capabilities(lr=False)


def found(code: str, severity: Severity = Severity.FATAL, **evidence: object) -> Finding:
    return Finding(code=code, slug="x", severity=severity, step=0, detail=f"{code} was seen", evidence=evidence)


NAN, SPIKE = (found("SY101"),), (found("SY201"),)
NAN_TERM = (found("SY101"), found("SY102", terms=["kd"]))
OVERFLOW = (found("SY304", Severity.NOTE),)
GOOD: tuple[Finding, ...] = ()


def loop_pass(
    story: Iterable[tuple[Finding, ...]],
    can: Capabilities = ALL,
    policy: Policy = BALANCED,
    ledger: Ledger | None = None,
) -> tuple[list[Decision], Ledger]:
    """Decide one step after the other; stops at a halt, as the guard does."""
    ledger, decisions = ledger or Ledger(), []
    for step, findings in enumerate(story, start=1 + ledger.steps):
        refused = bool(findings) and findings[0].severity is not Severity.WARNING
        decision, ledger = decide(policy, ledger, Reading(step=step, loss=1.0, refused=refused), findings, can=can)
        decisions.append(decision)
        if Action.HALT in decision.actions:
            break
    return decisions, ledger


def test_the_ladder_is_climbed_rung_by_rung_and_halts_at_exactly_ten() -> None:
    decisions, ledger = loop_pass([NAN] * 50)
    assert [decision.actions for decision in decisions] == [
        (Action.SKIP,),
        (Action.SKIP,),
        (Action.SKIP, Action.TIGHTEN_CLIP),
        (Action.SKIP, Action.TIGHTEN_CLIP),
        (Action.SKIP, Action.SCALE_LR),
        (Action.ROLLBACK,),
        (Action.SKIP,),  # no bad term to drop
        (Action.SKIP, Action.WIDEN_PRECISION),
        (Action.SKIP,),
        (Action.SKIP, Action.HALT),
    ]
    assert [decision.clip_factor for decision in decisions] == [1.0, 1.0, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]
    assert [decision.lr_factor for decision in decisions] == [1.0] * 4 + [0.5] * 6
    assert [decision.budget_left for decision in decisions] == list(range(9, -1, -1))
    assert ledger.halted
    assert "10 bad steps in a row" in decisions[-1].reason
    assert "SY101 was seen" in decisions[-1].reason


def test_by_default_a_streak_of_bad_steps_changes_nothing_but_a_rollback_at_a_smaller_rate_and_a_halt() -> None:
    decisions, ledger = loop_pass([NAN] * 50, policy=DEFAULT)
    assert [decision.actions for decision in decisions] == [
        *[(Action.SKIP,)] * 5,
        (Action.ROLLBACK, Action.SCALE_LR),
        (Action.SKIP,),
        (Action.SKIP, Action.WIDEN_PRECISION),
        (Action.SKIP,),
        (Action.SKIP, Action.HALT),
    ]
    assert {decision.clip_factor for decision in decisions} == {1.0}
    assert ledger.halted


def test_by_default_batches_that_are_bad_themselves_are_skipped_and_nothing_else_is_changed() -> None:
    ledger = Ledger()
    for step in range(9):
        reading = Reading(step=step, loss=math.nan, refused=True, bad_inputs=("x",))
        decision, ledger = decide(DEFAULT, ledger, reading, NAN, can=ALL)
        assert decision.actions == (Action.SKIP,)
    assert (ledger.lr_factor, ledger.clip_factor, ledger.rollbacks) == (1.0, 1.0, 0)


def test_by_default_no_finite_finding_refuses_changes_or_halts_anything() -> None:
    notes = [found(code, Severity.NOTE) for code in ("SY201", "SY202")]
    suspected = found("SY203", Severity.WARNING)
    decisions, ledger = loop_pass([(suspected, *notes)] * 500, policy=DEFAULT)
    assert {decision.actions for decision in decisions} == {(Action.PROCEED,)}
    assert (ledger.applied, ledger.lr_factor, ledger.clip_factor, ledger.halted) == (500, 1.0, 1.0, False)


def test_by_default_scattered_bad_steps_never_halt_however_many_they_are() -> None:
    decisions, ledger = loop_pass([NAN, NAN, GOOD] * 400, policy=DEFAULT)
    assert len(decisions) == 1200
    assert not ledger.halted


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 25])
def test_halts_after_exactly_so_many_bad_steps_in_a_row(limit: int) -> None:
    policy = BALANCED.but(skip_streak_halt=limit)
    decisions, _ = loop_pass([NAN] * 100, policy=policy)
    assert len(decisions) == limit
    decisions, ledger = loop_pass(([NAN] * (limit - 1) + [GOOD]) * 3, policy=policy.but(skips_per_window=(10**6, 200)))
    assert not ledger.halted
    assert len(decisions) == 3 * limit


def test_with_no_remedy_possible_it_skips_and_halts() -> None:
    decisions, _ = loop_pass([NAN] * 50, can=NONE)
    assert [decision.actions for decision in decisions] == [(Action.SKIP,)] * 9 + [(Action.SKIP, Action.HALT)]


def test_one_nan_is_skipped_and_changes_nothing_else() -> None:
    decisions, ledger = loop_pass([GOOD, NAN, GOOD])
    assert [decision.applies for decision in decisions] == [True, False, True]
    assert all(d.lr_factor == d.clip_factor == 1.0 and d.rung == 0 for d in decisions)
    assert (ledger.first_bad_step, ledger.last_bad_step, ledger.streak) == (2, 2, 0)


def test_too_many_scattered_skips_halt_although_no_streak_does() -> None:
    decisions, ledger = loop_pass([NAN, GOOD] * 500, policy=BALANCED.but(skips_per_window=(20, 100)))
    assert ledger.skipped == 21
    assert decisions[-1].actions == (Action.SKIP, Action.HALT)
    assert "21 of the last 41 steps were skipped, 20 are allowed" in decisions[-1].reason


def test_the_learning_rate_halves_again_and_again_and_comes_back_to_exactly_one() -> None:
    policy = BALANCED.but(recovery_steps=10, escalation=((2, Action.SCALE_LR),), skips_per_window=(10**6, 200))
    down, ledger = loop_pass([NAN, NAN, GOOD] * 6, policy=policy)
    lr_factors = [decision.lr_factor for decision in down]
    assert lr_factors[1::3] == [0.5, 0.25, 0.125, 0.0625, 0.0625, 0.0625]
    up, ledger = loop_pass([GOOD] * 400, policy=policy, ledger=ledger)
    assert sorted({decision.lr_factor for decision in up}) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    changes = [i for i in range(1, len(up)) if up[i].lr_factor != up[i - 1].lr_factor]
    assert [b - a for a, b in pairwise(changes)] == [10] * (len(changes) - 1)
    assert ledger.lr_factor == 1.0
    assert ledger.rung == 0


def test_recovery_takes_one_rung_off_at_a_time_in_reverse_order() -> None:
    policy = BALANCED.but(recovery_steps=20)
    _, ledger = loop_pass([NAN] * 5, policy=policy)
    assert [rung.action for rung in ledger.rungs] == [Action.TIGHTEN_CLIP, Action.TIGHTEN_CLIP, Action.SCALE_LR]
    decisions, ledger = loop_pass([GOOD] * 60, policy=policy, ledger=ledger)
    states = [(d.clip_factor, d.lr_factor) for d in decisions]
    assert states == [(0.3, 0.5)] * 19 + [(0.3, 1.0)] * 20 + [(0.5, 1.0)] * 20 + [(1.0, 1.0)]
    assert decisions[19].reason.startswith("20 healthy steps: scale_lr undone")


def test_a_bad_step_restarts_the_healthy_stretch() -> None:
    policy = BALANCED.but(recovery_steps=20)
    _, ledger = loop_pass([NAN] * 3 + [GOOD] * 19 + [NAN] + [GOOD] * 19, policy=policy)
    assert ledger.clip_factor == 0.5
    _, ledger = loop_pass([GOOD], policy=policy, ledger=ledger)
    assert ledger.clip_factor == 1.0


def test_a_remedy_taken_off_too_early_is_kept_twice_as_long_the_next_time() -> None:
    policy = BALANCED.but(recovery_steps=20)
    _, ledger = loop_pass([NAN] * 3 + [GOOD] * 20, policy=policy)
    assert ledger.clip_factor == 1.0
    _, ledger = loop_pass([NAN] * 3 + [GOOD] * 39, policy=policy, ledger=ledger)
    assert ledger.clip_factor == 0.5
    _, ledger = loop_pass([GOOD], policy=policy, ledger=ledger)
    assert ledger.clip_factor == 1.0
    _, ledger = loop_pass([GOOD] * 40, policy=policy, ledger=ledger)
    assert ledger.relapses == 0


def test_a_second_streak_of_nans_with_large_norms_climbs_the_ladder_like_the_first() -> None:
    both = (*NAN, *(found(spike.code, Severity.NOTE) for spike in SPIKE))
    streaks, _ = loop_pass([*[both] * 7, *[GOOD] * 5, *[both] * 7], policy=DEFAULT)
    assert [d.step for d in streaks if Action.ROLLBACK in d.actions] == [6, 18]


def test_scattered_spikes_climb_the_ladder_and_scattered_nans_do_not() -> None:
    spiking, _ = loop_pass([SPIKE, GOOD, GOOD] * 5)
    assert [d.actions for d in spiking[::3]] == [
        (Action.SKIP,),
        (Action.SKIP,),
        (Action.SKIP, Action.TIGHTEN_CLIP),
        (Action.SKIP, Action.TIGHTEN_CLIP),
        (Action.SKIP, Action.SCALE_LR),
    ]
    _, ledger = loop_pass([NAN, GOOD, GOOD] * 5)
    assert ledger.rung == 0


def test_a_clip_that_cannot_be_tightened_gives_way_to_the_learning_rate() -> None:
    decisions, _ = loop_pass([NAN] * 3, can=Capabilities(clip=False))
    assert decisions[-1].actions == (Action.SKIP, Action.SCALE_LR)


def test_a_term_that_alone_is_bad_is_dropped_and_comes_back() -> None:
    policy = BALANCED.but(recovery_steps=20)
    decisions, ledger = loop_pass([NAN_TERM] * 3, policy=policy)
    assert [d.actions for d in decisions] == [(Action.SKIP,), (Action.SKIP,), (Action.SKIP, Action.DROP_TERM)]
    assert decisions[-1].dropped_terms == ("kd",)
    assert "loss without kd" in decisions[-1].reason
    decisions, ledger = loop_pass([GOOD] * 20, policy=policy, ledger=ledger)
    assert [d.dropped_terms for d in decisions] == [("kd",)] * 19 + [()]


def test_a_dropped_term_that_is_still_bad_stops_nothing() -> None:
    _, ledger = loop_pass([NAN_TERM] * 3)
    decision, ledger = decide(
        BALANCED, ledger, Reading(step=9, loss=1.0), (found("SY102", terms=["kd"]),), can=ALL
    )  # fmt: skip
    assert decision.applies


def test_the_last_remaining_term_is_never_dropped() -> None:
    decisions, _ = loop_pass([NAN_TERM] * 20, can=Capabilities(terms=("kd",)))
    assert all(Action.DROP_TERM not in decision.actions for decision in decisions)
    assert Action.HALT in decisions[-1].actions


def test_two_bad_terms_are_dropped_together_at_their_rung_if_one_is_left() -> None:
    both = (found("SY102", terms=["kd", "anchor"]),)
    decisions, _ = loop_pass([both] * 7, can=Capabilities(terms=("ce", "kd", "anchor")))
    assert decisions[-1].actions == (Action.SKIP, Action.DROP_TERM)
    assert decisions[-1].dropped_terms == ("kd", "anchor")


def test_overflows_of_the_loss_scale_count_against_no_budget() -> None:
    decisions, ledger = loop_pass([OVERFLOW] * 500)
    assert all(decision.actions == (Action.SKIP,) for decision in decisions)
    assert (ledger.skipped, ledger.overflows, ledger.streak) == (500, 500, 0)
    assert ledger.success_rate == 1.0
    assert decisions[-1].budget_left == 10


def test_a_collapsed_loss_scale_widens_the_precision_once_and_then_halts() -> None:
    collapse = (found("SY301"), found("SY103"))
    decisions, ledger = loop_pass([OVERFLOW] * 5 + [collapse] * 50)
    assert decisions[5].actions == (Action.SKIP, Action.WIDEN_PRECISION)
    assert decisions[5].widened
    assert len(decisions) == 15
    assert ledger.halted


@pytest.mark.parametrize("code", ["SY105", "SY106", "SY107"])
def test_poisoned_state_is_rolled_back_at_once(code: str) -> None:
    decisions, ledger = loop_pass([(found(code),)])
    assert decisions[0].actions == (Action.ROLLBACK,)
    assert ledger.rollbacks == 1


@pytest.mark.parametrize("code", ["SY105", "SY106"])
def test_poisoned_weights_without_a_snapshot_halt_at_once(code: str) -> None:
    decisions, _ = loop_pass([(found(code),)], can=Capabilities())
    assert decisions[0].actions == (Action.SKIP, Action.HALT)
    assert "no good snapshot" in decisions[0].reason


def test_rollbacks_have_a_budget_that_a_healthy_stretch_gives_back() -> None:
    poisoned = (found("SY105"),)
    decisions, ledger = loop_pass([poisoned, GOOD] * 9)
    assert [d.actions for d in decisions[::2]] == [(Action.ROLLBACK,)] * 3 + [(Action.SKIP, Action.HALT)]
    _, ledger = loop_pass([poisoned, GOOD] * 3 + [GOOD] * 100)
    assert (ledger.rollbacks, ledger.rollbacks_total) == (0, 3)


def test_divergence_rolls_back_more_slowly_and_not_again_at_once() -> None:
    diverging = (found("SY203", Severity.WARNING, demonstrated=True),)
    decisions, _ = loop_pass([diverging] * 40)
    assert decisions[0].actions == (Action.ROLLBACK, Action.SCALE_LR)
    assert decisions[0].lr_factor == 0.5
    assert not decisions[0].applies
    assert all(decision.applies for decision in decisions[1:32])
    assert decisions[32].actions == (Action.ROLLBACK, Action.SCALE_LR)
    assert decisions[32].lr_factor == 0.25


def test_divergence_with_nothing_to_go_back_to_lowers_the_learning_rate_and_goes_on() -> None:
    decisions, ledger = loop_pass([(found("SY203", Severity.WARNING, demonstrated=True),)] * 2, can=Capabilities())
    assert decisions[0].actions == (Action.SCALE_LR,)
    assert decisions[0].applies
    assert decisions[1].actions == (Action.PROCEED,)
    assert ledger.lr_factor == 0.5


def test_divergence_that_keeps_coming_back_halts() -> None:
    diverging = (found("SY203", Severity.WARNING, demonstrated=True),)
    decisions, _ = loop_pass([diverging] * 1000)
    assert decisions[-1].actions == (Action.SKIP, Action.HALT)
    assert "diverged again after 3 rollbacks" in decisions[-1].reason


def test_what_the_device_refused_is_never_called_applied() -> None:
    decision, ledger = decide(BALANCED, Ledger(), Reading(step=1, loss=1.0, refused=True), (), can=ALL)
    assert decision.actions == (Action.SKIP,)
    assert "refused on the device" in decision.reason
    assert ledger.streak == 1


def test_notes_and_warnings_let_the_update_be_applied_and_are_kept() -> None:
    notes = (found("SY303", Severity.WARNING), found("SY108", Severity.NOTE))
    decision, ledger = decide(BALANCED, Ledger(), Reading(step=1, loss=1.0), notes, can=ALL)
    assert decision.applies
    assert decision.findings == notes
    assert "SY303 was seen" in decision.reason
    assert ledger.streak == 0


def test_observe_changes_nothing_at_all() -> None:
    observe = Policy.named("observe")
    ledger = Ledger()
    for step in range(50):
        reading = Reading(step=step, loss=math.nan)
        decision, ledger = decide(observe, ledger, reading, (found("SY101"), found("SY105")), can=ALL)
        assert decision.actions == (Action.PROCEED,)
        assert (decision.lr_factor, decision.clip_factor, decision.dropped_terms) == (1.0, 1.0, ())
        assert decision.reason.startswith("only observing: SY101 was seen")
    assert (ledger.applied, ledger.first_bad_step, ledger.last_bad_step) == (50, 0, 49)


def test_a_halted_run_stays_halted() -> None:
    _, ledger = loop_pass([NAN] * 10)
    decision, _ = decide(BALANCED, ledger, Reading(step=11, loss=1.0), (), can=ALL)
    assert decision.actions == (Action.SKIP, Action.HALT)


def test_a_resumed_ledger_decides_like_one_that_was_never_interrupted() -> None:
    story = [NAN] * 5 + [GOOD] * 30 + [SPIKE, GOOD, SPIKE, OVERFLOW] * 3 + [NAN_TERM] * 3 + [GOOD] * 200
    policy = BALANCED.but(recovery_steps=25)
    whole, end = loop_pass(story, policy=policy)
    first, ledger = loop_pass(story[:37], policy=policy)
    resumed = from_plain(Ledger, json.loads(json.dumps(to_plain(ledger), allow_nan=False)))
    assert resumed == ledger
    rest, resumed_end = loop_pass(story[37:], policy=policy, ledger=resumed)
    assert first + rest == whole
    assert resumed_end == end


def test_every_decision_that_acts_says_why() -> None:
    decisions, _ = loop_pass([NAN] * 4 + [GOOD] * 3 + [NAN_TERM] * 3 + [(found("SY105"),), OVERFLOW])
    acting = [decision for decision in decisions if decision.actions != (Action.PROCEED,)]
    assert len(acting) == 9
    assert all(len(decision.reason) > 20 for decision in acting)


def test_presets_carry_the_numbers_of_their_names() -> None:
    assert set(PRESETS) == {"observe", "balanced", "ultra_conservative"}
    balanced, ultra = PRESETS["balanced"], PRESETS["ultra_conservative"]
    assert (balanced.skip_streak_halt, balanced.success_notice, balanced.success_alarm) == (10, 0.90, 0.85)
    assert (balanced.clip_ladder, balanced.lr_factor, balanced.max_norm_to_apply) == ((1.0, 0.5, 0.3), 0.5, None)
    assert ultra.max_norm_to_apply == 2.0
    assert (balanced.suggested.learning_rate, ultra.suggested.learning_rate) == (1e-5, 5e-6)
    assert (balanced.suggested.temperature, ultra.suggested.temperature) == (2.0, 1.5)
    assert (balanced.suggested.kd_weight, ultra.suggested.kd_weight) == (0.1, 0.05)
    assert (balanced.suggested.ce_weight, ultra.suggested.ce_weight) == (0.9, 0.95)
    assert balanced.suggested.max_grad_norm == ultra.suggested.max_grad_norm == 0.5
    assert balanced.checkpoint_every == 1000


def test_a_policy_is_named_or_passed_through() -> None:
    assert Policy.named("balanced") is PRESETS["balanced"]
    own = BALANCED.but(skip_streak_halt=3)
    assert Policy.named(own) is own


@pytest.mark.parametrize("name", ["Balanced", "", "reckless", 3, None])
def test_an_unknown_policy_is_refused_with_the_names_there_are(name: object) -> None:
    with pytest.raises(UsageError, match="balanced, observe, ultra_conservative, or a Policy"):
        Policy.named(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"skip_streak_halt": 0}, "skip_streak_halt"),
        ({"lr_factor": 1.0}, "lr_factor"),
        ({"clip_ladder": (0.5, 0.3)}, "clip_ladder must start with 1.0"),
        ({"clip_ladder": (1.0, 0.3, 0.5)}, "clip_ladder must fall"),
        ({"success_alarm": 0.95}, "success_alarm"),
        ({"max_norm_to_apply": 0.0}, "max_norm_to_apply"),
        ({"recovery_steps": 0}, "recovery_steps"),
        ({"patience": 3}, "A policy has no patience"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_a_sentence(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BALANCED.but(**change)


def test_a_tried_rate_takes_the_place_of_the_halved_one_and_waits_for_another_trial() -> None:
    _, ledger = loop_pass([(found("SY203", Severity.WARNING, demonstrated=True),)], policy=DEFAULT)
    assert ledger.lr_factor == 0.5
    ledger = with_tried_rate(ledger, 0.03, step=ledger.rungs[-1].step)
    assert (ledger.lr_factor, [rung.lr_factor for rung in ledger.rungs]) == (0.03, [1.0])
    assert not others_are_due(DEFAULT, ledger)
    _, ledger = loop_pass([GOOD] * 300, policy=DEFAULT, ledger=ledger)
    assert ledger.lr_factor == 0.03, "only a trial raises it"
    assert others_are_due(DEFAULT, ledger)
    assert ledger.rollbacks == 0
    lower = with_tried_rate(ledger, 0.01, step=400)
    assert (lower.lr_factor, len(lower.rungs)) == (0.01, 1)
    assert step_down(lower, step=400).lr_factor == 1.0


def test_a_trial_in_which_the_full_rate_holds_leaves_it() -> None:
    _, ledger = loop_pass([(found("SY203", Severity.WARNING, demonstrated=True),)], policy=DEFAULT)
    kept = with_tried_rate(ledger, 1.0, step=ledger.rungs[-1].step)
    assert (kept.lr_factor, kept.rungs) == (1.0, ())


def test_a_tried_rate_survives_a_checkpoint() -> None:
    _, ledger = loop_pass([(found("SY203", Severity.WARNING, demonstrated=True),)], policy=DEFAULT)
    ledger = with_tried_rate(ledger, 0.1, step=ledger.rungs[-1].step)
    again = from_plain(Ledger, json.loads(json.dumps(to_plain(ledger))))
    assert again == ledger
    assert again.rungs[-1].tried


def test_a_divergence_that_was_tried_is_acted_on_right_after_a_rollback() -> None:
    shown = found("SY203", Severity.WARNING, demonstrated=True)
    tried = found("SY203", Severity.WARNING, demonstrated=True, tried=True)
    decisions, _ = loop_pass([(shown,), GOOD, (shown,), (tried,)], policy=DEFAULT)
    assert [Action.ROLLBACK in decision.actions for decision in decisions] == [True, False, False, True]
