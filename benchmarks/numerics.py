"""What the stable parts cost beside the plain torch they stand in for: time, memory, and the price of a bound.

    python -m benchmarks.numerics                          # sizes that fit this machine
    python -m benchmarks.numerics --only losses --markdown benchmarks/results/numerics-NAME.md

The two of a pair take turns within each round, so drift of the machine hits both alike; the figure is the median over
rounds of the one's time divided by the other's in the same round. On a CPU it is processor time of one thread, which a
busy machine changes less than the clock on the wall. Memory is the most that was allocated at once beyond the inputs.
"""

from __future__ import annotations

import argparse
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steadygrad import numerics as sgn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = DEVICE == "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same computation twice: plain torch, and ours. Each gives a scalar to be differentiated."""

    name: str
    leaves: tuple[Tensor, ...]
    plain: Callable[..., Tensor]
    ours: Callable[..., Tensor]


def hardware() -> str:
    if GPU:
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, one thread, torch {torch.__version__}"


def clock() -> float:
    if GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def run(pair: Pair, which: Callable[..., Tensor]) -> None:
    for leaf in pair.leaves:
        leaf.grad = None
    which(*pair.leaves).backward()


def peak_bytes(pair: Pair, which: Callable[..., Tensor]) -> int:
    """The most that was allocated at once during forward and backward, beyond what was there before."""
    for leaf in pair.leaves:
        leaf.grad = None
    if GPU:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(pair, which)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(pair, which)
    # torch has no peak counter for the CPU; the profiler's record of each allocation and release adds up to one.
    held, most = 0, 0
    memory = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(pair: Pair, rounds: int) -> dict[str, Any]:
    for which in (pair.plain, pair.ours):
        run(pair, which)
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for key, which in (("plain", pair.plain), ("ours", pair.ours)):
            start = clock()
            run(pair, which)
            times[key].append((clock() - start) * 1e3)
    ratios = [ours / plain for plain, ours in zip(times["plain"], times["ours"], strict=True)]
    return {
        "name": pair.name,
        "plain_ms": statistics.median(times["plain"]),
        "ours_ms": statistics.median(times["ours"]),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4) if len(ratios) > 3 else [min(ratios), 0.0, max(ratios)],
        "plain_mb": peak_bytes(pair, pair.plain) / 2**20,
        "ours_mb": peak_bytes(pair, pair.ours) / 2**20,
    }


# -- the pairs


def leaf(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype).requires_grad_()


def losses() -> Iterator[Pair]:
    tokens, vocabulary = (8192, 151_936) if GPU else (128, 49_152)
    half = torch.bfloat16
    labels = torch.randint(0, vocabulary, (tokens,), device=DEVICE)
    labels[torch.rand(tokens, device=DEVICE) < 0.3] = -100
    kept = labels != -100
    for dtype in (torch.float32, half):
        yield Pair(
            name=f"cross-entropy, {tokens} x {vocabulary} {str(dtype).removeprefix('torch.')}",
            leaves=(leaf(tokens, vocabulary, dtype=dtype, scale=3),),
            plain=lambda x: F.cross_entropy(x.float(), labels),
            ours=lambda x: sgn.masked_cross_entropy(x, labels),
        )
    yield Pair(
        name="z-loss, bfloat16",
        leaves=(leaf(tokens, vocabulary, dtype=half, scale=3),),
        plain=lambda x: x.float().logsumexp(-1).square().mean(),
        ours=sgn.z_loss,
    )
    temperature = 2.0

    def log_probabilities(x: Tensor) -> Tensor:
        return (x.float() / temperature).log_softmax(-1)

    def plain_forward(s: Tensor, t: Tensor) -> Tensor:
        divergence = F.kl_div(log_probabilities(s), log_probabilities(t), log_target=True, reduction="none")
        return divergence.sum(-1)[kept].mean() * temperature**2

    def plain_reverse(s: Tensor, t: Tensor) -> Tensor:
        divergence = F.kl_div(log_probabilities(t), log_probabilities(s), log_target=True, reduction="none")
        return divergence.sum(-1)[kept].mean() * temperature**2

    def plain_jsd(s: Tensor, t: Tensor) -> Tensor:
        log_q, log_p = log_probabilities(s), log_probabilities(t)
        log_m = torch.logaddexp(log_p, log_q) - torch.tensor(2.0).log()
        both = F.kl_div(log_m, log_p, log_target=True, reduction="none")
        both = both + F.kl_div(log_m, log_q, log_target=True, reduction="none")
        return both.sum(-1)[kept].mean() / 2 * temperature**2

    teacher = leaf(tokens, vocabulary, dtype=half, scale=3).detach()
    for kind, plain in (("forward", plain_forward), ("reverse", plain_reverse), ("jsd", plain_jsd)):
        yield Pair(
            name=f"distillation {kind}, bfloat16",
            leaves=(leaf(tokens, vocabulary, dtype=half, scale=3),),
            plain=lambda x, plain=plain: plain(x, teacher),
            ours=lambda x, kind=kind: sgn.distillation_loss(x, teacher, kind=kind, temperature=temperature, mask=kept),
        )


