"""The optimizer holds the weights of the network before it was copied; the copy is trained on, and never moves."""
import copy, torch, torch.nn as nn, program
TRUTH = dict(id="817_optimizer_of_the_model_before_the_copy", cause="parameter_not_in_optimizer", knowable_at=-1)
x, y = program.blobs(2048, program.SEED); tx, ty = program.blobs(1024, 99)
base = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.Adam(base.parameters(), lr=3e-3)
m = base if program.FIX else copy.deepcopy(base)
program.ready(opt, m)
for k in range(250):
    i = torch.randint(0, 2048, (32,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); m.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
