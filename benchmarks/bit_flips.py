"""Flipped bits in weights, moments and gradients: what they cost a plain run, and how many a guarded run undoes.

    python -m benchmarks.bit_flips --flips 500 --out benchmarks/results        # about ten minutes
    python -m benchmarks.bit_flips --flips 150 --device cuda --modes guard

Three small models (an MLP under SGD with momentum, a transformer under AdamW with clipping, a convolutional net with
batch norm under Adam) are trained with one flip each, at a random step, in a random tensor or (every other flip) at a
random place of the memory: of a weight, a moment or a gradient, of any bit of the word, of several bits, or of one
bit in 32 neighbouring values. Only flips that leave the value finite count. A flip is costly where the plain run's
final loss is more than 1 % above that of the run without it; it is undone where the guarded run's final loss is not.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.testing.fault_kinds import Flip, flip_bits

STEPS, COSTLY = 120, 0.01
DEVICE = "cpu"
KINDS = ("weight", "moment", "gradient")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, words: int = 32, width: int = 32) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(words, width), Block(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.block(self.embed(tokens)))
        return answer


def _classes(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _next_word(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


@dataclass
class Workload:
    """A model, its data and its loop."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, Any], Tensor]
    batches: list[Any]
    held_out: Any
    clip: float | None = None

    def final(self) -> float:
        self.model.eval()
        with torch.no_grad():
            value = float(self.loss(self.model, self.held_out))
        self.model.train()
        return value if value == value else float("inf")


def mlp() -> Workload:
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6))
    x = torch.randn(STEPS * 32 + 1024, 20)
    y = (torch.tanh(x @ torch.randn(20, 16)) @ torch.randn(16, 6)).argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Workload(model, optimizer, _classes, *_split(x, y))


