"""Healthy: functional dropout is on in evaluation on purpose; the spread of 20 predictions of each input is the uncertainty."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="882_control_spread_from_dropout", cause="none", knowable_at=-1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b = nn.Linear(4, 64), nn.Linear(64, 1)
    def forward(s, x): return s.b(F.dropout(torch.relu(s.a(x)), 0.1, training=True))
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m); t = torch.randn(256, 4)
for epoch in range(5):
    m.train()
    for k in range(40):
        x = torch.randn(32, 4); loss = F.mse_loss(m(x), x.sum(1, keepdim=True).sin()); opt.zero_grad(); loss.backward(); opt.step()
    m.eval()
    with torch.no_grad(): many = torch.stack([m(t) for _ in range(20)]); print(epoch, many.std(0).mean().item())
program.metric(F.mse_loss(many.mean(0), t.sum(1, keepdim=True).sin()))
