"""What was done about an incident, in words."""

from __future__ import annotations

from steadygrad.records import Action, Decision
from steadygrad.reporters.terminal.print_incidents import done


def test_a_dropped_term_is_named() -> None:
    actions = (Action.SKIP, Action.DROP_TERM)
    assert done(Decision(step=3, actions=actions, dropped_terms=("kd",))) == "skipped + dropped a term (kd)"
    both = Decision(step=3, actions=actions, dropped_terms=("kd", "an\x1bchor"))
    assert done(both) == r"skipped + dropped a term (kd, an\x1bchor)"
    assert done(Decision(step=9, actions=(Action.SKIP,), dropped_terms=("kd",))) == "skipped"
