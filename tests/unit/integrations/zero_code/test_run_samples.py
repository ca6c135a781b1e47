"""Which samples: by dataset index, right with workers, look-ahead and accumulation."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from steadygrad.engine.recovery.reruns import user_state
from steadygrad.integrations.loops.loader_samples import fingerprint, heads
from steadygrad.integrations.zero_code.hooks import loader_batches
from steadygrad.integrations.zero_code.hooks.loader_batches import LoaderBatches

BROKEN = 13


class Points(Dataset[Tensor]):
    def __init__(self) -> None:
        self.points = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
        self.points[BROKEN, 0] = math.nan

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Tensor:
        return self.points[index]


def train(loader: Any, *, accumulate: int = 1, ahead: bool = False, change: Any = lambda x: x) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = looking_ahead(loader) if ahead else iter(loader)
    for number, batch in enumerate(batches):
        (model(change(batch)).pow(2).mean() / accumulate).backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def looking_ahead(loader: Any) -> Any:
    """As Accelerate does: it fetches the next batch before it hands out this one."""
    iterator = iter(loader)
    held = next(iterator)
    for following in iterator:
        yield held
        held = following
    yield held


def incident_of(watch: Any) -> Any:
    (log,) = watch.ledger.log
    (incident,) = log.incidents
    assert watch.barrier.faults == {}
    return incident


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ahead", [False, True])
def test_the_broken_sample_is_named_by_its_index(accumulate: int, ahead: bool, watching: Any) -> None:
    watch = watching(diagnose="auto")
    generator = torch.Generator().manual_seed(7)
    train(DataLoader(Points(), 4, shuffle=True, generator=generator), accumulate=accumulate, ahead=ahead)
    assert incident_of(watch).diagnosis.sample_ids == (str(BROKEN),)


def test_it_is_named_with_workers_that_fetch_ahead(watching: Any) -> None:
    watch = watching(diagnose="auto")
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(Points(), 4, shuffle=True, generator=generator, num_workers=2)
    train(loader, accumulate=2, ahead=True)
    assert incident_of(watch).diagnosis.sample_ids == (str(BROKEN),)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clone(),  # a copy, as on its way to another device
        lambda x: torch.cat([x, x], 1)[:, :3],  # a view of something larger with the same rows
    ],
    ids=["copy", "other storage"],
)
def test_a_batch_that_was_copied_on_its_way_is_recognised_by_its_values(
    change: Any, watching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, find, ways = watching(diagnose="auto"), LoaderBatches.find, list[str]()

    def noting(self: Any, arguments: Any) -> Any:
        found = find(self, arguments)
        ways.append(found.how if found is not None else "not")
        return found

    monkeypatch.setattr(LoaderBatches, "find", noting)
    train(DataLoader(Points(), 4), ahead=True, change=change)
    assert incident_of(watch).diagnosis.sample_ids == (str(BROKEN),)
    assert ways[0] == "same values"


def test_without_a_diagnosis_all_samples_of_the_batch_are_written_down(watching: Any, tmp_path: Any) -> None:
    from steadygrad.journal import read_quarantine

    watch = watching(run_dir=str(tmp_path / "run"))
    train(DataLoader(Points(), 4))
    watch.finish()
    (entry,) = read_quarantine(tmp_path / "run")
    assert [int(sample) for sample in entry.sample_ids] == [12, 13, 14, 15]
    assert entry.batch_key == "samples 12, 13, 14, 15"


def test_an_iterable_dataset_has_no_indices_and_none_are_made_up(watching: Any) -> None:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Any:
            return iter(Points().points)

    watch = watching(diagnose="auto")
    train(DataLoader(Stream(), 4))
    incident = incident_of(watch)
    assert incident.diagnosis.rows == (1,)
    assert incident.diagnosis.sample_ids == ()
    assert incident.batch_key is None


def test_an_epoch_left_early_does_not_shift_the_next_one(watching: Any) -> None:
    watch = watching(diagnose="auto")
    loader = DataLoader(Points(), 4, num_workers=1, persistent_workers=True)
    next(iter(loader))  # several batches were drawn, one was handed out
    train(loader)
    assert incident_of(watch).diagnosis.sample_ids == (str(BROKEN),)


def test_a_loader_that_was_under_way_before_is_not_guessed_at(watching: Any) -> None:
    """Its workers had drawn batches that nobody saw being drawn."""
    running = iter(DataLoader(Points(), 4, num_workers=1))
    next(running)
    watch = watching(diagnose="auto")
    train(running)
    assert incident_of(watch).batch_key is None
    assert incident_of(watch).diagnosis.sample_ids == ()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(2100.0).view(300, 7).t(),
        torch.arange(24576.0).view(8, 3, 32, 32).to(memory_format=torch.channels_last),
        torch.arange(12.0).view(3, 4).to(torch.bfloat16),
        torch.arange(12.0).view(3, 4).to(torch.float8_e4m3fn),
        torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
        torch.tensor([True, False]),
    ],
    ids=["transposed", "channels_last", "bfloat16", "float8", "conjugated", "bool"],
)
def test_a_batch_of_any_layout_or_type_has_the_fingerprint_of_its_copy(tensor: torch.Tensor) -> None:
    copy = tensor.clone(memory_format=torch.contiguous_format)
    assert fingerprint(tensor) == fingerprint(copy)
    assert heads(tensor) == heads(copy)
    assert len(fingerprint(tensor)[2]) <= 64 * tensor.element_size()


def test_a_batch_that_is_too_large_to_be_kept_is_not_held_until_the_next_one(monkeypatch: Any) -> None:
    monkeypatch.setattr(loader_batches, "fit", lambda pieces: False)
    iterator, batches = iter(DataLoader(Points())), LoaderBatches()
    batches.restarted(iterator)
    batches.drawn(iterator, [4, 5])
    batch = torch.randn(2, 3)
    values, gone = batch.clone(), weakref.ref(batch)
    batches.hand_out(iterator, [batch])
    del batch
    assert gone() is None
    found = batches.find(values)
    assert found is not None
    assert found.indices == (4, 5)


def scaled(points: list[Tensor]) -> Tensor:
    batch = torch.stack(points)
    return batch / batch.abs().amax(dim=1, keepdim=True)


def test_the_line_of_a_collate_function_that_makes_a_sample_bad_is_named(watching: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(user_state, "_MAX_OBJECTS", 10_000_000)  # other tests of the process load what it can reach
    watch = watching(diagnose="auto")
    data = Points()
    data.points[BROKEN] = 0.0
    train(DataLoader(data, 8, collate_fn=scaled))
    found = incident_of(watch).diagnosis
    assert (found.phase, found.origin.op, found.sample_ids) == ("data", "div", (str(BROKEN),))
    assert found.origin.code_line == "return batch / batch.abs().amax(dim=1, keepdim=True)"


def candidates(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Three lines for each sample, one behind another, and one target for each sample."""
    return torch.cat([lines for lines, _ in rows]), torch.stack([target for _, target in rows])


