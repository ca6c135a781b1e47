"""The loss, with its terms by name so that the guard can say which one went bad, and the same for validation.

Shapes: B rows, T tokens, Z entries of a latent, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

import steadygrad as sg

from .config import Config
from .corpus import END_ID
from .diffusion import LEAST_TIME, Noised, add_noise, draw_times
from .prepared import Batch, Split

LossFn = Callable[[nn.Module, Any], Mapping[str, Tensor]]
VALIDATION_SEED = 20_261_115


def word_weights(tokens_BT: Tensor, pad_weight: float) -> Tensor:
    """1 for every word and for the end of the sentence, `pad_weight` for the ends after it."""
    ends_BT = (tokens_BT == END_ID).cumsum(1)
    return torch.where(ends_BT > 1, pad_weight, 1.0)


def text_loss(logits_BTV: Tensor, tokens_BT: Tensor, noised: Noised, weighting: str, pad_weight: float) -> Tensor:
    """Cross-entropy of the hidden words; zero, with zero gradient, for a batch in which none was hidden."""
    weights_BT = word_weights(tokens_BT, pad_weight)
    counted_BT = weights_BT * noised.hidden_BT
    if weighting == "mean":
        return sg.numerics.masked_cross_entropy(logits_BTV, tokens_BT, mask=counted_BT)
    # A bound on the likelihood divides by the time; below LEAST_TIME a row has nothing hidden that could count.
    counted_BT = counted_BT / noised.t_text_B.clamp(min=LEAST_TIME)[:, None]
    return sg.numerics.masked_cross_entropy(logits_BTV, tokens_BT, mask=counted_BT, denominator=weights_BT.sum())


def noise_of(batch: Batch) -> Generator:
    return Generator(device=batch["tokens"].device).manual_seed(batch["noise_seed"])


def make_loss(config: Config) -> LossFn:
    """`loss_fn(model, batch)` for the guard. Never waits for the device.

    The noise is drawn from a seed that the batch brings along, not from torch's own generators. The guard puts those
    back when it refuses a batch, as if it had never come; noise that is the cause would come again with the next.
    """
    weights, mode, prediction = config.loss, config.training.mode, config.latent.prediction

    def loss_fn(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        tokens_BT, latent_BZ = batch["tokens"], batch["latent"]
        generator = noise_of(batch)
        t_text_B, t_latent_B = draw_times(mode, len(tokens_BT), tokens_BT.device, generator)
        noised = add_noise(tokens_BT, latent_BZ, t_text_B, t_latent_B, prediction, generator)
        logits_BTV, said_BZ = model(noised.tokens_BT, noised.latent_BZ, t_text_B, t_latent_B)
        text = text_loss(logits_BTV, tokens_BT, noised, weights.text_weighting, weights.pad_weight)
        latent = sg.numerics.latent_mse(said_BZ, noised.latent_target_BZ, mask=noised.latent_counts_B)
        text = weights.loss_scale * weights.text_loss_weight * text
        latent = weights.loss_scale * weights.latent_loss_weight * latent
        return {"loss": text + latent, "text": text, "latent": latent}

    return loss_fn


@torch.no_grad()
def validate(model: nn.Module, config: Config, split: Split, *, batch_size: int | None = None) -> dict[str, float]:
    """Both losses on held-out sentences, unweighted, words only, with the same noise every time.

    `text` and `latent` are each the mean of two modes: from noise alone, and given the other one. Leaves torch's own
    generators as they were. Waits for the device once.
    """
    size = batch_size or config.training.train_batch_size
    device = split.tokens_NT.device
    generator = Generator(device=device).manual_seed(VALIDATION_SEED)
    sums = {
        name: torch.zeros(2, device=device) for name in ("text_alone", "text_given", "latent_alone", "latent_given")
    }
    was_training = model.training
    model.eval()
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.training.dtype != "fp32")
    for start in range(0, len(split), size):
        rows = torch.arange(start, min(start + size, len(split)), device=device)
        batch = split.batch(rows)
        for mode in ("unconditional", "latent_to_text", "text_to_latent"):
            times = draw_times(mode, len(rows), device, generator)
            noised = add_noise(batch["tokens"], batch["latent"], *times, config.latent.prediction, generator)
            with autocast:
                logits_BTV, said_BZ = model(noised.tokens_BT, noised.latent_BZ, *times)
            if mode != "text_to_latent":
                words_BT = noised.hidden_BT & (word_weights(batch["tokens"], 0.0) > 0)
                loss = sg.numerics.masked_cross_entropy(logits_BTV, batch["tokens"], mask=words_BT, reduction="sum")
                sums["text_alone" if mode == "unconditional" else "text_given"] += torch.stack([loss, words_BT.sum()])
            if mode != "latent_to_text":
                loss = (said_BZ.float() - noised.latent_target_BZ).square().mean(1).sum()
                counted = torch.stack([loss, torch.full_like(loss, len(rows))])
                sums["latent_alone" if mode == "unconditional" else "latent_given"] += counted
    model.train(was_training)
    table = torch.stack(list(sums.values())).tolist()
    found = {name: total / max(count, 1.0) for name, (total, count) in zip(sums, table, strict=True)}
    found["text"] = (found["text_alone"] + found["text_given"]) / 2
    found["latent"] = (found["latent_alone"] + found["latent_given"]) / 2
    return found
