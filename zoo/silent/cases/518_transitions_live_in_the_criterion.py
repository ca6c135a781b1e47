"""The tagger's transition scores belong to the criterion; configure_optimizers() takes encoder.parameters(). The scores get a gradient at every step
and stay zero; their gradient is never cleared either."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="518_transitions_live_in_the_criterion", source="constructed: parameters of a loss module forgotten in configure_optimizers", symptom="silent", phase="optimizer",
             cause="optimizer_missing_params", op=None, module="criterion", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["criterion.transition"],
             static_visible=dict(source="yes: encoder.parameters() while the criterion has parameters", objects="yes: criterion.transition is in no param group"),
             named=dict(kind="never_moves", names=["criterion.transition", "criterion.start"]),
             quality_limit=0.7, margin=1.4, fixes_that_work=["self_parameters"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"self_parameters"}
K = 5


class TransitionLoss(nn.Module):
    def __init__(s):
        super().__init__()
        s.transition, s.start = nn.Parameter(torch.zeros(K, K)), nn.Parameter(torch.zeros(K))

    def forward(s, z, y):
        prior = torch.cat([s.start.expand(len(y), 1, K), s.transition[y[:, :-1]]], 1)
        return F.cross_entropy((z + prior).flatten(0, 1), y.flatten())


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.criterion = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, K)), TransitionLoss()

    def training_step(s, b):
        return s.criterion(s.encoder(b["x"]), b["y"])

    def configure_optimizers(s, everything):
        return torch.optim.Adam(s.parameters() if everything else s.encoder.parameters(), lr=2e-2)  # <-- origin


def sentences(n, seed, bs=8, T=10):
    g, w = torch.Generator().manual_seed(seed), torch.randn(K, 6, generator=torch.Generator().manual_seed(8))
    out = []
    for _ in range(n):
        y = torch.randint(0, K, (bs, 1), generator=g)
        for _ in range(T - 1):
            go = torch.rand(bs, 1, generator=g) < 0.9
            y = torch.cat([y, torch.where(go, (y[:, -1:] + 2) % K, torch.randint(0, K, (bs, 1), generator=g))], 1)
        out.append({"x": 0.3 * w[y] + torch.randn(bs, T, 6, generator=g), "y": y})
    return out


def signal(case, i, r):
    held = {id(p) for g in case.optimizer.param_groups for p in g["params"]}
    return any(p.requires_grad and id(p) not in held for p in case.model.parameters())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Tagger(), S.cat(sentences(12, 77))
    return SCase(m, lambda m, b: m.training_step(b), sentences(100, 6), m.configure_optimizers(bool(fix)), quality=lambda c: S.in_eval(m, lambda: m.training_step(test)))