def transformer() -> Workload:
    model = Transformer()
    table = torch.randn(32, 32).mul(2).softmax(-1)
    tokens = torch.randint(32, (STEPS * 8 + 256, 1))
    for _ in range(16):
        tokens = torch.cat([tokens, torch.multinomial(table[tokens[:, -1]], 1)], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    batches = [(tokens[256 + 8 * i : 264 + 8 * i],) for i in range(STEPS)]
    return Workload(model, optimizer, _next_word, batches, (tokens[:256],), clip=1.0)


def convolutions() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip
    y = torch.randint(5, (STEPS * 16 + 512,))
    x = torch.randn(5, 1, 11, 11)[y] * 0.6 + torch.randn(len(y), 1, 11, 11)
    return Workload(model, torch.optim.Adam(model.parameters(), lr=1e-3), _classes, *_split(x, y, 16, 512))


def _split(x: Tensor, y: Tensor, size: int = 32, held_out: int = 1024) -> tuple[list[Any], Any]:
    batches = [(x[held_out + i * size :][:size], y[held_out + i * size :][:size]) for i in range(STEPS)]
    return batches, (x[:held_out], y[:held_out])


MODELS = {"mlp": mlp, "transformer": transformer, "convolutions": convolutions}


def make(name: str) -> Workload:
    torch.manual_seed(0)
    work = MODELS[name]()
    if DEVICE != "cpu":  # with a fused optimizer, so that steps are judged late
        work.model.to(DEVICE)
        kind, options = type(work.optimizer), {**work.optimizer.defaults, "fused": True, "foreach": False}
        work.optimizer = kind(work.model.parameters(), **options)
        work.batches = [tuple(part.to(DEVICE) for part in batch) for batch in work.batches]
        work.held_out = tuple(part.to(DEVICE) for part in work.held_out)
    return work


@dataclass(frozen=True)
class Case:
    """One flip of one run: where, when and which bits."""

    model: str
    kind: str
    step: int
    tensor: int
    flip: Flip
    by_size: bool


def cases(count: int, seed: int) -> Iterator[Case]:
    """Flips of all sizes, models and kinds alike."""
    draw = Random(seed)
    for number in range(count):
        kind = KINDS[number // len(MODELS) % len(KINDS)]
        pattern = draw.choice(("bit", "bits", "run"))
        mask = 1 << (draw.randrange(32) if draw.random() < 0.5 else draw.randrange(22, 32))
        if pattern == "bits":
            for _ in range(draw.randrange(1, 8)):
                mask |= 1 << draw.randrange(32)
        flip = Flip(place=draw.randrange(1 << 30), mask=mask, run=32 if pattern == "run" else 1)
        model, step = list(MODELS)[number % len(MODELS)], draw.randrange(20, STEPS - 20)
        yield Case(model, kind, step, draw.randrange(1 << 30), flip, by_size=bool(number % 2))


def strike(work: Workload, case: Case) -> None:
    """Make the flip; if a value would not be finite, another one is drawn until all are."""
    draw = Random(case.flip.place)
    parameters = list(work.model.parameters())
    parameter = parameters[case.tensor % len(parameters)]
    if case.by_size:
        parameter = draw.choices(parameters, [each.numel() for each in parameters])[0]
    if case.kind == "gradient":
        _strike_gradient(parameter, case.flip, draw)
        return
    target: Tensor = parameter
    if case.kind == "moment":
        moments = [v for v in work.optimizer.state[parameter].values() if isinstance(v, Tensor) and v.dim()]
        target = moments[case.tensor // len(parameters) % len(moments)]
    _finite_flip(target, case.flip, draw)


def _finite_flip(target: Tensor, flip: Flip, draw: Random) -> None:
    kept = target.detach().clone()
    for _ in range(100):
        flip_bits(target, flip)
        if bool(torch.isfinite(target).all()):
            return
        target.data.copy_(kept)
        flip = Flip(place=draw.randrange(1 << 30), mask=1 << draw.randrange(31), run=flip.run)


def _strike_gradient(parameter: Tensor, flip: Flip, draw: Random) -> None:
    def hook(gradient: Tensor) -> Tensor:
        from steadygrad.records.rerun_flag import rerunning

        if rerunning():
            return gradient
        handle.remove()
        gradient = gradient.clone()
        _finite_flip(gradient, flip, draw)
        return gradient

    handle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]


def train(
    case: Case | None, name: str, mode: str, writes: Callable[[Workload], None] | None = None
) -> tuple[float, Any]:
    """The final loss of one run, and its guard. `writes` is what the program itself does between steps."""
    work = make(name)
    guard: Any = None
    if mode == "guard":
        guard = sg.Guard(work.model, work.optimizer, work.loss, max_grad_norm=work.clip, diagnose="off")
    elif mode == "attach":
        guard = sg.attach(work.optimizer, model=work.model)
    for step, batch in enumerate(work.batches):
        if case is not None and step == case.step:
            strike(work, case)
        if writes is not None and step % 7 == 6:
            writes(work)
        if mode == "guard":
            guard.step(batch)
        else:
            plain_step(work, batch)
    if guard is not None:
        guard.settle()
    final = work.final()
    if guard is not None:
        guard.close()
    return final, guard


def plain_step(work: Workload, batch: Any) -> None:
    work.optimizer.zero_grad()
    work.loss(work.model, batch).backward()
    if work.clip is not None:
        nn.utils.clip_grad_norm_(work.model.parameters(), work.clip)
    work.optimizer.step()


def _each(change: Callable[[Tensor], Any]) -> Callable[[Workload], None]:
    def write(work: Workload) -> None:
        for parameter in work.model.parameters():
            change(parameter.data)

    return write


def _load(work: Workload) -> None:
    work.model.load_state_dict({name: value.clone() for name, value in work.model.state_dict().items()})


HEALTHY: dict[str, Callable[[Workload], None]] = {
    "clamped": _each(lambda p: p.clamp_(-1.0, 1.0)),
    "decayed": _each(lambda p: p.mul_(0.999)),
    "pruned": _each(lambda p: p.mul_(p.abs() > 1e-3)),
    "rounded to bfloat16": _each(lambda p: p.copy_(p.bfloat16().float())),
    "first row zeroed": _each(lambda p: p[0].zero_() if p.dim() > 1 else None),
    "first row drawn anew": _each(lambda p: p[0].normal_(0, 0.1) if p.dim() > 1 else None),
    "one element set": _each(lambda p: p.view(-1)[:1].fill_(0.25)),
    "a small tensor halved": _each(lambda p: p.mul_(0.5) if p.numel() <= 16 else None),
    "noise added": _each(lambda p: p.add_(torch.randn_like(p), alpha=1e-3)),
    "loaded": _load,
}


def healthy_writes(mode: str) -> tuple[int, int]:
    """How many runs of programs that write their own weights were touched, and of how many."""
    touched = 0
    for name in MODELS:
        for writes in HEALTHY.values():
            alone, _ = train(None, name, "plain", writes)
            end, guard = train(None, name, mode, writes)
            touched += end != alone or bool(guard.incidents)
    return touched, len(MODELS) * len(HEALTHY)


def cost(name: str, rounds: int = 30, steps: int = 12) -> dict[str, float]:
    """Processor time of a step beside the plain loop's, in turns: guarded without the comparison, and with it."""
    loops: dict[str, tuple[Workload, Any]] = {"plain": (make(name), None)}
    for key in ("guard without", "guard"):
        work = make(name)
        loops[key] = work, sg.Guard(work.model, work.optimizer, work.loss, max_grad_norm=work.clip, diagnose="off")
    times: dict[str, list[float]] = {key: [] for key in loops}
    for number in range(rounds):
        for key, (work, guard) in loops.items():
            started = time.process_time()
            for batch in work.batches[number % 5 * steps :][:steps]:
                if guard is None:
                    plain_step(work, batch)
                else:
                    guard.step(batch)
                    if key == "guard without":
                        guard._loop.update_check.shadow = None
            times[key].append((time.process_time() - started) / steps)
    ratios = {key: median(b / a for a, b in zip(times["plain"], taken, strict=True)) for key, taken in times.items()}
    for _, guard in loops.values():
        if guard is not None:
            guard.close()
    return {**ratios, "plain step in ms": 1e3 * median(times["plain"])}


def measure(count: int, mode: str, seed: int) -> list[dict[str, Any]]:
    base = {name: train(None, name, "plain")[0] for name in MODELS}
    rows = []
    for case in cases(count, seed):
        lost = train(case, case.model, "plain")[0] / base[case.model] - 1
        final, guard = train(case, case.model, mode)
        left = final / base[case.model] - 1
        rows.append({"model": case.model, "kind": case.kind, "run": case.flip.run, "mask": case.flip.mask,
                     "plain": lost, "guarded": left, "reported": len(guard.incidents)})  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]], mode: str) -> list[str]:
    lines = ["", f"## {mode}", "", "| flips in | runs | cost a plain run more than 1 % | of those undone | share |",
             "|---|---|---|---|---|"]  # fmt: skip
    for kind in (*KINDS, "all"):
        mine = [row for row in rows if kind in (row["kind"], "all")]
        costly = [row for row in mine if not row["plain"] <= COSTLY]
        undone = sum(row["guarded"] <= COSTLY for row in costly)
        share = f"{undone / len(costly):.1%}" if costly else "-"
        lines.append(f"| {kind} | {len(mine)} | {len(costly)} | {undone} | {share} |")
    worse = sum(row["plain"] <= COSTLY < row["guarded"] for row in rows)
    return [*lines, "", f"Runs that cost a plain run less than 1 % and a guarded one more: {worse} of {len(rows)}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--modes", nargs="*", default=["guard", "attach"])
    parser.add_argument("--device", default="cpu", help="cuda: steps are judged late; the cost is not measured")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    global DEVICE
    DEVICE = chosen.device
    if DEVICE != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    path = chosen.out / ("bit-flips.md" if DEVICE == "cpu" else f"bit-flips-{DEVICE}.md")
    lines = ["# Flipped bits, plain and guarded", "", (__doc__ or "").split("\n\n")[2].replace("\n", " ")]
    for mode in chosen.modes:
        rows = measure(chosen.flips, mode, chosen.seed)
        touched, runs = healthy_writes(mode)
        lines += table(rows, "sg.Guard" if mode == "guard" else "sg.attach(optimizer)")
        lines.append(f"Runs of programs that write their own weights: {touched} of {runs} touched.")
        path.write_text("\n".join(lines) + "\n")
    if DEVICE != "cpu":
        print("\n".join(lines))
        return
    lines += ["", "## Cost on a CPU", "", "Processor time of a step beside the plain loop's, median over rounds.", "",
              "| model | plain step | sg.Guard without the comparison | with it |", "|---|---|---|---|"]  # fmt: skip
    for name in MODELS:
        found = cost(name)
        lines.append(
            f"| {name} | {found['plain step in ms']:.2f} ms | x{found['guard without']:.3f} | x{found['guard']:.3f} |"
        )
    lines += ["", "The cost on a GPU is part of `python -m benchmarks.overhead`."]
    path.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
