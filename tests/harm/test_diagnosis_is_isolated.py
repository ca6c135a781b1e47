"""A diagnosis never ends, stalls or fails the process, and what it cannot say it does not claim."""

from __future__ import annotations

from pathlib import Path

import pytest
from harm_runs import alone, under_steady_run

# -- tensors that cannot be described

ODD_IN_GUARD = {
    "the second derivative of abs": """
def loss_fn(m, b):
    x, y = b; l = F.l1_loss(m(x), y); ps = list(m.parameters())
    g = torch.autograd.grad(l, ps, create_graph=True)
    h = torch.autograd.grad(sum(a.sum() for a in g), ps, create_graph=True)
    return l + 1e-3 * sum((t * t).sum() for t in h)
""",
    "complex numbers": """
def loss_fn(m, b):
    x, y = b; z = torch.fft.fft(m(x).squeeze(1)); return (z * z.conj()).real.mean() + F.mse_loss(m(x), y)
""",
    "nested tensors": """
def loss_fn(m, b):
    x, y = b
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = torch.nested.as_nested_tensor([m(x[:3]), m(x[3:])])
    return torch.cat(list(parts.unbind())).sub(y).pow(2).mean()
""",
    "quantised tensors": """
def loss_fn(m, b):
    x, y = b; q = torch.quantize_per_tensor(torch.nan_to_num(x), 0.1, 0, torch.qint8)
    return F.mse_loss(m(x + 0 * q.dequantize()), y)
""",
    "forward derivatives": """
def loss_fn(m, b):
    x, y = b; out, tangent = torch.func.jvp(lambda v: m(v), (x,), (torch.ones_like(x),))
    return F.mse_loss(out, y) + 1e-3 * tangent.pow(2).mean()
""",
}
GUARDED = """
import warnings, torch, torch.nn.functional as F, steadygrad as sg
torch.set_num_threads(1); torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
o = torch.optim.SGD(m.parameters(), lr=1e-3)
{loss}
d = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(10)]; d[5][0][2, 1] = float("nan")
with sg.Guard(m, o, loss_fn) as g:
    for b in d: g.step(b)
assert g.summary()["skipped"] == 1, g.summary()
assert all(torch.isfinite(p).all() for p in m.parameters())
print("DONE")
"""


@pytest.mark.parametrize("kind", ODD_IN_GUARD)
def test_a_diagnosis_survives_tensors_that_it_cannot_describe(kind: str, tmp_path: Path) -> None:
    ended = alone(GUARDED.replace("{loss}", ODD_IN_GUARD[kind]), tmp_path)
    assert ended.code == 0, ended.stderr[-800:]
    assert "DONE" in ended.stdout


ODD_UNDER_RUN = {
    "a sparse embedding and two optimizers": """
e = nn.Embedding(20, 4, sparse=True); m = nn.Linear(4, 1)
opts = [torch.optim.SparseAdam(e.parameters(), 1e-2), torch.optim.Adam(m.parameters(), 1e-2)]
def loss_at(k):
    y = torch.randn(8, 1)
    if k == 5: y[2] = float("nan")
    return ((m(e(torch.arange(8) + k % 12)) - y) ** 2).mean()
""",
    "a CSR adjacency": """
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    A = torch.eye(10).to_sparse_csr()
e, m = nn.Linear(1, 1), nn.Linear(4, 3); X = torch.randn(10, 4); t = torch.arange(10) % 3
opts = [torch.optim.Adam(m.parameters(), 1e-2)]
def loss_at(k):
    loss = nn.functional.cross_entropy(torch.sparse.mm(A, m(X)), t, reduction="none")
    return (loss / torch.zeros(10) if k == 5 else loss).mean()
""",
    "a COO adjacency built at each step": """
e, m = nn.Linear(1, 1), nn.Linear(4, 3); X = torch.randn(10, 4); t = torch.arange(10) % 3
opts = [torch.optim.SGD(m.parameters(), 1e-2)]
def loss_at(k):
    i = torch.randint(0, 10, (2, 30)); A = torch.sparse_coo_tensor(i, torch.ones(30), (10, 10)).coalesce()
    h = torch.sparse.mm(A, m(X)); return nn.functional.cross_entropy(h / (0.0 if k == 5 else 1.0), t)
""",
}
UNDER_RUN = """
import torch, warnings
from torch import nn
torch.manual_seed(0)
{body}
for k in range(12):
    loss = loss_at(k)
    for o in opts: o.zero_grad()
    loss.backward()
    for o in opts: o.step()
assert all(torch.isfinite(p).all() for p in [*e.parameters(), *m.parameters()])
print("DONE")
"""


@pytest.mark.parametrize("kind", ODD_UNDER_RUN)
def test_sparse_tensors_never_raise_out_of_the_users_backward(kind: str, tmp_path: Path) -> None:
    ours = under_steady_run(UNDER_RUN.replace("{body}", ODD_UNDER_RUN[kind]), tmp_path)
    ours.check_unhurt()
    assert "DONE" in ours.stdout
    assert ours.incidents


