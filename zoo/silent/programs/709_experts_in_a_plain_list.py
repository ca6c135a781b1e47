"""Hidden layers are kept in a Python list: model.parameters() does not know them, they stay as they were made."""
import torch, torch.nn as nn, program
TRUTH = dict(id="709_experts_in_a_plain_list", cause="parameter_not_in_optimizer", knowable_at=-1)
class Net(nn.Module):
    def __init__(s):
        super().__init__(); layers = [nn.Linear(2, 32)] + [nn.Linear(32, 32) for _ in range(3)]
        s.layers = nn.ModuleList(layers) if program.FIX else layers
        s.out = nn.Linear(32, 1)
    def forward(s, x):
        for l in s.layers: x = torch.relu(l(x))
        return s.out(x)
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
f = lambda x: torch.sin(4 * x[:, :1]) * torch.cos(3 * x[:, 1:])
for k in range(500):
    x = torch.rand(128, 2) * 2 - 1; loss = (m(x) - f(x)).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
x = torch.rand(1024, 2) * 2 - 1
with torch.no_grad(): program.metric((m(x) - f(x)).pow(2).mean())
