"""The optimizer is built in configure(), then reset_classifier(5) puts a new head into the network. The backbone trains against a head that stays as it was drawn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="909_classifier_reset_after_optimizer", source="constructed", symptom="silent", phase="state", cause="optimizer_missing_params", op=None, module="classifier", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["classifier.weight", "classifier.bias"],
             static_visible=dict(source="yes: reset after the optimizer was built", objects="yes: classifier.* in no group, the group holds two tensors that are not in the model"),
             named=dict(kind="never_moves", names=["classifier.weight", "classifier.bias"]),
             quality_limit=0.0, fixes_that_work=["reset_first"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"reset_first"}


class ConvNet(nn.Module):
    def __init__(s, k):
        super().__init__()
        s.stem, s.body = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1, stride=2)
        s.norm, s.classifier = nn.GroupNorm(4, 16), nn.Linear(16, k)

    def reset_classifier(s, k):
        s.classifier = nn.Linear(s.classifier.in_features, k)

    def forward(s, x):
        return s.classifier(F.silu(s.norm(s.body(F.silu(s.stem(x))))).mean((2, 3)))


def images(n, seed, k=5, bs=16):
    base = torch.randn(k, 1, 8, 8, generator=torch.Generator().manual_seed(8))
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        y = torch.randint(0, k, (bs,), generator=g)
        out.append({"x": base[y] + 0.7 * torch.randn(bs, 1, 8, 8, generator=g), "y": y})
    return out


def signal(case, i, r):
    owned = {id(p) for g in case.optimizer.param_groups for p in g["params"]}
    return any(id(p) not in owned for p in case.model.parameters() if p.requires_grad)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = ConvNet(10)
    if fix:
        m.reset_classifier(5)
    opt = torch.optim.Adagrad(m.parameters(), lr=2e-2)
    if not fix:
        m.reset_classifier(5)  # <-- origin
    w0, test = {n: p.detach().clone() for n, p in m.named_parameters()}, S.cat(images(16, 1))

    def quality(c):                                # parameters that were meant to learn and are as they were drawn
        c.extra["heldout"] = S.heldout_ce(m, test)
        return float(sum(torch.equal(w0[n], p) for n, p in m.named_parameters()))

    return SCase(m, S.ce, images(120, 0), opt, quality=quality)
