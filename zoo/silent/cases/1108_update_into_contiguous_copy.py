"""Denoising autoencoder. A home-made SGD works on p.data.contiguous().view(-1). The encoder was initialised as the transpose of the decoder, so it is not contiguous: the update goes into
a copy and the encoder never changes. The decoder learns, the loss falls."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1108_update_into_contiguous_copy", source="constructed after the known story of an in-place kernel on a non-contiguous encoder weight (encoder = decoder.T)", symptom="silent", phase="optimizer",
             cause="update_lost_in_copy", op="contiguous", module="enc", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["enc.weight"],
             static_visible=dict(source="yes: in-place write into the result of contiguous()", objects="yes: the parameter is not contiguous"),
             named=dict(kind="never_moves", names=["enc.weight"]),
             quality_limit=0.25, margin=1.5, fixes_that_work=["contiguous_init", "in_place"], fixes_that_do_not=["lr_up", "longer"])
FIXES = {"contiguous_init", "in_place"}


class FlatSGD(torch.optim.Optimizer):
    def __init__(s, params, lr, momentum=0.9, in_place=False):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        s.in_place = in_place

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = s.state[p]
                buf = st.setdefault("momentum_buffer", torch.zeros(p.numel()))
                buf.mul_(g["momentum"]).add_(p.grad.reshape(-1))
                if s.in_place:
                    p.add_(buf.view(p.shape), alpha=-g["lr"])
                else:
                    p.data.contiguous().view(-1).add_(buf, alpha=-g["lr"])  # <-- origin


class AutoEncoder(nn.Module):
    def __init__(s, d=16, h=4):
        super().__init__()
        s.enc, s.dec = nn.Linear(d, h, bias=False), nn.Linear(h, d)

    def forward(s, x):
        return s.dec(s.enc(x))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["clean"])


def signal(case, i, r):
    """a parameter with a gradient does not move in an optimizer step"""
    return bool(r) and r.stepped and any(r.grads[n] and not v for n, v in r.moved.items())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = AutoEncoder(), torch.Generator().manual_seed(4)
    w = m.dec.weight.data.t()
    m.enc.weight = nn.Parameter(w.clone(memory_format=torch.contiguous_format) if fix == "contiguous_init" else w.clone())
    basis = torch.randn(4, 16, generator=g)
    data = []
    for _ in range(100):
        clean = torch.randn(16, 4, generator=g) @ basis * 0.5
        data.append({"x": clean + 0.7 * torch.randn(16, 16, generator=g), "clean": clean})
    test = S.cat(data[80:])

    def quality(c):
        with torch.no_grad():
            return float(loss_fn(m, test))

    return SCase(m, loss_fn, data[:80], FlatSGD(m.parameters(), lr=0.1, in_place=fix == "in_place"), quality=quality)
