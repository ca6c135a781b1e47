"""best = model.state_dict() holds the weights themselves, not a copy: loading it at the end changes nothing."""
import copy, torch, torch.nn as nn, program
TRUTH = dict(id="710_best_weights_are_the_last", cause="nothing_loaded", knowable_at=240)
x, y = program.blobs(64, program.SEED, noise=2.0); vx, vy = program.blobs(512, 98, noise=2.0); tx, ty = program.blobs(1024, 99, noise=2.0)
m = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 4)); opt = torch.optim.Adam(m.parameters(), lr=1e-2); program.ready(opt, m)
low, best = float("inf"), None
for ep in range(60):
    m.train()
    for i in torch.randperm(64).split(16):
        opt.zero_grad(); nn.functional.cross_entropy(m(x[i]), y[i]).backward(); opt.step()
    m.eval()
    with torch.no_grad(): v = nn.functional.cross_entropy(m(vx), vy).item()
    if v < low: low, best = v, copy.deepcopy(m.state_dict()) if program.FIX else m.state_dict()
m.load_state_dict(best)
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
