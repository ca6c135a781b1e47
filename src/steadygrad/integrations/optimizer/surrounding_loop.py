"""What an optimizer's loop asks of the loop around it: its model, its batches, its past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from ...engine.distributed.consensus import SingleRank
from ...engine.record.run_log import RunLog
from ...engine.state.training_state import TrainingState
from ...policy import Capabilities
from ...records import Decision, Reading

if TYPE_CHECKING:
    from .optimizer_loop import OptimizerLoop


class SurroundingLoop(Protocol):
    """What is known of the loop around an optimizer."""

    ranks: SingleRank

    @property
    def alone(self) -> bool:
        """Whether no other rank trains the same weights."""

    def state_of(self, loop: OptimizerLoop) -> TrainingState:
        """Everything one of its updates can change."""

    def issued(self, loop: OptimizerLoop) -> None:
        """Its update is queued on the device and has not been judged: what does not depend on the judgement is best
        done now, while the device is busy."""

    def agree(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """The reading with what the other ranks measured."""

    def shown(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """The reading as it is to be recorded."""

    def capabilities(self, loop: OptimizerLoop, reading: Reading) -> Capabilities:
        """What can be done besides skipping."""

    def withhold(self, loop: OptimizerLoop, reading: Reading) -> Reading:
        """Restore what the forward passes since the last update moved, and look closer."""

    def diagnose(self, loop: OptimizerLoop, reading: Reading, decision: Decision) -> None:
        """Find out why, as far as the loop's lines can be run again."""

    def roll_back(self, loop: OptimizerLoop, decision: Decision) -> Decision:
        """Restore a good state."""

    def halting(self, loop: OptimizerLoop, step: int) -> None:
        """Its training ends: leave weights that are of use."""

    def ended(self, log: RunLog, weights: dict[str, Tensor]) -> None:
        """The program has dropped the optimizer of these weights. Called wherever it did so."""
