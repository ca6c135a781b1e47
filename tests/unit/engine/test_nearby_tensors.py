"""What the program has beside a batch: tables and lengths of its rows, and nothing else."""

from __future__ import annotations

import torch

from steadygrad.engine.early_checks.nearby_tensors import nearby_tensors


def test_tables_and_lengths_of_the_rows_are_found() -> None:
    batch = {"mask": torch.ones(4, 6), "lengths": torch.tensor([6, 3, 2, 1]), "weights": torch.ones(4)}
    other = torch.ones(5, 6)
    flags = torch.ones(4, dtype=torch.bool)
    assert set(nearby_tensors(4)) == {"mask", "lengths"}
    assert len(other) != len(batch["mask"]) == len(flags)
