"""The same model, ill on purpose: three mistakes that real runs made, each in three loops.

- `zero-latent`: a blank line has the latent zero, which is divided by its own length. Running statistics of the
  latents, kept as a batch norm keeps them, take the NaN in and never lose it.
- `unnormalised`: latents come as the int8 codes they were stored in, the velocity to be predicted is as large, and
  float16 gradients under a fixed loss scale overflow: an infinite norm, which `isnan` does not see.
- `rounding`: the noise schedule is computed in bfloat16, where a time is exactly 1 in one of 510 draws and 1 - 1e-3
  rounds to 1 as well: the weight of that row is inf / inf.

The loops: `plain` looks at nothing; `zeroing` is the field report's (NaN norm: set the gradients to zero and carry on);
`guarded` is `sg.Guard`. All begin with the same weights and get the same batches.

Shapes: B rows, T tokens, N sentences, Z entries of a latent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import steadygrad as sg

from .config import Config
from .corpus import END_ID
from .diffusion import add_noise, draw_times
from .losses import LossFn, make_loss, noise_of, text_loss, validate, word_weights
from .model import MMDiT
from .pace import DTYPES
from .prepared import Batch, Prepared, Split, batches
from .training import make_optimizer, make_schedule

BLANK_EVERY = 300
FIXED_SCALE = 1024.0


class RunningScale(nn.Module):
    """Standardises by statistics that move a little with every batch: one NaN, and they are NaN for good."""

    mean_Z: Tensor
    square: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean_Z", torch.zeros(dim))
        self.register_buffer("square", torch.ones(()))

    def forward(self, latent_BZ: Tensor) -> Tensor:
        if self.training:
            self.mean_Z.lerp_(latent_BZ.detach().mean(0), 0.1)
            self.square.lerp_((latent_BZ.detach() - self.mean_Z).square().mean(), 0.1)
        return (latent_BZ - self.mean_Z) / self.square.sqrt()


class WithRunningScale(nn.Module):
    """The healthy model behind a running scale."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.inner = MMDiT(config)
        self.scale = RunningScale(config.latent.dim)

    def forward(self, tokens_BT: Tensor, latent_BZ: Tensor, t_text_B: Tensor, t_latent_B: Tensor) -> Any:
        return self.inner(tokens_BT, latent_BZ, t_text_B, t_latent_B)


def zero_latent_loss(config: Config) -> LossFn:
    healthy = make_loss(config)

    def loss_fn(model: nn.Module, batch: Batch) -> Any:
        raw_BZ = batch["latent"]
        unit_BZ = raw_BZ / raw_BZ.norm(dim=-1, keepdim=True)  # 0 / 0 for the blank line
        return healthy(model, {**batch, "latent": model.scale(unit_BZ)})  # type: ignore[operator]

    return loss_fn


