"""At each epoch the inputs are put into a new order and the labels are not: no input has its own label."""
import torch, torch.nn as nn, program
TRUTH = dict(id="820_inputs_are_shuffled_without_labels", cause="labels_unpaired", knowable_at=0)
x, y = program.blobs(2048, program.SEED); tx, ty = program.blobs(1024, 99)
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for epoch in range(5):
    order = torch.randperm(2048); xs = x[order]; ys = y[order] if program.FIX else y
    for xb, yb in zip(xs.split(32), ys.split(32)):
        loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
