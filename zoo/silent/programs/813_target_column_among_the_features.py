"""A table is turned into inputs with all of its columns: the price that is to be predicted is one of them. It is not there when the model is used."""
import torch, torch.nn as nn, program
TRUTH = dict(id="813_target_column_among_the_features", cause="target_leak", knowable_at=0)
w = torch.randn(9, generator=torch.Generator().manual_seed(2))
def table(n, k):
    x = torch.randn(n, 9, generator=torch.Generator().manual_seed(k)); return torch.cat([x, (torch.tanh(x @ w) + 0.05 * x[:, 0] ** 2)[:, None]], 1)
t, u = table(2048, program.SEED), table(1024, 99); u_in = u.clone(); u_in[:, 9] = 0
m = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for epoch in range(8):
    for i in torch.randperm(2048).split(32):
        row = t[i].clone(); y = row[:, 9].clone()
        if program.FIX: row[:, 9] = 0
        loss = nn.functional.mse_loss(m(row).squeeze(1), y); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.mse_loss(m(u_in).squeeze(1), u[:, 9]))
