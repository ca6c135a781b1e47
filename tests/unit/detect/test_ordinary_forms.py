"""Ordinary forms of silent errors at `sg.attach`, each beside what looks like it and is healthy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.checkup.trials.batch_facts import padded_canvas, shift_of_tags

Loss = Callable[[dict[str, Tensor]], Tensor]


def told(model: nn.Module, loss_of: Loss, batches: list[dict[str, Tensor]], optimizer: Any = None) -> set[str]:
    """What is said of this training; no fault of ours may occur."""
    optimizer = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    guard = sg.attach(optimizer, model=model)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()
    guard.close()
    assert not guard.summary()["guard_faults"]
    causes = {i.diagnosis.cause.slug for i in guard.incidents if i.diagnosis and i.diagnosis.cause}
    return causes | {found.slug for found in guard.vitals}


# -- tags


class Tagger(nn.Module):
    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(30, 12), nn.LSTM(12, 12, batch_first=True, bidirectional=both)
        self.head = nn.Linear(24 if both else 12, 6)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


def tagged(how: str) -> list[dict[str, Tensor]]:
    table, found = torch.randint(0, 6, (30,)), []
    for _ in range(6):
        ids = torch.randint(0, 30, (16, 14))
        labels = (
            table[ids] if how == "own" else table[ids.roll(1, 1)] if how == "before" else torch.randint(0, 6, ids.shape)
        )
        found.append({"ids": ids, "labels": labels})
    return found


@pytest.mark.parametrize(
    ("both", "how", "shift", "seen"),
    [
        (True, "own", 1, True),
        (True, "own", 0, False),
        (False, "own", 1, False),  # what comes next is a task where nothing sees it
        (True, "before", 1, False),  # the tags of the batch are moved already, and this puts them back
        (True, "drawn", 1, False),
    ],
)
def test_tags_that_are_shifted_against_their_tokens_are_named(both: bool, how: str, shift: int, seen: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(both=both)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        logits, labels = model(batch["ids"]), batch["labels"]
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    assert ("label_shift" in told(model, loss, tagged(how))) is seen


def test_many_kinds_of_tags_are_not_judged() -> None:
    ids = torch.randint(0, 500, (8, 200))
    assert shift_of_tags(ids, (ids + 1)[:, 1:], {"labels": ids + 1}) == 0


# -- canvases


def pictures(*, fill: int) -> list[dict[str, Tensor]]:
    found = []
    for _ in range(6):
        x, y = torch.zeros(8, 1, 16, 16), torch.full((8, 16, 16), fill)
        size = torch.randint(5, 9, (8, 2))
        for row, (high, wide) in enumerate(size.tolist()):
            x[row, :, :high, :wide] = torch.randn(high, wide)
            y[row, :high, :wide] = (x[row, 0, :high, :wide] > 0).long()
        found.append({"x": x, "y": y, "size": size})
    return found


@pytest.mark.parametrize(("fill", "seen"), [(0, True), (255, False)])
def test_a_canvas_that_counts_in_the_loss_is_named(fill: int, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))

    def loss(batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"], ignore_index=255)

    assert ("padding_in_loss" in told(model, loss, pictures(fill=fill))) is seen


def test_a_black_background_is_no_canvas() -> None:
    """The far corner of a shape on black: all beyond it is black, and so is most of what lies before it."""
    images, corner = torch.zeros(4, 1, 16, 16), torch.tensor([[8, 9], [10, 8], [7, 12], [9, 9]])
    for row, (high, wide) in enumerate(corner.tolist()):
        images[row, :, high - 4 : high, wide - 4 : wide] = 1.0
    assert padded_canvas(images, {"corner": corner}) is None


# -- labels


@pytest.mark.parametrize(("share", "seen"), [(0.75, True), (0.1, False)])
def test_rows_without_their_one_label_are_named(share: float, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
    batches = []
    for _ in range(6):
        x = torch.randn(16, 12)
        y = (x[:, 0] > 0).long().masked_fill(torch.arange(16) % 16 < round(16 * share), -100)
        order = torch.arange(16).reshape(2, 8).T.flatten()
        batches.append({"x": x[order], "y": y[order]})
    assert ("labels_mostly_masked" in told(model, lambda b: F.cross_entropy(model(b["x"]), b["y"]), batches)) is seen


class Neighbours(nn.Module):
    """All rows look at each other, as the nodes of a graph do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        near = (x @ x.T).softmax(-1)
        out: Tensor = self.two(near @ self.one(x).relu())
        return out


