"""A bad update is refused, or undone and reported; a dead or poisoned run is never called fine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harm_runs import finite, some_slow, under_steady_run
from torch import nn

import steadygrad as sg

# -- finite gradients, and the update makes the NaN


def half_adamw() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4).half()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def half_adam_with_amsgrad() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4).half()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)


def rmsprop_without_epsilon() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4)
    return model, torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=0.0)


def adagrad_without_epsilon() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 4)
    return model, torch.optim.Adagrad(model.parameters(), lr=1e-3, eps=0.0)


MAKERS = [half_adamw, half_adam_with_amsgrad, rmsprop_without_epsilon, adagrad_without_epsilon]


@pytest.mark.parametrize("how", ["Guard", "attach"])
@pytest.mark.parametrize("build", MAKERS)
def test_an_update_that_makes_a_nan_by_itself_is_undone_and_reported(build: Any, how: str) -> None:
    torch.manual_seed(0)
    model, optimizer = build()
    x = torch.randn(16, 8).to(model.weight.dtype)
    x[:, 0] = 0

    def loss_of(module: Any, batch: Any) -> Any:
        return module(batch).float().pow(2).mean()

    guard: Any = sg.Guard(model, optimizer, loss_of) if how == "Guard" else sg.attach(optimizer, model=model)
    with guard:
        try:
            for _ in range(3):
                if how == "Guard":
                    guard.step(x)
                else:
                    optimizer.zero_grad()
                    loss_of(model, x).backward()
                    optimizer.step()
        except sg.TrainingHalted:
            pass
        assert len(guard.incidents) >= 1
    assert finite(model.parameters())


POISONS_ITS_CHECKPOINT = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
m = torch.nn.Linear(8, 4){half}; o = {optimizer}; x = torch.randn(16, 8){half}; x[:, 0] = 0
for step in range({steps}):
    l = m(x).float().pow(2).mean(); o.zero_grad(); l.backward(); o.step()
torch.save(m.state_dict(), "last.pt")
"""


@pytest.mark.parametrize(
    ("optimizer", "half", "steps"),
    [
        ("torch.optim.AdamW(m.parameters(), lr=1e-3)", ".half()", 1),
        pytest.param("torch.optim.RMSprop(m.parameters(), eps=0.0)", "", 1, marks=pytest.mark.slow),
        pytest.param("torch.optim.Adam(m.parameters(), foreach=True)", ".half()", 3, marks=pytest.mark.slow),
    ],
)
def test_a_poisoned_checkpoint_is_not_saved_without_a_report(
    optimizer: str, half: str, steps: int, tmp_path: Path
) -> None:
    text = POISONS_ITS_CHECKPOINT.format(optimizer=optimizer, half=half, steps=steps)
    ours = under_steady_run(text, tmp_path, "--diagnose", "off")
    saved = tmp_path / "last.pt"
    assert ours.incidents
    assert not saved.exists() or finite(torch.load(saved).values())


# -- optimizers that read their groups in step()

READERS = """
import torch
class First(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        lr = self.param_groups[0]["lr"]
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None: p.sub_(p.grad, alpha=lr)
class Counts(torch.optim.Optimizer):
    def __init__(self, params, lr): super().__init__(params, dict(lr=lr, k=0))
    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]; group["k"] += 1
        size = sum(p.numel() for g in self.param_groups for p in g["params"])
        for p in group["params"]:
            if p.grad is not None:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p)); mean.lerp_(p.grad, 1 / group["k"])
                p.sub_(mean, alpha=group["lr"] * size / max(1, size))
class Last(torch.optim.Optimizer):
    def __init__(self, params, lr): super().__init__(params, dict(lr=lr, d=1e-6))
    @torch.no_grad()
    def step(self, closure=None):
        d = max(g["d"] for g in self.param_groups)
        norm = torch.stack([p.grad.norm() for p in self.param_groups[-1]["params"]]).sum()
        for g in self.param_groups:
            g["d"] = d * 1.5
            for p in g["params"]: p.sub_(p.grad / (norm + 1), alpha=g["lr"])
"""
LOOP = """
torch.manual_seed(0); m = torch.nn.Linear(4, 1); o = OPTIMIZER(m.parameters(), lr=.05)
GUARD
for i in range(9):
    x = torch.randn(8, 4)
    if i == 3: x[1, 1] = float("nan")
    loss = m(x).pow(2).mean(); o.zero_grad(); loss.backward(); o.step()
assert all(torch.isfinite(p).all() for p in m.parameters()), "poisoned"
assert o.param_groups[0].get("k", 8) == 8, "a refused step was counted"
"""