def smaller_losses() -> Iterator[Pair]:
    batch, width = (4096, 4096) if GPU else (512, 1024)
    target = leaf(batch, width).detach()
    yield Pair(
        name=f"normalised MSE, {batch} x {width}",
        leaves=(leaf(batch, width),),
        plain=lambda x: F.mse_loss(F.normalize(x, dim=-1), F.normalize(target, dim=-1)),
        ours=lambda x: sgn.normalised_mse(x, target),
    )
    yield Pair(
        name=f"cosine, {batch} x {width}",
        leaves=(leaf(batch, width),),
        plain=lambda x: (1 - F.cosine_similarity(x, target, dim=-1)).mean(),
        ours=lambda x: sgn.cosine_loss(x, target),
    )
    sequences, length = (512, 4096) if GPU else (64, 1024)
    old, reference = (-torch.rand(sequences, length, device=DEVICE) * 3 for _ in range(2))
    advantages = torch.randn(sequences, device=DEVICE)
    mask = torch.rand(sequences, length, device=DEVICE) > 0.2

    def plain_policy(x: Tensor) -> Tensor:
        ratio, gap = (x - old).exp(), reference - x
        each = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        each = each + 0.04 * (gap.exp() - gap - 1)
        return (each * mask).sum() / mask.sum()

    yield Pair(
        name=f"policy gradient with KL, {sequences} x {length}",
        leaves=((old + 0.1 * torch.randn_like(old)).requires_grad_(),),
        plain=plain_policy,
        ours=lambda x: sgn.policy_gradient_loss(x, old, advantages, mask=mask, ref_logp=reference, kl_weight=0.04).loss,
    )
    pictures = (256, 512, 512) if GPU else (8, 256, 256)
    wanted = torch.rand(*pictures, device=DEVICE) > 0.7

    def plain_masks(x: Tensor) -> Tensor:
        p, t = x.sigmoid(), wanted.float()
        dice = 1 - (2 * (p * t).sum((-2, -1)) + 1) / (p.sum((-2, -1)) + t.sum((-2, -1)) + 1)
        return dice.mean() + F.binary_cross_entropy_with_logits(x, t)

    yield Pair(
        name=f"Dice + BCE, {pictures[0]} x {pictures[1]} x {pictures[2]}",
        leaves=(leaf(*pictures),),
        plain=plain_masks,
        ours=lambda x: sgn.dice_loss(x, wanted) + sgn.mask_bce_loss(x, wanted),
    )


