"""Guarantee 8: all ranks decide alike, from the same evidence."""

from __future__ import annotations

import pytest
from drivers import ENTRIES, RANKS, train_all
from registry import guarantee, states
from scenario import Scenario

KINDS = {
    "nan_input": Scenario(faults={5: "nan_input"}, fault_rank=1),
    "nan_gradient": Scenario(faults={5: "nan_gradient"}, fault_rank=0),
    "spike": Scenario(steps=40, faults={30: "spike"}, fault_rank=1),
    "nan_weight": Scenario(steps=14, changes={8: "nan_weight"}),
    "sharded": Scenario(faults={5: "nan_input"}, fault_rank=1, sharding="fsdp2"),
}


@states("G8", {entry: "one process" for entry in ENTRIES if entry != RANKS})
@pytest.mark.parametrize("kind", KINDS)
@guarantee("G8", entries=[RANKS])
def test_a_fault_on_one_rank_is_decided_alike_on_all(entry: str, kind: str) -> None:
    first = train_all(entry, [KINDS[kind]])[0]
    (second,) = first.others
    assert (first.error, second.error) == (None, None), first.message + second.message
    counts = ("steps", "applied", "skipped", "rolled_back", "incidents")
    assert {k: first.summary[k] for k in counts} == {k: second.summary[k] for k in counts}
    decided = [
        [(i["first_step"], i["symptom"], i["decision"]["actions"]) for i in each.incidents] for each in (first, second)
    ]
    assert decided[0] == decided[1]
    if KINDS[kind].sharding == "ddp":
        weights = [{n: bits for n, bits in each.state.items() if n.startswith("weight.")} for each in (first, second)]
        assert weights[0] == weights[1]
