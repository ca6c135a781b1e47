"""The self-test: its verdicts on set-ups that are known to be fit or broken, and that it leaves no trace."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg
from steadygrad.checkup.trials.selftest_verdict import SelftestTrial, judge
from steadygrad.commands import main
from steadygrad.records.checks.selftest import SelftestStep
from steadygrad.records.errors import UsageError


class Net(nn.Module):
    """Everything a step can move: batch norm, dropout, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(16, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))  # type: ignore[no-any-return]


def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def setup(lr: float = 1e-2, **options: Any) -> tuple[Net, torch.optim.Optimizer, list[Any]]:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(40, 8)
    y = x[:, :1] * 2.0
    batches = [(x[n : n + 8], y[n : n + 8]) for n in range(0, 40, 8)]
    return model, torch.optim.AdamW(model.parameters(), lr=lr, **options), batches


def outcome(found: Any, name: str) -> str:
    return next(check.outcome for check in found.checks if name in check.name)


def everything(model: Net, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All that could have changed, as bytes and plain values."""
    found: dict[str, Any] = {name: t.detach().clone() for name, t in model.state_dict().items()}
    found |= {f"grad {name}": None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    for number, state in enumerate(optimizer.state.values()):
        found |= {f"state {number} {key}": torch.as_tensor(value).clone() for key, value in state.items()}
    found |= {"groups": str([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])}
    found |= {"calls": model.calls, "modes": [m.training for m in model.modules()], "marks": optimizer.__dict__.keys()}
    found |= {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()[1].tolist()}
    return found


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, after[key]), key
        else:
            assert value == after[key], key


# -- no trace


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_callers_objects_are_the_same_bits_afterwards(trained: bool, precision: str) -> None:
    model, optimizer, batches = setup()
    if trained:  # with moments, step counts and a gradient that somebody still needs
        for batch in batches[:2]:
            optimizer.zero_grad()
            loss_fn(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.drop.eval()
    before = everything(model, optimizer)
    gradients = [p.grad for p in model.parameters()]
    sg.selftest(model, optimizer, loss_fn, batches, precision=precision)
    assert_same(before, everything(model, optimizer))
    assert all(p.grad is old for p, old in zip(model.parameters(), gradients, strict=True))


def test_an_error_in_the_users_code_is_the_verdict_and_still_leaves_no_trace() -> None:
    model, optimizer, batches = setup()
    before = everything(model, optimizer)

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        loss_fn(model, batch).backward()  # type: ignore[no-untyped-call]
        raise KeyError("labels")

    found = sg.selftest(model, optimizer, broken, batches)
    assert found.verdict == "unfit"
    assert "KeyError: 'labels'" in found.checks[0].detail
    assert_same(before, everything(model, optimizer))


def test_batches_are_not_written_and_a_loader_draws_no_lasting_random_numbers() -> None:
    model, optimizer, batches = setup()

    def writes(model: nn.Module, batch: Any) -> torch.Tensor:
        batch[0].mul_(2.0)
        return loss_fn(model, batch)

    kept = [x.clone() for x, _ in batches]
    sg.selftest(model, optimizer, writes, batches)
    assert all(torch.equal(old, x) for old, (x, _) in zip(kept, batches, strict=True))
    rng = torch.get_rng_state()
    data = TensorDataset(torch.randn(16, 8), torch.randn(16, 1))
    rng = torch.get_rng_state()
    sg.selftest(model, optimizer, loss_fn, DataLoader(data, batch_size=4, shuffle=True))
    assert torch.equal(rng, torch.get_rng_state())


# -- verdicts


def test_a_healthy_set_up_is_fit_and_its_numbers_are_those_of_a_plain_loop() -> None:
    model, optimizer, batches = setup()
    found = sg.selftest(model, optimizer, loss_fn, batches)
    assert found.verdict == "fit", found.checks
    assert len(found.steps) == 10
    losses, norms = [], []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_fn(model, batches[step % len(batches)])
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item())
        optimizer.step()
    assert [step.loss for step in found.steps] == losses
    assert [step.grad_norm for step in found.steps] == norms


def test_a_nan_loss_is_unfit_and_so_is_one_that_comes_later() -> None:
    model, optimizer, batches = setup()
    found = sg.selftest(model, optimizer, lambda m, b: loss_fn(m, b) * math.nan, batches)
    assert (found.verdict, outcome(found, "is a number")) == ("unfit", "fail")
    bad = [*batches[:3], (torch.full((8, 8), math.inf), torch.zeros(8, 1))]
    found = sg.selftest(model, optimizer, loss_fn, bad)
    assert (outcome(found, "is a number"), outcome(found, "stay finite")) == ("pass", "fail")
    assert len(found.steps) == 4


def test_finite_gradients_that_poison_the_weights_are_seen() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1).half()
    model.bias.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8, foreach=False)
    x = torch.zeros(4, 8, dtype=torch.float16)
    x[:, 0] = 1.0  # seven of eight weights get a gradient of exactly zero: 0/0 in float16
    found = sg.selftest(model, optimizer, lambda m, b: m(b).float().pow(2).mean(), [x])
    assert found.verdict == "unfit"
    assert "weight became non-finite in step 1, from finite gradients" in next(
        c.detail for c in found.checks if "finite" in c.name
    )


def test_frozen_orphaned_and_unmoved_weights_are_named() -> None:
    model, optimizer, batches = setup()
    model.last = nn.Linear(16, 1)
    found = sg.selftest(model, optimizer, loss_fn, batches)
    assert outcome(found, "weights move") == "doubt"
    assert "last.weight, last.bias are in no optimizer" in next(c.detail for c in found.checks if "move" in c.name)
    model, optimizer, batches = setup(lr=0.0, weight_decay=0.0)
    found = sg.selftest(model, optimizer, loss_fn, batches)
    assert found.verdict == "unfit"
    assert "is the learning rate zero?" in next(c.detail for c in found.checks if "move" in c.name)
    model, _, batches = setup()
    model.requires_grad_(False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    found = sg.selftest(model, sgd, lambda m, b: loss_fn(m, (b[0].requires_grad_(), b[1])), batches)
    assert "nothing in the model can be trained" in next(c.detail for c in found.checks if "gradient" in c.name)


def test_a_half_of_an_adapter_that_starts_at_zero_is_not_doubted_but_a_dead_branch_is() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up, self.dead = nn.Linear(8, 2), nn.Linear(2, 1), nn.Linear(8, 1)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(self.down(x)) + self.dead(x) * 0.0  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, (_, _, batches) = Adapter(), setup()
    found = sg.selftest(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, batches)
    doubt = next(check for check in found.checks if "gradient" in check.name)
    assert doubt.outcome == "doubt"
    assert "dead.weight, dead.bias was exactly zero in every step" in doubt.detail
    assert "down" not in doubt.detail


def test_a_learning_rate_that_diverges_is_unfit() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    x = torch.randn(16, 8)
    found = sg.selftest(model, torch.optim.SGD(model.parameters(), lr=3.0), loss_fn, [(x, x[:, :1])])
    assert found.verdict == "unfit"
    assert "it diverges" in found.checks[-1].detail


def test_a_set_up_that_does_not_repeat_itself_is_noted() -> None:
    model, optimizer, batches = setup()
    source = np.random.default_rng(0)  # a generator of one's own cannot be put back
    found = sg.selftest(model, optimizer, lambda m, b: loss_fn(m, b) * source.uniform(0.9, 1.1), batches)
    assert any("not deterministic" in note for note in found.notes)
    assert sg.selftest(model, optimizer, loss_fn, batches).notes == ()


def test_growing_norms_are_doubted_by_their_numbers_alone() -> None:
    steps = [SelftestStep(step=n, loss=1.0, grad_norm=10.0**n, update_ratio=1e-3) for n in range(1, 11)]
    found = judge(SelftestTrial(first_loss=1.0, num_tensors=1, steps=steps, loss_afterwards=0.5))
    assert found.verdict == "doubtful"
    assert "grew from 10 to 1e+10" in next(c.detail for c in found.checks if "finite" in c.name)


def halved() -> tuple[nn.Module, torch.optim.Optimizer, Any, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).half()
    batches = [(torch.randn(8, 4).half(), torch.randn(8, 4).half()) for _ in range(3)]

    def loss_fn(module: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(module(x), y)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_fn, batches


def test_float16_weights_are_named_as_the_cause_with_a_next_step() -> None:
    found = sg.selftest(*halved())
    assert found.verdict == "unfit"
    assert "float16" in found.precision
    causes = [note for note in found.notes if note.startswith("likely cause")]
    assert any("PF101" in note and "next step: load and keep the weights in float32" in note for note in causes)
    assert any("eps=1e-08 is 0 in float16" in note for note in causes)


def test_a_healthy_set_up_names_no_cause() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [torch.ones(2, 4)]
    assert sg.selftest(model, optimizer, lambda m, x: m(x).square().mean(), batches).notes == ()


def test_a_rate_that_a_warm_up_starts_from_zero_is_fit_and_is_zero_again_afterwards() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 50))
    found = sg.selftest(model, optimizer, lambda m, x: m(x).square().mean(), [torch.randn(8, 4)])
    assert found.verdict == "fit"
    assert any("starts at zero" in note for note in found.notes)
    assert optimizer.param_groups[0]["lr"] == 0.0


class _Members(nn.Module):
    """Three equal layers, of which one is never called: beside the others, or in a chain with them."""

    def __init__(self, chain: bool) -> None:
        super().__init__()
        self.chain = chain
        self.members = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.chain:
            return self.members[1](self.members[0](x))  # type: ignore[no-any-return]
        return self.members[0](x) + self.members[1](x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("chain", "verdict"), [(False, "fit"), (True, "doubtful")])
def test_an_expert_that_no_row_reaches_is_noted_and_a_layer_left_out_of_a_chain_is_doubted(
    chain: bool, verdict: str
) -> None:
    torch.manual_seed(0)
    model = _Members(chain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    found = sg.selftest(model, optimizer, lambda m, x: m(x).square().mean(), [torch.randn(8, 4)])
    assert found.verdict == verdict
    assert any("members.2" in words for words in (*found.notes, *(check.detail for check in found.checks)))


def test_wrong_arguments_are_refused_in_words() -> None:
    model, optimizer, batches = setup()
    with pytest.raises(UsageError, match="no batches"):
        sg.selftest(model, optimizer, loss_fn, [])
    with pytest.raises(UsageError, match="precision among fp32, bf16, fp16"):
        sg.selftest(model, optimizer, loss_fn, batches, precision="fp8")
    with pytest.raises(UsageError, match=r"needs a torch\.optim\.Optimizer"):
        sg.selftest(model, "adam", loss_fn, batches)  # type: ignore[arg-type]


# -- the command

SCRIPT = """
import torch
from helper_of_selftest import RATE

def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(32, 4)
    batches = [(x[n:n + 8], x[n:n + 8, :1]) for n in range(0, 32, 8)]
    loss_fn = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return model, torch.optim.SGD(model.parameters(), lr=RATE), loss_fn, batches

def wrong():
    return 3

def raises():
    raise OSError("no data")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("helper_of_selftest", "my_setup"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "helper_of_selftest.py").write_text("RATE = 0.01\n")
    path = tmp_path / "my_setup.py"
    path.write_text(SCRIPT)
    yield path  # type: ignore[misc]
    for name in ("helper_of_selftest", "my_setup"):
        sys.modules.pop(name, None)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steady", "selftest", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_the_command_runs_a_function_of_a_file_with_the_modules_beside_it(
    script: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = call(f"{script}:make")
    assert code == 0
    assert "fit in fp32: 5 of 5 parameters are trainable." in out
    assert "the loss of the first batch falls" in out
    code, out, _ = call(f"{script}:make", "--json", "--steps", "3")
    found = json.loads(out)
    assert (code, found["verdict"], len(found["steps"])) == (0, "fit", 3)


def test_what_is_no_function_is_told_what_to_write(script: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    for words, answer in [
        (script, "is a script"),
        (f"{script}:nothing", "has no function nothing"),
        (f"{script}:wrong", "returned int"),
        ("nonsense", "names no function"),
    ]:
        code, _, err = call(words)
        assert code == 2
        assert answer in err
        assert "return model, optimizer, loss_fn, batches" in err
    assert "raised OSError: no data" in call(f"{script}:raises")[2]
    assert "There is no file" in call("gone.py:make")[2]


def test_silent_errors_of_the_first_batch_and_of_the_steps_are_in_doubt() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    batches = [(torch.randn(16, 6), torch.randint(0, 4, (16,))) for _ in range(10)]

    def checked(loss_fn: Any) -> dict[str, str]:
        result = sg.selftest(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, batches)
        return {check.name: check.detail for check in result.checks if check.outcome != "pass"}

    def probabilities(m: torch.nn.Module, b: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(m(b[0]).softmax(-1), b[1])

    def logits(m: torch.nn.Module, b: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(m(b[0]), b[1])

    assert "no silent error shows" not in checked(logits)
    assert "SY440" in checked(probabilities)["no silent error shows"]
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    assert "SY442" in checked(logits)["no silent error shows"]


def scores(*, times: float) -> tuple[nn.Module, torch.optim.Optimizer, Any, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    data = [(times * torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(6)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), data


def test_a_first_loss_far_above_that_of_guessing_is_in_doubt_with_a_next_step() -> None:
    found = sg.selftest(*scores(times=3e4))
    check = next(check for check in found.checks if "chance" in check.name)
    assert found.verdict == "doubtful"
    assert "guessing among 4 classes gives 1.39" in check.detail
    assert "next step: normalise the inputs" in check.detail


def test_a_first_loss_near_that_of_guessing_is_not_mentioned() -> None:
    found = sg.selftest(*scores(times=1.0))
    assert found.fit
    assert not any("chance" in check.name for check in found.checks)
