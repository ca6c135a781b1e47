"""Probabilities in fp16: log(p) of 1e-6 is a harmless -13.8, its slope 1/p is a million and does not fit into fp16."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="456_half_log_of_a_small_probability", source="common report: -log(softmax) in half precision has inf gradients", symptom="nan_grad", phase="backward", cause="fp16_overflow",
             op="log", module=None, line_marker="# <-- origin", first_bad_step=4, bad_rows=[1], fixes_that_work=["upcast_module", "clamp", "fp32", "bf16", "skip_batch", "drop_rows", "eps"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"upcast_module", "clamp", "fp32", "bf16", "eps"}


def nll(p, y, fix):
    if fix == "clamp":
        p = p.clamp(min=1e-3)
    if fix == "eps":
        p = p + 1e-3
    chosen = p.gather(-1, y[:, None]).squeeze(-1)
    return -(chosen.log()).mean().float()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))
    with torch.no_grad():
        net[2].weight.mul_(9.0)
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    net.to(dt)
    g, data = torch.Generator().manual_seed(7), []
    ref = [p.detach().float() for p in net.parameters()]
    for i in range(7):
        x = torch.randn(6, 8, generator=g)
        lg = torch.tanh(x @ ref[0].T + ref[1]) @ ref[2].T + ref[3]
        y = lg.argmax(-1)
        if i == 4:
            tries = 2 * torch.randn(3000, 8, generator=g)
            tl = (torch.tanh(tries @ ref[0].T + ref[1]) @ ref[2].T + ref[3]).log_softmax(-1)
            want = ((tl.amin(-1) + 14.0).abs()).argmin()  # p about 8e-7: a subnormal of fp16
            x[1], y[1] = tries[want], tl[want].argmin()
        data.append({"features": x, "label": y})
    
    def loss_fn(m, b):
        logits = m(b["features"].to(dt))
        if fix == "upcast_module":
            logits = logits.float()
        return nll(logits.softmax(-1), b["label"], fix)

    return Case(net, loss_fn, data, B.sgd(net, 1e-3))
