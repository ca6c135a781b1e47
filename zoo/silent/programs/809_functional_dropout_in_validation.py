"""F.dropout(x, 0.5) without training=self.training: it is on in validation too, and in the model that is delivered."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="809_functional_dropout_in_validation", cause="train_mode_in_eval", knowable_at=32)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a, s.b, s.c = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 4)
    def drop(s, h): return F.dropout(h, 0.5, training=s.training) if program.FIX else F.dropout(h, 0.5)
    def forward(s, x): return s.c(s.drop(torch.relu(s.b(s.drop(torch.relu(s.a(x)))))))
x, y = program.blobs(1024, program.SEED, noise=1.5); tx, ty = program.blobs(1024, 99, noise=1.5)
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for epoch in range(6):
    m.train()
    for i in torch.randperm(1024).split(32):
        loss = F.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
    m.eval()
    with torch.no_grad(): v = F.cross_entropy(m(tx), ty); print(epoch, v.item())
program.metric(v)