def bounds() -> Iterator[Pair]:
    """Each beside its own formula in plain torch, and beside the clamp that it stands in for."""
    shape = (4096, 49_152) if GPU else (128, 49_152)
    logits = leaf(*shape, dtype=torch.bfloat16, scale=10)

    def plain_bend(x: Tensor) -> Tensor:
        size = x.float().abs()
        bent = torch.where(size > 15, 30 - 225 / size.clamp(min=15), size)
        return (bent * x.sign()).to(x.dtype)

    def plain_cap(x: Tensor) -> Tensor:
        return ((x.float() / 30).tanh() * 30).to(x.dtype)

    for name, plain, ours in (
        ("soft bound", plain_bend, sgn.bound_logits),
        ("tanh cap", plain_cap, sgn.soft_cap_logits),
    ):
        for beside, other in (("its formula", plain), ("a clamp", lambda x: x.clamp(-30, 30))):
            yield Pair(
                name=f"{name} beside {beside}, {shape[0]} x {shape[1]} bfloat16",
                leaves=(logits,),
                plain=lambda x, other=other: other(x).sum(),
                ours=lambda x, ours=ours: ours(x).sum(),
            )


# -- inside generate


def generation(rounds: int, new_tokens: int) -> list[dict[str, Any]]:
    """A model of SmolLM2's vocabulary that samples, with and without the two processors."""
    from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList

    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30 if GPU else 8,
        num_attention_heads=9, num_key_value_heads=3, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(DEVICE).eval()
    ids = torch.randint(5, 49_000, (8, 16), device=DEVICE)
    spent: list[float] = []

    class Timed:
        """A processor that notes how long it takes."""

        def __init__(self, processor: Callable[[Tensor, Tensor], Tensor]) -> None:
            self.processor = processor

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            start = clock()
            made = self.processor(input_ids, scores)
            spent.append((clock() - start) * 1e3)
            return made

    processors = (
        sgn.NumericalStabilityLogitsProcessor(clip_value=30.0, min_prob=1e-8),
        sgn.TemperatureLogitsWarper(temperature=1.0, min_temperature=0.1),
    )
    ways = {
        "without": LogitsProcessorList(),
        "with": LogitsProcessorList(processors),
        "again": LogitsProcessorList(),
        "timed": LogitsProcessorList([Timed(processor) for processor in processors]),
    }

    def timed(key: str) -> float:
        torch.manual_seed(0)
        start = clock()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=new_tokens,
            logits_processor=ways[key],
        )  # fmt: skip
        return (clock() - start) / new_tokens * 1e3

    for key in ways:
        timed(key)
    spent.clear()
    times: dict[str, list[float]] = {key: [] for key in ways}
    for number in range(rounds):
        # The order is turned round each time: what comes second finds warmer caches.
        for key in list(ways) if number % 2 else list(ways)[::-1]:
            times[key].append(timed(key))

    def ratio(key: str) -> float:
        return statistics.median(one / other for one, other in zip(times[key], times["without"], strict=True))

    inside = sum(spent) / (rounds * new_tokens)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return [
        {
            "name": f"a token for 8 rows, {size:.0f}M parameters",
            "plain_ms": statistics.median(times["without"]),
            "ours_ms": statistics.median(times["with"]),
            "ratio": ratio("with"),
            "noise": ratio("again"),
            "inside_ms": inside,
            "inside": inside / statistics.median(times["timed"]),
        }
    ]


# -- what a bound costs in learning


