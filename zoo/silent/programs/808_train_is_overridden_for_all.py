"""train() is overridden to hold the normalisation of a backbone still, and holds all of the network still: dropout of the head is off, nothing regularises it."""
import torch, torch.nn as nn, program
TRUTH = dict(id="808_train_is_overridden_for_all", cause="eval_mode_in_training", knowable_at=0)
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.backbone = nn.Sequential(nn.Linear(12, 256), nn.BatchNorm1d(256), nn.ReLU()); s.head = nn.Sequential(nn.Dropout(0.6), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.6), nn.Linear(256, 6))
    def train(s, mode=True):
        if program.FIX: super().train(mode); s.backbone.eval(); return s
        return super().train(False)
    def forward(s, x): return s.head(s.backbone(x))
x, y = program.blobs(96, program.SEED, k=6, noise=2.0); tx, ty = program.blobs(2048, 99, k=6, noise=2.0)
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=2e-3); program.ready(opt, m)
for epoch in range(60):
    m.train()
    for i in torch.randperm(96).split(16):
        loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
    m.eval()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