@pytest.mark.parametrize("name", ["First", "Counts", "Last"])
def test_an_optimizer_that_reads_its_groups_is_not_broken_by_a_refusal_of_attach(name: str) -> None:
    scope: dict[str, Any] = {"sg": sg}
    text = READERS + LOOP.replace("OPTIMIZER", name).replace("GUARD", "guard = sg.attach(o, model=m)")
    exec(text, scope)
    assert scope["guard"].summary()["skipped"] == 1
    scope["guard"].close()


def test_optimizers_that_read_their_groups_are_not_broken_by_a_refusal_of_steady_run(tmp_path: Path) -> None:
    loops = "".join(LOOP.replace("OPTIMIZER", name).replace("GUARD", "") for name in ("First", "Counts", "Last"))
    ours = under_steady_run(READERS + loops, tmp_path, "--diagnose", "off")
    ours.check_unhurt()
    assert len(ours.incidents) >= 1


# -- an optimizer that computes its own losses

LBFGS = """
import torch
torch.manual_seed(0); m = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
opt = torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4{more})
for k in range(10):
    x = torch.randn(8, 4); y = x.sum(1, keepdim=True)
    if k == {bad}: x[3, 2] = float("nan")
    def closure():
        opt.zero_grad(); loss = ((m(x) - y) ** 2).mean(); loss.backward(); return loss
    opt.step(closure)
print("FINITE" if all(torch.isfinite(p).all() for p in m.parameters()) else "POISONED")
"""


@pytest.mark.parametrize(
    ("more", "bad"),
    [
        ("", 5),
        (', line_search_fn="strong_wolfe"', 6),
        pytest.param(", history_size=2", 0, marks=pytest.mark.slow),
    ],
)
def test_lbfgs_is_kept_finite_or_said_not_to_be_guarded(more: str, bad: int, tmp_path: Path) -> None:
    ours = under_steady_run(LBFGS.format(more=more, bad=bad), tmp_path, "--diagnose", "off")
    if "POISONED" in ours.stdout:
        assert ours.incidents
        assert "last good" not in ours.said
        assert "no trace" not in ours.said
    else:
        assert "FINITE" in ours.stdout or ours.code == 23, ours.stderr[-800:]
        assert ours.incidents


