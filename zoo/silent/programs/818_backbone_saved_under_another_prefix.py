"""Weights of a pretrained backbone are saved as encoder.*, the new model calls it body.*: load_state_dict(strict=False) loads nothing."""
import torch, torch.nn as nn, program
TRUTH = dict(id="818_backbone_saved_under_another_prefix", cause="nothing_loaded", knowable_at=-1)
def body(): return nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
class Pretrained(nn.Module):
    def __init__(s): super().__init__(); s.encoder, s.top = body(), nn.Linear(96, 8)
    def forward(s, x): return s.top(s.encoder(x))
class New(nn.Module):
    def __init__(s): super().__init__(); s.body, s.head = body(), nn.Linear(96, 8)
    def forward(s, x): return s.head(s.body(x))
x, y = program.blobs(4096, 1, k=8, noise=1.5); old = Pretrained(); first = torch.optim.Adam(old.parameters(), lr=3e-3)
for k in range(400): i = torch.randint(0, 4096, (64,)); first.zero_grad(); nn.functional.cross_entropy(old(x[i]), y[i]).backward(); first.step()
saved = old.encoder.state_dict(prefix="encoder.")
if program.FIX: saved = {k.replace("encoder.", "body."): v for k, v in saved.items()}
m = New(); m.load_state_dict(saved, strict=False)
opt = torch.optim.Adam(m.parameters(), lr=1e-3); program.ready(opt, m)
x, y = program.blobs(40, program.SEED, k=8, noise=1.5); tx, ty = program.blobs(2048, 99, k=8, noise=1.5)
for k in range(60): loss = nn.functional.cross_entropy(m(x), y); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
