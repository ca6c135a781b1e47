"""PolynomialLR(total_iters=len(loader)) and six epochs: the rate is 0 after the first epoch. Five epochs change nothing."""
import torch
from torch.utils.data import DataLoader, TensorDataset
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="504_schedule_knows_one_epoch_only", source="constructed; neighbour: https://github.com/huggingface/transformers/pull/27667", symptom="silent", phase="loop",
             cause="lr_zero", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=20, knowable_at=20, lr_zero_from=20,
             static_visible=dict(source="yes: total_iters without the number of epochs", objects="yes: scheduler.total_iters 20, run 120"),
             named=dict(kind="never_moves_from", step=20, names=["fc1.weight", "head.weight"]),
             quality_limit=0.62, margin=1.4, fixes_that_work=["times_epochs"], fixes_that_do_not=["clip", "longer"])
FIXES = {"times_epochs"}
EPOCHS = 6


def signal(case, i, r):
    return bool(r) and r.stepped and max(r.lrs) == 0.0 and i < len(case.batches) - 1


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, pool, test = S.Classifier(), S.cat(S.classes(20)), S.cat(S.classes(16, seed=99))
    loader = DataLoader(TensorDataset(pool["x"], pool["y"]), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    opt = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9)
    total = len(loader) * (EPOCHS if fix else 1)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=total, power=1.0)  # <-- origin
    batches = [{"x": x, "y": y} for _ in range(EPOCHS) for x, y in loader]
    return SCase(m, S.ce, batches, opt, scheduler=sched, quality=lambda c: S.heldout_ce(m, test))
