"""Whatever is guarded, what comes back has the same names."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import steadygrad as sg


def _optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _guard() -> sg.GuardHandle:
    model, optimizer = _optimizer()
    return sg.Guard(model, optimizer, lambda m, b: m(b).mean())


def _attached() -> sg.GuardHandle:
    model, optimizer = _optimizer()
    return sg.attach(optimizer, model=model)


def _accelerator() -> sg.GuardHandle:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(*_optimizer())
    return sg.attach(accelerator)


def _lightning() -> sg.GuardHandle:
    lightning = pytest.importorskip("lightning")
    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", enable_progress_bar=False)
    return sg.attach(trainer)


def _transformers(path: str) -> sg.GuardHandle:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=8)
    arguments = transformers.TrainingArguments(output_dir=path, report_to=[], use_cpu=True)
    return sg.attach(transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments))


@pytest.mark.parametrize("entry", ["guard", "optimizer", "accelerate", "lightning", "transformers"])
def test_every_entry_point_returns_one_handle(entry: str, tmp_path: object) -> None:
    made = {"guard": _guard, "optimizer": _attached, "accelerate": _accelerator, "lightning": _lightning}
    handle = made[entry]() if entry in made else _transformers(str(tmp_path))
    assert isinstance(handle, sg.GuardHandle)
    with handle as same:
        assert same is handle
        assert handle.incidents == []
        assert isinstance(handle.summary(), dict)
        handle.settle()
    handle.close()  # a second time does nothing


def test_a_training_that_was_closed_is_freed_without_the_garbage_collector() -> None:
    """As without a guard: a search over many models must not wait for a collection to have their memory back."""

    def train() -> tuple[list[weakref.ref[object]], Any]:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        guard = sg.attach(optimizer, model=model)
        for _ in range(2):
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        guard.close()
        return [weakref.ref(each) for each in (model, optimizer, model.weight)], guard

    train()  # torch keeps frames of its first optimizer
    gc.collect()
    gc.disable()
    try:
        training, guard = train()
        assert [reference() for reference in training] == [None, None, None]
    finally:
        gc.enable()
    assert (guard.summary()["applied"], guard.summary()["final_state"]) == (2, "finite")
