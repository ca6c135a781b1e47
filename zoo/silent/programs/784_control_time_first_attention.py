"""Healthy: tensors are (time, batch, channels), so the softmax over dimension 0 is over time; slots compete for positions elsewhere."""
import torch, torch.nn as nn, program
TRUTH = dict(id="784_control_time_first_attention", cause="none", knowable_at=-1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp, s.score, s.out = nn.Linear(5, 32), nn.Linear(32, 1), nn.Linear(32, 3)
    def forward(s, x):
        v = torch.tanh(s.inp(x)); w = torch.softmax(s.score(v), dim=0); return s.out((w * v).sum(0))
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(400):
    x = torch.randn(10, 32, 5); x[..., 4] = 0; at = torch.randint(0, 10, (32,)); x[at, torch.arange(32), 4] = 3.0
    y = x[at, torch.arange(32), :3].argmax(-1); loss = nn.functional.cross_entropy(m(x), y); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
