"""Closed vocabularies. One word per idea, the same in the journal, the reports and the zoo."""

from __future__ import annotations

SYMPTOMS = ("nan_loss", "inf_loss", "nan_grad", "nan_param", "nan_state", "silent", "spike", "none")
PHASES = ("data", "forward", "loss", "backward", "optimizer", "state", "loop", "none")
