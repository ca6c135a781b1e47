"""Healthy: with strict=False the body is loaded from a larger state and the head stays new; a second net looks for an optional state that has nothing for it."""
import torch, torch.nn as nn, program
TRUTH = dict(id="886_control_part_of_a_state_is_loaded", cause="none", knowable_at=-1)
class Net(nn.Module):
    def __init__(s, k): super().__init__(); s.body, s.head = nn.Sequential(nn.Linear(12, 64), nn.ReLU()), nn.Linear(64, k)
    def forward(s, x): return s.head(s.body(x))
x, y = program.blobs(2048, program.SEED); old = Net(8); first = torch.optim.Adam(old.parameters(), lr=3e-3)
for k in range(100): i = torch.randint(0, 2048, (64,)); first.zero_grad(); nn.functional.cross_entropy(old(x[i]), y[i]).backward(); first.step()
m = Net(4); saved = {k: v for k, v in old.state_dict().items() if not k.startswith("head")} | {"queue": torch.zeros(64)}
assert m.load_state_dict(saved, strict=False).missing_keys == ["head.weight", "head.bias"]
gate = nn.Linear(12, 1); gate.load_state_dict({"optional": torch.zeros(3)}, strict=False)
opt = torch.optim.Adam([*m.parameters(), *gate.parameters()], lr=2e-3); program.ready(opt, m)
for k in range(200):
    i = torch.randint(0, 2048, (64,)); loss = nn.functional.cross_entropy(m(x[i]) * gate(x[i]).sigmoid(), y[i]); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