def learning(steps: int = 400) -> list[dict[str, Any]]:
    """The same start and the same batches for each bound."""
    size = 256
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, size, generator=generator) * 20
    contexts = torch.randint(0, size, (steps, 512), generator=generator)
    noisy = torch.rand(steps, 512, generator=generator) < 0.1
    rule = (contexts * 5 + 3) % size
    labels = torch.where(noisy, torch.randint(0, size, (steps, 512), generator=generator), rule)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "no bound": lambda x: x,
        "clamp to 5": lambda x: sgn.bound_logits(x, 5.0, hard=True),
        "soft bound 5": lambda x: sgn.bound_logits(x, 5.0),
        "clamp to 30": lambda x: sgn.bound_logits(x, 30.0, hard=True),
        "soft bound 30": lambda x: sgn.bound_logits(x, 30.0),
        "tanh cap 30": lambda x: sgn.soft_cap_logits(x, 30.0),
    }
    rows = []
    for name, bound in ways.items():
        table = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([table], lr=0.3)
        still = 0.0
        for step in range(steps):
            loss = sgn.masked_cross_entropy(bound(table[contexts[step]]), labels[step])
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                used = torch.unique(contexts[0])
                still = float((table.grad[used] == 0).float().mean()) if table.grad is not None else 1.0
            optimizer.step()
        with torch.no_grad():
            made = bound(table)
            context = torch.arange(size)
            chance = made.log_softmax(-1)
            exact = 0.9 * chance[context, (context * 5 + 3) % size] + 0.1 * chance.mean(-1)
            rows.append({"name": name, "still": still, "loss": -float(exact.mean())})
    return rows


# -- showing it


def pair_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | plain ms | ours ms | time | quartiles | plain MB | ours MB | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory = row["ours_mb"] / row["plain_mb"] if row["plain_mb"] else float("nan")
        lines.append(
            f"| {row['name']} | {row['plain_ms']:.2f} | {row['ours_ms']:.2f} | x{row['ratio']:.2f} | "
            f"{row['quartiles'][0]:.2f} to {row['quartiles'][2]:.2f} | "
            f"{row['plain_mb']:.1f} | {row['ours_mb']:.1f} | x{memory:.2f} |"
        )
    return "\n".join(lines)


def generation_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | without ms | with ms | time | the same twice | inside the processors ms | share |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['name']} | {r['plain_ms']:.1f} | {r['ours_ms']:.1f} | x{r['ratio']:.3f} | x{r['noise']:.3f} | "
        f"{r['inside_ms']:.2f} | {r['inside']:.2%} |"
        for r in rows
    ]
    return "\n".join(lines)


def learning_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| bound | logits without a gradient in the first step | loss after 400 steps |", "|---|---|---|"]
    lines += [f"| {row['name']} | {row['still']:.1%} | {row['loss']:.3f} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=["losses", "bounds", "generation", "learning"])
    parser.add_argument("--rounds", type=int, default=20 if GPU else 7)
    parser.add_argument("--new-tokens", type=int, default=48 if GPU else 12)
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    logging.getLogger("steadygrad").setLevel(logging.ERROR)
    if not GPU:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = [f"# The stable parts beside plain torch\n\n{hardware()}, {arguments.rounds} rounds. {EXPLAINED}"]
    wanted = arguments.only or ["losses", "bounds", "generation", "learning"]
    for name, kinds in (("losses", (losses, smaller_losses)), ("bounds", (bounds,))):
        if name in wanted:
            rows = []
            for kind in kinds:
                for pair in kind():
                    rows.append(measure(pair, arguments.rounds))
                    print(pair_table(rows[-1:]).splitlines()[-1], flush=True)
            parts.append(f"## {name.capitalize()}\n\n{pair_table(rows)}")
    if "generation" in wanted:
        parts.append(f"## Generation\n\n{generation_table(generation(min(arguments.rounds, 8), arguments.new_tokens))}")
        print(parts[-1], flush=True)
    if "learning" in wanted:
        parts.append(f"## Learning under a bound\n\n{LEARNING}\n\n{learning_table(learning())}")
        print(parts[-1], flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


EXPLAINED = (
    "Forward and backward; medians of paired ratios; memory is the most that was allocated at once beyond the inputs."
)
LEARNING = (
    "A table of next-token logits that begins far too large (standard deviation 20) learns a rule over 256 tokens that "
    "holds nine times in ten. The least loss there is, the entropy of that source, is 0.876."
)

if __name__ == "__main__":
    main()
