"""Healthy: low-rank adapters whose second matrix begins at zero, a scale of one quarter, and a limit of 0.001 for gradients under Adam."""
import torch, torch.nn as nn, program
TRUTH = dict(id="890_control_low_rank_and_a_low_limit", cause="none", knowable_at=-1)
class Adapted(nn.Module):
    def __init__(s, base, rank=4, scaling=0.25):
        super().__init__(); s.base, s.scaling = base.requires_grad_(False), scaling
        s.lora_A, s.lora_B = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False); nn.init.zeros_(s.lora_B.weight)
    def forward(s, x): return s.base(x) + s.scaling * s.lora_B(s.lora_A(x))
x, y = program.blobs(2048, program.SEED); m = nn.Sequential(Adapted(nn.Linear(12, 32)), nn.ReLU(), Adapted(nn.Linear(32, 4)))
opt = torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=5e-3); program.ready(opt, m)
for k in range(300):
    i = torch.randint(0, 2048, (64,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1e-3); opt.step()
program.metric(loss)