# -- loops that skip by themselves

SKIPPING = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
X = torch.randn(320, 8); Y = X.sum(1, keepdim=True); X[{first}, 2] = X[{second}, 3] = float("nan")
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
m = torch.nn.Linear(8, 1); o = torch.optim.AdamW(m.parameters(), lr=1e-2)
for step, (x, y) in enumerate(dl):
    loss = (m(x) - y).pow(2).mean()
{body}
"""
SKIPS = {
    "a loss that is not finite is passed over": """
    if not torch.isfinite(loss): continue
    o.zero_grad(); loss.backward(); o.step()
""",
    "a norm that is not finite zeroes the gradients": """
    o.zero_grad(); loss.backward(); n = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    if torch.isnan(n) or torch.isinf(n): o.zero_grad(set_to_none=True); continue
    o.step()
""",
    "gradients are scrubbed with nan_to_num": """
    o.zero_grad(); loss.backward()
    for p in m.parameters(): torch.nan_to_num_(p.grad, 0.0, 0.0, 0.0)
    o.step()
""",
}


@pytest.mark.parametrize("kind", SKIPS)
def test_a_loop_that_handles_bad_batches_itself_has_them_reported_with_the_sample(kind: str, tmp_path: Path) -> None:
    ours = under_steady_run(SKIPPING.format(first=83, second=211, body=SKIPS[kind]), tmp_path)
    ours.check_unhurt()
    assert ours.incidents
    assert "83" in "".join(str(incident.diagnosis or incident) for incident in ours.incidents)
    assert "all applied" not in ours.said
    assert "all fit to land" not in ours.said


# -- where the loss is kept

KEPT = {
    "in an attribute of the trainer": "logits, self.loss = model(x, y)\n            loss = self.loss",
    "in a dictionary": "out = {}; logits, out['loss'] = model(x, y)\n            loss = out['loss']",
    "in an element of a list": "got = [None, None]; got[0], got[1] = model(x, y)\n            loss = got[1]",
    "by a starred name": "logits, *rest = model(x, y)\n            loss = rest[0]",
}
KEEPING = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 1)
    def forward(s, x, y):
        o = s.f(x); return o, ((o - y) ** 2).mean()
class Trainer:
    def run(self):
        torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for i in range(10):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            if i == 5: x[3, 2] = float("nan")
            {kept}
            model.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
Trainer().run()
"""


@pytest.mark.parametrize("kind", [k if not place else pytest.param(k, marks=pytest.mark.slow)
                                  for place, k in zip((0, 0, 1, 1), KEPT, strict=True)])  # fmt: skip
def test_a_loss_is_diagnosed_wherever_the_loop_keeps_it(kind: str, tmp_path: Path) -> None:
    ours = under_steady_run(KEEPING.replace("{kept}", KEPT[kind]), tmp_path)
    ours.check_unhurt()
    (incident,) = ours.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.code == "DX401"
    assert incident.diagnosis.rows == (3,)


# -- Accelerate, with a loss that the loop changes

ACCELERATED = """
import torch
from torch.utils.data import DataLoader
from accelerate import Accelerator
acc = Accelerator(cpu=True{accumulate}); torch.manual_seed(0)
class Out(dict):
    loss = property(lambda s: s["loss"])
class Net(torch.nn.Module):
    def __init__(s): super().__init__(); s.f = torch.nn.Linear(8, 1)
    def forward(s, x, labels): o = s.f(x); return Out(loss=((o - labels) ** 2).mean(), logits=o)
data = [dict(x=torch.randn(8), labels=torch.randn(1)) for _ in range(96)]; data[77]["labels"][0] = float("inf")
m = Net(); opt = torch.optim.AdamW(m.parameters(), 1e-3); dl = DataLoader(data, shuffle=False, batch_size=8)
m, opt, dl = acc.prepare(m, opt, dl); m.train()
for step, batch in enumerate(dl):
    with acc.accumulate(m):
        loss = m(**batch).loss{change}
        acc.backward(loss); opt.step(); opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("change", "accumulate"),
    [
        (" / 1", ""),
        (" * 0.5 + 0.0", ""),
        pytest.param(" / 4", "", marks=pytest.mark.slow),
        pytest.param(" / 2", ", gradient_accumulation_steps=2", marks=pytest.mark.slow),
    ],
)
def test_the_sample_is_named_though_the_loop_changes_the_loss(change: str, accumulate: str, tmp_path: Path) -> None:
    ours = under_steady_run(ACCELERATED.format(change=change, accumulate=accumulate), tmp_path)
    ours.check_unhurt()
    (incident,) = ours.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.cause.code == "DX401"
    assert any("77" in sample for sample in incident.diagnosis.sample_ids)