def test_a_sample_of_which_the_model_gets_several_rows_is_named(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    data = [(torch.rand(3, 3) + 0.1, torch.ones(3)) for _ in range(32)]
    data[BROKEN][0].zero_()
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, 4, shuffle=True, collate_fn=candidates, generator=torch.Generator().manual_seed(7))  # type: ignore[arg-type,var-annotated]
    for lines, target in loader:
        score = model(lines).view(-1, 3)
        share = score / score.sum(1, keepdim=True)
        loss = (share - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert incident_of(watch).diagnosis.sample_ids == (str(BROKEN),)


def of_each_row(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradients of each row by `torch.func`, each divided by its norm."""

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (row,)).square().sum()  # type: ignore[no-any-return]

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    norm = torch.stack([each.flatten(1).square().sum(1) for each in rows.values()]).sum(0).sqrt()
    return {name: torch.einsum("b,b...->...", 1.0 / norm, each) / len(x) for name, each in rows.items()}


def test_a_sample_is_named_where_the_gradients_of_rows_are_computed_without_backward(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    data = torch.rand(32, 3) + 0.1
    data[BROKEN] = 0.0
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(7)):  # type: ignore[arg-type]
        gradients = of_each_row(model, x)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    found = incident_of(watch).diagnosis
    assert found.cause.slug == "zero_division"
    assert found.sample_ids == (str(BROKEN),)


def test_leaving_out_a_batch_is_shown_to_help_where_the_trained_weights_are_a_copy_of_the_models(watching: Any) -> None:
    watch = watching(diagnose="auto")
    torch.manual_seed(0)
    data = torch.rand(32, 3)
    data[BROKEN] = 1e3
    model = nn.Linear(3, 1).half()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.01)
    for x in DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(7)):  # type: ignore[arg-type]
        loss = model(x.half().pow(2)).float().mean()
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    found = incident_of(watch).diagnosis
    assert found.cause.slug == "fp16_overflow"
    assert "skip_batch" in [trial.remedy.slug for trial in found.trials if trial.verified]
