"""Guilty rows: read off, proven by replay, or said to be coupled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from steadygrad import Guard
from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.diagnosis.locate.bad_rows import num_rows


def divide(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]).squeeze(1) / batch["count"]).mean()


def test_rows_are_proven_by_leaving_them_out_and_adding_them_again(make_replayable: Any) -> None:
    batch = {"x": torch.randn(6, 3), "count": torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0, 3.0])}
    found = diagnose(make_replayable(nn.Linear(3, 1), divide, [batch]))
    assert found.rows == (1, 4)
    assert not found.rows_coupled


def test_rows_are_found_by_halving_where_the_origin_has_no_batch_dimension(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.exp(model(batch).sum())

    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    batch = torch.zeros(5, 2)
    batch[3] = 100.0
    found = diagnose(make_replayable(model, loss_fn, [batch]))
    assert found.rows == (3,)


def test_rows_that_fail_only_together_are_said_to_be_coupled(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.exp(model(batch).sum())

    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    found = diagnose(make_replayable(model, loss_fn, [torch.full((4, 2), 12.0)]))
    assert found.rows is None
    assert found.rows_coupled


def test_the_batch_size_is_the_leading_dimension_most_tensors_share() -> None:
    batch = {"table": torch.zeros(7, 2), "x": torch.zeros(4, 3), "y": torch.zeros(4)}
    assert num_rows(batch) == 4
    assert num_rows({"name": "no tensor"}) == 0


def test_of_memory_that_was_never_filled_the_rows_are_named_that_read_it(run_case: Any, make_case: Any) -> None:
    model = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(6, 1))
    with torch.no_grad():
        model[0].weight[5] = torch.nan
    batches = [torch.randint(0, 5, (4, 2)) for _ in range(5)]
    batches[3][2, 1] = 5
    case = make_case(model, lambda m, b: m(b).square().mean(), batches, torch.optim.SGD(model.parameters(), lr=0.01))
    sighting = run_case(case)
    assert sighting.suspicion.step == 3  # told and explained where it first does harm
    assert sighting.diagnosis.cause.slug == "uninitialised"
    assert sighting.diagnosis.symptom == "nan_loss"
    assert sighting.diagnosis.rows == (2,)
    assert "drop_rows" not in [trial.remedy.slug for trial in sighting.diagnosis.remedies]


def test_the_batch_size_is_one_that_all_rows_can_be_taken_of() -> None:
    batch = {"x": torch.zeros(7, 5, 2), "mask": torch.zeros(7, 5), "y": torch.zeros(5)}

    def time_first(batch: Any, rows: Any) -> Any:
        return {"x": batch["x"][:, rows], "mask": batch["mask"][:, rows], "y": batch["y"][rows]}

    assert num_rows(batch) == 7
    assert num_rows(batch, time_first) == 5


def test_code_written_for_one_batch_size_is_asked_with_rows_over_and_over(make_replayable: Any) -> None:
    def picked(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        values = model(batch["x"])[torch.arange(4), 0]
        return (batch["k"] * torch.log(values.abs() * batch["k"])).sum()

    data = {"x": torch.randn(4, 3), "k": torch.ones(4)}
    data["k"][2] = 0.0
    found = diagnose(make_replayable(nn.Linear(3, 1), picked, [data]))
    assert found.rows == (2,)


def nodes_of_graphs(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    per_node = model(batch["nodes"]).squeeze(1) / batch["degree"]
    return (torch.zeros(3).index_add(0, batch["owner"], per_node) - batch["y"]).square().mean()


def test_without_proof_a_bad_node_is_read_as_its_graph(make_replayable: Any) -> None:
    owner = torch.tensor([0, 1, 1, 1, 1, 2])
    batch = {"nodes": torch.rand(6, 3), "degree": torch.ones(6), "owner": owner, "y": torch.rand(3)}
    batch["degree"][2] = 0.0
    assert diagnose(make_replayable(nn.Linear(3, 1), nodes_of_graphs, [batch]), depth="origin").rows == (1,)


def test_without_proof_nothing_is_read_off_rows_that_no_entry_of_the_batch_has(make_replayable: Any) -> None:
    batch = {"x": torch.rand(3, 3), "y": torch.rand(3), "z": torch.zeros(3)}

    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        halves = torch.cat([model(batch["x"]).squeeze(1), batch["y"]])
        return (halves / torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])).square().mean()

    assert diagnose(make_replayable(nn.Linear(3, 1), loss_fn, [batch]), depth="origin").rows is None


def test_the_text_of_a_bad_token_is_read_off_a_flattened_output(make_replayable: Any) -> None:
    batch = {"x": torch.rand(4, 5, 3), "scale": torch.ones(4, 5)}
    batch["scale"][2, 3] = 0.0

    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (model(batch["x"]).reshape(-1) / batch["scale"].reshape(-1)).square().mean()

    assert diagnose(make_replayable(nn.Linear(3, 1), loss_fn, [batch]), depth="origin").rows == (2,)


def test_the_row_is_found_in_the_micro_batch_whose_gradient_goes_bad_although_its_loss_is_finite() -> None:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).abs().sqrt().mean()

    for bad in (0, 1):
        model = nn.Linear(3, 1, bias=False)
        batches = [torch.ones(4, 3), torch.full((4, 3), 2.0)]
        batches[bad][2] = 0.0
        with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_fn, accumulate=2) as guard:
            for batch in (torch.ones(4, 3), torch.ones(4, 3), *batches):
                guard.step(batch)
            found = guard.incidents[0].diagnosis
        assert found is not None
        assert found.rows == (2,)


def test_a_row_that_the_others_are_padded_to_is_named_although_they_do_not_run_without_it(make_replayable: Any) -> None:
    def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        packed = pack_padded_sequence(batch["x"], batch["length"], batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        score = (model(padded) * torch.ones(1, 20, 1)).sum((1, 2))
        share = torch.exp(-100.0 * score.detach().clamp(min=0.0)) + 0.0
        return (score / share).mean()

    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 0.1)
    length = torch.tensor([2, 3, 20, 2])
    x = torch.ones(4, 20, 2) * (torch.arange(20) < length[:, None])[..., None]
    found = diagnose(make_replayable(model, loss_fn, [{"x": x, "length": length}]))
    assert found.rows == (2,)
    assert not found.rows_coupled


class LearnedRate(torch.optim.Optimizer):
    """The logarithm of the rate follows the size of the gradient."""

    def __init__(self, parameters: Any, growth: float) -> None:
        super().__init__(parameters, {"lr": 1e-3, "growth": growth})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(1e-3 * torch.exp(group["growth"] * parameter.grad.square().sum()) * parameter.grad)


def updated(make_replayable: Any, growth: float) -> Any:
    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean()

    model = nn.Linear(3, 1, bias=False)
    batches = [torch.ones(6, 3) for _ in range(5)]
    batches[2][4] = 1e3
    optimizer = LearnedRate(model.parameters(), growth)
    return diagnose(make_replayable(model, loss_fn, batches, step=2, optimizer=optimizer))


def test_the_row_whose_finite_gradient_an_update_does_not_bear_is_named(make_replayable: Any) -> None:
    found = updated(make_replayable, 0.01)
    assert found.phase == "optimizer"
    assert found.rows == (4,)


def test_of_an_update_that_fails_with_any_rows_no_row_is_named(make_replayable: Any) -> None:
    found = updated(make_replayable, 100.0)
    assert found.rows is None