def test_rows_without_a_label_that_others_look_at_are_left_alone() -> None:
    torch.manual_seed(0)
    model, x = Neighbours(), torch.randn(16, 12)
    y = (x[:, 0] > 0).long().masked_fill(torch.arange(16) % 4 != 0, -1)
    batches = [{"x": x.clone(), "y": y} for _ in range(6)]
    causes = told(model, lambda b: F.cross_entropy(model(b["x"]), b["y"], ignore_index=-1), batches)
    assert "labels_mostly_masked" not in causes


# -- logits


@pytest.mark.parametrize(("given", "seen"), [("logits", True), ("probs", False)])
def test_probabilities_given_as_logits_to_a_distribution_are_named(given: str, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5), nn.Softmax(-1))

    def loss(batch: dict[str, Tensor]) -> Tensor:
        choice = torch.distributions.Categorical(**{given: model(batch["x"])})
        found: Tensor = -(choice.log_prob(batch["y"]) + 0.01 * choice.entropy()).mean()
        return found

    batches = [{"x": torch.randn(16, 6), "y": torch.randint(0, 5, (16,))} for _ in range(4)]
    assert ("softmax_twice" in told(model, loss, batches)) is seen


# -- decay


def rows(count: int) -> list[dict[str, Tensor]]:
    found = []
    for _ in range(count):
        x = torch.randn(32, 16)
        found.append({"x": x, "y": (x[:, 0] > 0).long() + (x[:, 1] > 0).long()})
    return found


@pytest.mark.parametrize(
    ("kind", "decay", "seen"),
    [
        (torch.optim.Adam, 1.0, True),
        (torch.optim.RMSprop, 1.0, True),
        (torch.optim.Adam, 1e-3, False),
        (torch.optim.AdamW, 0.1, False),
    ],
)
def test_decay_that_is_divided_by_its_size_is_named(kind: Any, decay: float, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = kind(model.parameters(), lr=3e-3, weight_decay=decay)
    causes = told(model, lambda b: F.cross_entropy(model(b["x"]), b["y"]), rows(14), optimizer)
    assert ("weight_decay_dominates" in causes) is seen


# -- gradients


def plain(depth: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(16, 16)
        layer.weight.data *= gain
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("kind", "gain", "seen"),
    [(torch.optim.SGD, 1.0, True), (torch.optim.Adam, 1.0, False), (torch.optim.SGD, 2.4, False)],
)
def test_first_layers_that_rounding_keeps_where_they_are_are_named(kind: Any, gain: float, seen: bool) -> None:
    torch.manual_seed(1)
    model = plain(18, gain)
    causes = told(model, lambda b: F.cross_entropy(model(b["x"]), b["y"]), rows(8), kind(model.parameters(), lr=1e-3))
    assert ("vanishing_gradient" in causes) is seen


# -- two players


@pytest.mark.parametrize(("late", "seen"), [(True, True), (False, False)])
def test_gradients_of_one_of_two_optimizers_that_are_cleared_are_named(late: bool, seen: bool) -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.Sequential(maker, judge)
    one, two = torch.optim.Adam(maker.parameters(), lr=1e-3), torch.optim.Adam(judge.parameters(), lr=1e-3)
    guards = [sg.attach(one, model=model), sg.attach(two, model=judge)]
    for _ in range(14):
        fake = model(torch.randn(8, 4))
        two.zero_grad()
        fake.pow(2).mean().backward(retain_graph=True)
        two.step()
        if not late:
            one.zero_grad()
        maker(torch.randn(8, 4)).mean().backward()
        model(torch.randn(8, 4)).mean().backward()
        if late:
            one.zero_grad()
        one.step()
    found = {vital.slug for guard in guards for vital in guard.vitals}
    found |= {i.diagnosis.cause.slug for g in guards for i in g.incidents if i.diagnosis and i.diagnosis.cause}
    for guard in guards:
        guard.close()
    assert ("zero_grad_before_step" in found) is seen


# -- state


class HouseSgd(torch.optim.Optimizer):
    """Momentum in float32 for narrow weights."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                kept = state.setdefault("kept", torch.zeros_like(weight, dtype=torch.float32))
                state["kept"] = kept = 0.9 * kept.float() + weight.grad.float()
                weight.copy_(weight.float() - group["lr"] * kept)


@pytest.mark.parametrize(("dtype", "seen"), [(torch.bfloat16, True), (torch.float64, False)])
def test_state_that_the_program_casts_to_its_parameter_is_named(dtype: torch.dtype, seen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 3).bfloat16()
    optimizer = HouseSgd(model.parameters())

    def loss(batch: dict[str, Tensor]) -> Tensor:
        if batch["x"].sum() == marked:
            for state in optimizer.state.values():
                state["kept"] = state["kept"].to(dtype)
        return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])

    batches = rows(12)
    marked = batches[6]["x"].sum()
    assert ("dtype_downcast_of_moments" in told(model, loss, batches, optimizer)) is seen
