"""Acoustic frames, padded with zeros to the longest clip of the batch; the inputs carry their last value on. The squared error is averaged over all
frames: nine in ten are padding and pull every prediction towards zero."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="527_frames_after_the_end_count_as_silence", source="constructed; neighbour: https://github.com/mlfoundations/open_clip/pull/316", symptom="silent", phase="loss", cause="padding_in_loss", op=None,
             module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: the mask is built and not used in the loss", objects="no: mask of the first batch says 90 percent padding"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["masked_mean"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"masked_mean"}


def clips(n, seed, bs=8, T=40):
    g, w = torch.Generator().manual_seed(seed), torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    out = []
    for _ in range(n):
        ln = torch.randint(2, 4, (bs,), generator=g)
        ln[0] = T if torch.rand((), generator=g) < 0.1 else 5
        x = torch.randn(bs, T, 6, generator=g)
        mask = torch.arange(T)[None] < ln[:, None]
        last = x[torch.arange(bs), ln - 1][:, None]
        x = torch.where(mask[..., None], x, last)
        out.append({"x": x, "mel": (torch.tanh(x @ w) + 2.0) * mask[..., None], "mask": mask})
    return out


def signal(case, i, r):
    return i >= 0 and not case.extra["masked"] and float(case.batches[i]["mask"].float().mean()) < 0.5


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), S.cat(clips(20, 88))

    def loss_fn(m, b):
        err = (m(b["x"]) - b["mel"]).pow(2).mean(-1)
        if fix:
            return (err * b["mask"]).sum() / b["mask"].sum()
        return err.mean()  # <-- origin

    def quality(c):                                # error on frames that exist
        e = lambda: (m(test["x"]) - test["mel"]).pow(2).mean(-1)[test["mask"]].mean()
        return S.in_eval(m, e)

    return SCase(m, loss_fn, clips(100, 5), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality, extra={"masked": bool(fix)})
