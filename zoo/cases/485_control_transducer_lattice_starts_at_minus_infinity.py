"""CONTROL: the forward algorithm of a transducer in log space: unreachable cells stay at -inf and are left out of every logsumexp by
slicing, so nothing undefined is ever differentiated."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="485_control_transducer_lattice_starts_at_minus_infinity", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Transducer(nn.Module):
    def __init__(self, V=5):
        super().__init__()
        self.enc, self.dec, self.out = nn.Linear(4, 8), nn.Embedding(V, 8), nn.Linear(8, V)

    def forward(self, x, y):
        h = torch.tanh(self.enc(x)[:, :, None] + self.dec(nn.functional.pad(y, (1, 0)))[:, None])
        lp = self.out(h).log_softmax(-1)
        blank, emit = lp[..., 0], lp[:, :, :-1].gather(-1, y[:, None, :, None].expand(-1, x.shape[1], -1, 1))[..., 0]
        T, U = blank.shape[1:]
        cell = {}
        best = torch.full((len(x),), -torch.inf)
        for t in range(T):
            for u in range(U):
                ways = []
                if t:
                    ways.append(cell[t - 1, u] + blank[:, t - 1, u])
                if u:
                    ways.append(cell[t, u - 1] + emit[:, t, u - 1])
                cell[t, u] = torch.logsumexp(torch.stack(ways), 0) if ways else torch.zeros(len(x))
            best = torch.maximum(best, cell[t, U - 1].detach())
        return -(cell[T - 1, U - 1] + blank[:, T - 1, U - 1]), best


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Transducer(), torch.Generator().manual_seed(3)
    data = [(torch.randn(3, 4, 4, generator=g), torch.randint(1, 5, (3, 2), generator=g)) for _ in range(8)]
    return Case(m, lambda m, b: m(*b)[0].mean(), data, B.adam(m, 3e-3))