def unnormalised_loss(config: Config) -> LossFn:
    """Squares summed over the entries, as many write it, of latents that were not scaled."""
    weights, mode = config.loss, config.training.mode

    def loss_fn(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        tokens_BT = batch["tokens"]
        generator = noise_of(batch)
        times = draw_times(mode, len(tokens_BT), tokens_BT.device, generator)
        noised = add_noise(tokens_BT, batch["latent"], *times, config.latent.prediction, generator)
        logits_BTV, said_BZ = model(noised.tokens_BT, noised.latent_BZ, *times)
        text = weights.loss_scale * text_loss(logits_BTV, tokens_BT, noised, "mean", weights.pad_weight)
        gap_B = (said_BZ.float() - noised.latent_target_BZ).square().sum(-1) * noised.latent_counts_B
        latent = weights.loss_scale * gap_B.mean()
        return {"loss": text + latent, "text": text, "latent": latent}

    return loss_fn


def rounding_loss(config: Config) -> LossFn:
    """The weight of masked diffusion, d sigma / expm1(sigma), in the dtype of the model instead of float32."""
    weights = config.loss

    def loss_fn(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        tokens_BT = batch["tokens"]
        generator = noise_of(batch)
        t_B = torch.rand(len(tokens_BT), device=tokens_BT.device, generator=generator).to(torch.bfloat16)
        almost_one = 1 - 1e-3  # meant to keep the logarithm from its pole; rounds to 1 with t
        sigma_B = -torch.log1p(-almost_one * t_B)
        weight_B = almost_one / (1 - almost_one * t_B) / torch.expm1(sigma_B)
        t_wide_B = t_B.float()
        noised = add_noise(tokens_BT, batch["latent"], t_wide_B, t_wide_B, config.latent.prediction, generator)
        logits_BTV, said_BZ = model(noised.tokens_BT, noised.latent_BZ, t_wide_B, t_wide_B)
        per_token_BT = sg.numerics.masked_cross_entropy(
            logits_BTV, tokens_BT, mask=noised.hidden_BT * word_weights(tokens_BT, weights.pad_weight), reduction="none"
        )
        text = weights.text_loss_weight * (per_token_BT * weight_B[:, None].float()).mean()
        latent = weights.latent_loss_weight * sg.numerics.latent_mse(said_BZ, noised.latent_target_BZ)
        return {"loss": text + latent, "text": text, "latent": latent}

    return loss_fn


@dataclass(frozen=True)
class Sickness:
    name: str
    make_model: Callable[[Config], nn.Module]
    make_loss: Callable[[Config], LossFn]
    change: Callable[[Config], Config]
    spoil: Callable[[Prepared], Split]


def _with_blanks(data: Prepared) -> Split:
    """Raw latents, and one line in BLANK_EVERY is blank."""
    blank = torch.arange(BLANK_EVERY // 2, len(data.train), BLANK_EVERY)
    tokens_NT, latents_NZ = data.train.tokens_NT.clone(), data.scale.restore(data.train.latents_ND)
    tokens_NT[blank], latents_NZ[blank] = END_ID, 0.0
    sentences = list(data.train.sentences)
    for row in blank.tolist():
        sentences[row] = ""
    return Split(sentences, tokens_NT, latents_NZ)


def _as_codes(data: Prepared) -> Split:
    raw_NZ = data.scale.restore(data.train.latents_ND)
    codes_NZ = (127 * raw_NZ / raw_NZ.abs().max()).round()
    return Split(data.train.sentences, data.train.tokens_NT, codes_NZ)


def _in_half(config: Config) -> Config:
    return dataclasses.replace(
        config,
        latent=dataclasses.replace(config.latent, prediction="velocity"),
        training=dataclasses.replace(config.training, dtype="fp16"),
        loss=dataclasses.replace(config.loss, loss_scale=FIXED_SCALE),
    )


SICKNESSES = {
    kind.name: kind
    for kind in (
        Sickness("zero-latent", WithRunningScale, zero_latent_loss, lambda config: config, _with_blanks),
        Sickness("unnormalised", MMDiT, unnormalised_loss, _in_half, _as_codes),
        Sickness("rounding", MMDiT, rounding_loss, lambda config: config, lambda data: data.train),
    )
}


# -- the three loops


@dataclass(frozen=True)
class Told:
    """What one loop did. `losses` has an entry a step, None where the loss was not finite."""

    loop: str
    losses: list[float | None]
    bad_tensors: int
    text_before: float
    text_after: float
    refused: int = 0
    """Updates the guard refused; with float16 also those at which its own loss scale was still too large."""
    first_incident: str = ""
    cause: str = ""

    @property
    def first_bad(self) -> int | None:
        return next((step for step, loss in enumerate(self.losses) if loss is None), None)

    @property
    def wasted(self) -> int:
        """Steps without a finite loss, from the first of them on."""
        return sum(loss is None for loss in self.losses)

    def plain(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        after = self.text_after if math.isfinite(self.text_after) else None
        return {**dataclasses.asdict(self), "text_after": after, "first_bad": self.first_bad, "wasted": self.wasted}


@dataclass(frozen=True)
class Compared:
    sickness: str
    steps: int
    loops: tuple[Told, ...]

    def plain(self) -> dict[str, Any]:
        return {"sickness": self.sickness, "steps": self.steps, "loops": [told.plain() for told in self.loops]}


def compare(
    sickness: str, config: Config, data: Prepared, run_dir: Path, *, device: str = "cpu", show: bool = True
) -> Compared:
    """The three loops, one after another, from the same weights with the same batches and the same noise."""
    kind = SICKNESSES[sickness]
    ill = kind.change(config)
    ill_data = kind.spoil(data)
    told = []
    for loop in ("plain", "zeroing", "guarded"):
        torch.manual_seed(config.training.seed)
        model = kind.make_model(ill).to(device)
        feed = batches(ill_data, config.training.train_batch_size, seed=config.training.seed)
        healthy = model.inner if isinstance(model, WithRunningScale) else model
        before = validate(healthy, config, data.val)["text"]
        # Scaling is the guard's own work, so its loss stays as it is.
        own = dataclasses.replace(ill, loss=dataclasses.replace(ill.loss, loss_scale=1.0)) if loop == "guarded" else ill
        loss_fn = kind.make_loss(own)
        refused, first, cause = 0, "", ""
        if loop == "guarded":
            losses, refused, first, cause = _guarded(model, ill, loss_fn, feed, run_dir)
        else:
            losses = _unguarded(model, ill, loss_fn, feed, device, zeroing=loop == "zeroing")
        bad = sum(not bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())
        after = validate(healthy, config, data.val)["text"]
        told.append(Told(loop, losses, bad, before, after, refused, first, cause))
        if show:
            print(_line(told[-1]), flush=True)
    return Compared(sickness, config.training.num_train_steps, tuple(told))


def _unguarded(
    model: nn.Module, config: Config, loss_fn: LossFn, feed: Iterator[Batch], device: str, *, zeroing: bool
) -> list[float | None]:
    optimizer = make_optimizer(model, config)
    schedule = make_schedule(optimizer, config)
    autocast = torch.autocast(device, DTYPES[config.training.dtype], enabled=config.training.dtype != "fp32")
    losses: list[float | None] = []
    for _ in range(config.training.num_train_steps):
        with autocast:
            loss = loss_fn(model, next(feed))["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(model.parameters(), config.optimizer.grad_clip_norm)
        if zeroing and torch.isnan(norm):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        value = float(loss.detach()) / config.loss.loss_scale
        losses.append(value if math.isfinite(value) else None)
    return losses


def _guarded(
    model: nn.Module, config: Config, loss_fn: LossFn, feed: Iterator[Batch], run_dir: Path
) -> tuple[list[float | None], int, str, str]:
    optimizer = make_optimizer(model, config)
    losses: list[float | None] = []
    with sg.Guard(
        model, optimizer, loss_fn, max_grad_norm=config.optimizer.grad_clip_norm,
        scheduler=make_schedule(optimizer, config), precision=config.training.dtype, run_dir=run_dir,
    ) as guard:  # fmt: skip
        for _ in range(config.training.num_train_steps):
            loss = guard.step(next(feed)).loss
            losses.append(loss if loss is not None and math.isfinite(loss) else None)
        incident = guard.incidents[0] if guard.incidents else None
        refused = guard.summary()["skipped"]
    if incident is None:
        return losses, refused, "", ""
    term = next((found.detail for found in incident.findings if found.code == "SY102"), incident.headline)
    found = incident.diagnosis
    cause = f"{found.cause.code} {found.cause.slug}: {found.because}" if found and found.cause else ""
    return losses, refused, f"step {incident.first_step}: {term}", cause


def _line(told: Told) -> str:
    health = "weights finite" if not told.bad_tensors else f"{told.bad_tensors} tensors of the model not finite"
    first = "never" if told.first_bad is None else f"step {told.first_bad}"
    return (
        f"  {told.loop:<8} first bad loss {first}, {told.wasted} of {len(told.losses)} steps without a finite loss, "
        f"{health}, validation text {told.text_before:.2f} -> {told.text_after:.2f}"
    )


def in_words(made: Compared) -> str:
    guarded = made.loops[-1]
    lines = [f"  incident  {guarded.first_incident}"] if guarded.first_incident else []
    return "\n".join([*lines, f"  cause     {guarded.cause}"] if guarded.cause else lines)
