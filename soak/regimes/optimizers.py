"""One rough task under every kind of optimizer, and regimes of half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..blocks import classified, cross_entropy, endless, perceptron, squared_error
from ..training import Training, seeded, single


class Orthogonal(Optimizer):
    """Momentum whose matrices are made orthogonal by a few Newton-Schulz steps, as in Muon."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "moment" not in state:
            state["moment"] = torch.zeros_like(parameter)
        moment = state["moment"].mul_(group["momentum"]).add_(parameter.grad)
        parameter.add_(_orthogonal(moment) if moment.dim() == 2 else moment.sign(), alpha=-group["lr"])


def _orthogonal(matrix: Tensor) -> Tensor:
    wide = matrix / (matrix.norm() + 1e-7)
    for _ in range(4):
        square = wide @ wide.T
        wide = 3.4445 * wide - (4.775 * square - 2.0315 * square @ square) @ wide
    return wide


def _rough_task(make: Callable[[Iterable[Tensor]], Optimizer], *, batch_rows: int = 12) -> Callable[[int], Training]:
    """Classification with labels that are rotated by plan, inputs that jump in size and some random labels."""

    def build(seed: int) -> Training:
        g, model = seeded(seed), perceptron(8, 24, 4, between=nn.ReLU)

        def batch(k: int) -> tuple[Tensor, Tensor]:
            points, labels = classified(g, batch_rows, 8, 4)
            if k % 53 == 52:
                labels = torch.randint(4, labels.shape, generator=g)
            return points * (5.0 if k % 71 == 70 else 1.0), (labels + k // 130) % 4

        return single(model, make(model.parameters()), cross_entropy, endless(batch))

    return build


_MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=3e-3, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=5e-3),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, t0=100),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3, step_sizes=(1e-7, 0.05)),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
    "amsgrad_one_by_one": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=False),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.95, nesterov=True, weight_decay=1e-3),
    "fused_adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "fused_sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "tensor_rate_adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(5e-3)),
    "orthogonal_momentum": lambda p: Orthogonal(p, lr=0.02),
}  # fmt: skip

OPTIMIZERS = {f"optimizer_{name}": _rough_task(make) for name, make in _MAKERS.items()}
for _name, _build in OPTIMIZERS.items():
    _build.__doc__ = f"{_name.removeprefix('optimizer_')} on labels that rotate by plan and inputs that jump in size."


def lbfgs(seed: int) -> Training:
    """LBFGS with a line search: several evaluations of the loss inside one step; new targets every 60 updates."""
    g, model = seeded(seed), perceptron(4, 10, 1)
    points = torch.randn(48, 4, generator=g)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        column = k // 60 % 4
        return points, points[:, column : column + 1].sin() * (1 + column)

    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=5, line_search_fn="strong_wolfe")
    return single(model, optimizer, squared_error, endless(batch), closure=True)


def searched_loss_scale(seed: int) -> Training:
    """fp16 with a loss scale that begins too high and grows too far again and again; the targets jump tenfold."""
    g, model = seeded(seed), perceptron(8, 24, 24, 1, between=nn.ReLU)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=40)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(12, 8, generator=g)
        return points, points[:, :4].abs().sum(1, keepdim=True) * (10.0 if k // 120 % 2 else 1.0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets = batch
        return (model(points).float() - targets).square().mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return single(model, optimizer, loss, endless(batch), clip=5.0, precision="fp16", scaler=scaler)


def bfloat16_autocast(seed: int) -> Training:
    """bf16 autocast with targets that jump by a plan, a schedule and no clip."""
    g, model = seeded(seed), perceptron(8, 24, 24, 1, between=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.95)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(12, 8, generator=g)
        return points, points[:, :4].abs().sum(1, keepdim=True) * (10.0 if k // 90 % 2 else 1.0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, targets = batch
        return (model(points).float() - targets).square().mean()

    return single(model, optimizer, loss, endless(batch), precision="bf16", scheduler=scheduler)


def bfloat16_weights(seed: int) -> Training:
    """Weights kept in bf16, so that many small updates change no bit."""
    g, model = seeded(seed), perceptron(8, 24, 4, between=nn.ReLU).to(torch.bfloat16)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points, labels = classified(g, 16, 8, 4)
        return points.to(torch.bfloat16), labels

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return single(model, optimizer, lambda m, b: cross_entropy(m, b).float(), endless(batch), clip=1.0)


def double_weights(seed: int) -> Training:
    """Weights in float64 on targets whose unit changes from metres to micrometres."""
    g, model = seeded(seed), perceptron(4, 16, 1).double()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(16, 4, generator=g, dtype=torch.float64)
        return points, points.sum(1, keepdim=True) * (1e3 if k // 140 % 2 else 1.0)

    return single(model, torch.optim.Adam(model.parameters(), lr=1e-2), squared_error, endless(batch), clip=1.0)
