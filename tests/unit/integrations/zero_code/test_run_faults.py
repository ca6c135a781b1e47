"""Under `steady run`: a flipped bit leaves no trace, and what a program writes into its weights is never undone."""

from __future__ import annotations

from pathlib import Path

from plain_and_guarded import both

ENGINE = Path(__file__).parents[2] / "engine"
TRAIN = """
import hashlib, json
import torch
from program_writes import WRITES, Average, batches, bits, loss_fn, make, write

def train(before, kind="adam"):
    model, optimizer = make(kind)
    for step, batch in enumerate(batches()):
        before(model, optimizer, step)
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    return hashlib.sha256(b"".join(bits(model, optimizer))).hexdigest()
"""
WRITING = """
ends = {}
for name in WRITES:
    average = Average()
    ends[name] = train(lambda model, optimizer, step: write(name, model, optimizer, average, step))
print(json.dumps(ends))
"""
FLIPPING = """
def flips(target, mask, run):
    def before(model, optimizer, step):
        if step == 12:
            name, _, moment = target.partition(":")
            tensor = dict(model.named_parameters())[name]
            flat = (optimizer.state[tensor][moment] if moment else tensor).data.view(-1).view(torch.int32)
            flat[32:32 + run] ^= mask
    return before

print(json.dumps([train(lambda *_: None)] + [
    train(flips(target, mask, run))
    for target in ("body.weight", "embed.weight", "body.weight:exp_avg", "head.weight:exp_avg_sq")
    for mask, run in ((1 << 29, 1), (1 << 25, 32), (0x0A100401, 1))
]))
"""


def files() -> dict[str, str]:
    return {"program_writes.py": (ENGINE / "program_writes.py").read_text()}


def test_what_a_program_writes_into_its_weights_and_moments_stays(tmp_path: Path) -> None:
    ends = both(TRAIN + WRITING, tmp_path, files=files())
    alone, guarded = ends.told()
    assert {name for name in alone if alone[name] != guarded[name]} == set()
    assert ends.summary["incidents"] == []


def test_flipped_bits_leave_no_trace(tmp_path: Path) -> None:
    ends = both(TRAIN + FLIPPING, tmp_path, files=files())
    alone, guarded = ends.told()
    assert len(set(alone)) == len(alone), "each flip changes a run that is alone"
    assert set(guarded) == {alone[0]}
    assert len(ends.summary["incidents"]) == 12
