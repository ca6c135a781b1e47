"""Adapters are scaled by alpha // rank = 8 // 16 = 0: neither of their matrices gets a gradient, only the new head is trained."""
import torch, torch.nn as nn, program
TRUTH = dict(id="805_alpha_over_rank_in_whole_numbers", cause="lora_inactive", knowable_at=1)
class Adapted(nn.Module):
    def __init__(s, base, rank=16, alpha=8):
        super().__init__(); s.base = base.requires_grad_(False); s.scaling = alpha / rank if program.FIX else alpha // rank
        s.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / 4); s.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
    def forward(s, x): return s.base(x) + s.scaling * (x @ s.lora_A.T) @ s.lora_B.T
x, y = program.blobs(2048, program.SEED, k=8, noise=0.7); tx, ty = program.blobs(1024, 99, k=8, noise=0.7)
m = nn.Sequential(Adapted(nn.Linear(12, 8)), nn.ReLU(), Adapted(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 8))
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-3); program.ready(opt, m)
for k in range(400):
    i = torch.randint(0, 2048, (64,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
