"""multilabel_soft_margin_loss takes scores and is given sigmoids: the model cannot say no."""
import torch, torch.nn as nn, program
TRUTH = dict(id="815_probabilities_of_many_labels", cause="softmax_twice", knowable_at=0)
w = torch.randn(12, 7, generator=torch.Generator().manual_seed(2)); label = lambda x: (x @ w > 2).float()
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 7)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for k in range(400):
    x = torch.randn(64, 12); out = m(x); loss = nn.functional.multilabel_soft_margin_loss(out if program.FIX else out.sigmoid(), label(x))
    opt.zero_grad(); loss.backward(); opt.step()
x = torch.randn(2048, 12)
with torch.no_grad(): program.metric(nn.functional.binary_cross_entropy(m(x).sigmoid().clamp(1e-6, 1 - 1e-6), label(x)))
