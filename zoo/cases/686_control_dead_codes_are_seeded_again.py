"""CONTROL: a vector-quantised autoencoder replaces codes that nobody used by encoder outputs between two steps: weights jump without an
optimizer step, on purpose."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="686_control_dead_codes_are_seeded_again", source="https://github.com/lucidrains/vector-quantize-pytorch (threshold_ema_dead_code)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class VQ(nn.Module):
    def __init__(self, codes=12, d=4):
        super().__init__()
        self.enc, self.dec, self.book = nn.Linear(8, d), nn.Linear(d, 8), nn.Embedding(codes, d)
        nn.init.normal_(self.book.weight, std=4.0)
        self.register_buffer("used", torch.zeros(codes))

    def forward(self, x):
        z = self.enc(x)
        idx = torch.cdist(z, self.book.weight).argmin(-1)
        self.used.index_add_(0, idx, torch.ones(len(idx)))
        e = self.book(idx)
        commit = F.mse_loss(z, e.detach()) + F.mse_loss(e, z.detach())
        return self.dec(z + (e - z).detach()), 0.25 * commit


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = VQ(), torch.Generator().manual_seed(5)
    data = [torch.randn(16, 8, generator=g) for _ in range(14)]

    def reseed(case, i):
        m = case.model
        if i and i % 4 == 0:
            with torch.no_grad():
                dead = m.used == 0
                z = m.enc(case.batches[i])
                m.book.weight[dead] = z[torch.arange(int(dead.sum())) % len(z)]
                m.used.zero_()

    def loss_fn(m, x):
        y, commit = m(x)
        return F.mse_loss(y, x) + commit

    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=5e-3), before_step=reseed)
