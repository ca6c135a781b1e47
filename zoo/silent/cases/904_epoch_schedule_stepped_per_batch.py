"""StepLR(step_size=3 epochs, gamma=0.1) is stepped after every batch (epochs have 10): after a dozen batches the rate is a ten-thousandth of what it was, nine tenths of the run are wasted."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="904_epoch_schedule_stepped_per_batch", source="constructed", symptom="silent", phase="loop", cause="lr_zero", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=3, knowable_at=11, static_visible=dict(source="yes: sched.step() in the batch loop, step_size given in epochs", objects="no"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["per_epoch"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"per_epoch"}
EPOCH, EPOCHS = 10, 12


class AutoEncoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.down = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ELU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ELU(), nn.Flatten(), nn.Linear(32, 6))
        s.up = nn.Sequential(nn.Linear(6, 32), nn.ELU(), nn.Unflatten(1, (8, 2, 2)), nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1), nn.ELU(), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1))

    def forward(s, x):
        return s.up(s.down(x))


def images(n, seed, bs=16):
    base = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(bs, 4, generator=g) @ base / 2).view(bs, 1, 8, 8) for _ in range(n)]


def loss_fn(m, x):
    return F.mse_loss(m(x), x)


def signal(case, i, r):
    """rate under a thousandth of its start and more than half of the run still to come"""
    lr = case.optimizer.param_groups[0]["lr"]
    return i < len(case.batches) // 2 and lr < 1e-3 * case.optimizer.param_groups[0]["initial_lr"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = AutoEncoder(), torch.cat(images(16, 1))
    opt = torch.optim.NAdam(m.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3, gamma=0.1)

    def step(case, x, i):
        opt.zero_grad()
        loss = loss_fn(m, x)
        loss.backward()
        opt.step()
        return loss

    def after(case, i):
        if not fix or (i + 1) % EPOCH == 0:
            sched.step()  # <-- origin

    return SCase(m, loss_fn, images(EPOCH, 0) * EPOCHS, opt, scheduler=sched, step=step, after_step=after, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