@pytest.mark.parametrize("bad", [0, 5])
def test_lbfgs_under_attach_is_kept_finite_or_said_not_to_be_guarded(bad: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    try:
        attached = sg.attach(optimizer, model=model)
    except sg.UsageError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "LBFGS" in refusal  # said at the start, before anything was trained
        return
    with attached as guard:
        try:
            for step in range(8):
                x = torch.randn(8, 4) * (math.nan if step == bad else 1.0)

                def closure(x: Any = x) -> Any:
                    optimizer.zero_grad()
                    loss = (model(x) - 1).pow(2).mean()
                    loss.backward()
                    return loss

                optimizer.step(closure)
        except sg.TrainingHalted:
            pass
        assert guard.incidents
    assert finite(model.parameters())


# -- "the program never trained"

POISON_AT_3 = """
for i in range(6):
    x = torch.randn(8, 4)
    if i == 3: x[1, 1] = float("nan")
"""
HIDDEN = {
    "a finder ahead of ours": """
import sys, importlib.machinery
class F:
    def find_spec(self, name, path=None, target=None):
        if name == "torch": return importlib.machinery.PathFinder.find_spec(name, path, target)
sys.meta_path.insert(0, F())
import torch
"""
    + "torch.manual_seed(0); m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), .1)"
    + POISON_AT_3
    + "    l = m(x).pow(2).mean(); o.zero_grad(); l.backward(); o.step()\n"
    + "assert all(torch.isfinite(p).all() for p in m.parameters()), 'poisoned'\n",
    "torch imported in a thread": """
import threading, importlib
t = threading.Thread(target=lambda: importlib.import_module("torch")); t.start(); t.join()
import torch
"""
    + "torch.manual_seed(0); m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), .1)"
    + POISON_AT_3
    + "    l = m(x).pow(2).mean(); o.zero_grad(); l.backward(); o.step()\n"
    + "assert all(torch.isfinite(p).all() for p in m.parameters()), 'poisoned'\n",
}
BY_HAND = {
    "torch.func.grad": """
import torch
from torch.func import functional_call, grad
torch.manual_seed(0); m = torch.nn.Linear(4, 1); ps = dict(m.named_parameters())
"""
    + POISON_AT_3
    + """
    g = grad(lambda p: functional_call(m, p, (x,)).pow(2).mean())(ps)
    with torch.no_grad():
        for n in ps: ps[n].sub_(g[n], alpha=1e-2)
""",
    "torch.autograd.grad": """
import torch
torch.manual_seed(0); m = torch.nn.Linear(4, 1); ps = list(m.parameters())
"""
    + POISON_AT_3
    + """
    gs = torch.autograd.grad(m(x).pow(2).mean(), ps)
    for p, g in zip(ps, gs): p.data -= 1e-2 * g
""",
}


@pytest.mark.parametrize("kind", some_slow(HIDDEN, 1))
def test_training_is_guarded_however_torch_was_imported(kind: str, tmp_path: Path) -> None:
    ours = under_steady_run(HIDDEN[kind], tmp_path, "--diagnose", "off")
    assert ours.code == 0, ours.stderr[-500:]
    assert len(ours.incidents) == 1


@pytest.mark.parametrize("kind", some_slow(BY_HAND, 1))
def test_a_loop_that_updates_by_hand_is_not_said_to_never_have_trained(kind: str, tmp_path: Path) -> None:
    ours = under_steady_run(BY_HAND[kind], tmp_path, "--diagnose", "off")
    assert ours.code == 0
    assert "never trained" not in ours.said
    assert "all applied" not in ours.said
    assert "not" in ours.stderr


# -- updates that no torch optimizer makes


def test_a_bad_loss_whose_update_could_not_be_checked_is_an_incident(tmp_path: Path) -> None:
    ended = under_steady_run(
        """
        import torch
        model = torch.nn.Linear(3, 1)

        class ByHand:
            def step(self):
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None

        optimizer = ByHand()
        for k in range(6):
            x = torch.randn(4, 3)
            if k == 3:
                x[0, 0] = float("nan")
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
        tmp_path,
    )
    ended.check_unhurt()
    assert [incident.first_step for incident in ended.incidents] == [3]
    assert "not checked" in ended.incidents[0].headline
    assert "no update was checked" in ended.stderr


def test_skipping_is_no_longer_called_a_remedy_when_the_next_batch_fails_too() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bad = torch.full((4, 2), math.nan)

    def slugs(guard: Any) -> list[str]:
        return [trial.remedy.slug for trial in guard.incidents[0].diagnosis.remedies]

    with sg.Guard(model, optimizer, lambda m, b: m(b).pow(2).mean()) as guard:
        for _ in range(4):
            guard.step(torch.randn(4, 2))
        guard.step(bad)
        assert "skip_batch" in slugs(guard)
        guard.step(bad)
        assert "skip_batch" not in slugs(guard)
