"""The workers of a data loader, or all batches, draw the same random augmentations.

What it sees
    The data set, or a transform of it, holds a random generator, the loader has several workers and no
    `worker_init_fn`, and two copies of the data set give the same sample although one copy asked twice does not. Or its
    `worker_init_fn` seeds a generator, does not use the number of the worker, and copies with that seed agree so. Or
    what the model is given is a sum of two tensors of the batch, of which one looks drawn and is the same, row for row,
    at four updates in a row, and the other does not and is not. Or batches come again in another epoch, bit for bit and
    in other memory, although a data set that keeps a generator gives other samples when it is asked twice.

Why it hurts
    Every worker, and every epoch, repeats the same draws: there is far less variety in the data than it seems.

Smallest example
    class Noisy(Dataset):
        def __init__(self): self.random = numpy.random.default_rng(0)
    # fixed
    DataLoader(Noisy(), num_workers=4, worker_init_fn=lambda worker: reseed(torch.initial_seed()))

What to do
    Seed the generator in `worker_init_fn` from `torch.initial_seed()`, or draw from torch's global generator. Make a
    generator once, not for every batch.

Safety
    It changes nothing. It is reported once in a run. The data set is asked for a sample three times, on copies. What is
    added to all rows alike, as codes of positions are, is not taken for noise.

References
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-data-loader-workers-return-identical-random-numbers
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule(
    "SY435", "worker_same_seed", "The workers of a data loader, or all batches, draw the same random augmentations."
)


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if record.same_draws:
        detail = f"the workers of a data loader draw the same random numbers: {record.same_draws}"
        fix = "seed the generator in worker_init_fn from torch.initial_seed(), which differs between workers and epochs"
    elif record.same_epochs:
        detail = f"every epoch has the same augmentations: {record.same_epochs}"
        fix = "seed the generator anew in every epoch and worker, in worker_init_fn from torch.initial_seed()"
    elif record.same_noise:
        detail, fix = (
            f"all batches have the same noise: {record.same_noise}",
            "seed the generator once, not for every batch",
        )
    else:
        return None
    return loop_finding(RULE, record, detail, fix=fix, phase="data")


def _record(same: str) -> LoopRecord:
    record = LoopRecord(same_draws=same)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("each of 4 workers has a copy of the generator dataset.random in the same state")


def NEAR_MISS() -> LoopRecord:
    return _record("")
