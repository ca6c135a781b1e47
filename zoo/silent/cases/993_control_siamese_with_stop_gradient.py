"""CONTROL: SimSiam: the target branch is detached, the loss is negative and goes towards -1, projector with batch norm, predictor on one branch. Different inputs stay apart."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="993_control_siamese_with_stop_gradient", source="standard practice", looks_like=["detached_graph", "representation_collapse", "reference_aliased"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.35)


class SimSiam(nn.Module):
    def __init__(s, d=12, h=32):
        super().__init__()
        s.encoder = nn.Sequential(nn.Linear(d, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, h), nn.BatchNorm1d(h, affine=False))
        s.predictor = nn.Sequential(nn.Linear(h, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, h))

    def forward(s, x):
        return s.encoder(x)


def loss_fn(m, b):
    za, zb = m(b["a"]), m(b["b"])
    return -0.5 * (F.cosine_similarity(m.predictor(za), zb.detach()).mean() + F.cosine_similarity(m.predictor(zb), za.detach()).mean())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = SimSiam(), torch.Generator().manual_seed(2)
    data = [{k: b["x"] + 0.3 * torch.randn(b["x"].shape, generator=g) for k in "ab"} for b in S.classes(150, bs=32, sep=2.0)]
    bank, test = S.cat(S.classes(12, seed=7, sep=2.0)), S.cat(S.classes(12, seed=99, sep=2.0))

    def quality(c):                                # five nearest neighbours, error
        def f():
            a, b = F.normalize(m(test["x"]), dim=-1), F.normalize(m(bank["x"]), dim=-1)
            votes = bank["y"][(a @ b.T).topk(5, -1).indices]
            return (votes.mode(-1).values != test["y"]).float().mean()
        return S.in_eval(m, f)

    return SCase(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4), quality=quality)
