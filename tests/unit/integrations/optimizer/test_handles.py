"""Whatever is guarded, what comes back has the same names."""

from __future__ import annotations

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
