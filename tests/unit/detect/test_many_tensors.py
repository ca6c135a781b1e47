"""The rules of sampled steps take time in proportion to the number of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from steadygrad.detect.observations.step_observation import ActivationNumbers, StepObservation, TensorNumbers
from steadygrad.detect.sampled.judge_samples import ALL
from steadygrad.policy import Policy


class _Counted(tuple[TensorNumbers, ...]):
    """Counts how often it is gone over."""

    passes = 0

    def __iter__(self) -> Iterator[TensorNumbers]:
        type(self).passes += 1
        return super().__iter__()


def _samplings(count: int, dtype: str) -> list[StepObservation]:
    """Five samplings in which gradients arrive and nothing moves, so that each rule looks at each tensor."""
    tensors = [
        TensorNumbers(
            name=f"layer{index}.weight",
            dtype=dtype,
            lr=1e-3,
            grad_absmax=0.1,
            weight_norm=1.0,
            num_sampled=64,
            num_live=64,
            in_optimizer=index % 2 == 0,
            has_gradient=index % 3 != 0,
        )
        for index in range(count)
    ]
    half = (ActivationNumbers(module="layer0", dtype="float16", absmax=1.0),)
    return [
        StepObservation(step=step, terms={"loss": 1.0}, tensors=_Counted(tensors), activations=half)
        for step in (1, 2, 5, 10, 20)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.__name__.rpartition(".")[2])
def test_a_rule_does_not_go_over_all_tensors_for_each_tensor(rule: ModuleType, dtype: str) -> None:
    passes = []
    for count in (12, 120):
        samplings = _samplings(count, dtype)
        _Counted.passes = 0
        rule.judge(samplings, Policy())
        passes.append(_Counted.passes)
    assert passes[0] == passes[1]


def test_the_samplings_of_this_test_are_ones_that_rules_report() -> None:
    found = {rule.RULE.slug for rule in ALL for dtype in ("float32", "bfloat16")
             if rule.judge(_samplings(12, dtype), Policy()) is not None}  # fmt: skip
    assert {"parameter_never_changes", "lost_update", "parameter_not_in_optimizer"} <= found
