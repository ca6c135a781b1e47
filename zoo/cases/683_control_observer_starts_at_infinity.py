"""CONTROL: quantisation-aware training with observers that start at min=inf, max=-inf and see each batch before they are used."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="683_control_observer_starts_at_infinity", source="torch.ao.quantization.MinMaxObserver", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class FakeQuantize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))

    def forward(self, x):
        with torch.no_grad():
            self.min_val.copy_(torch.minimum(self.min_val, x.min()))
            self.max_val.copy_(torch.maximum(self.max_val, x.max()))
            scale = ((self.max_val - self.min_val) / 255).clamp_min(1e-8)
            q = ((x - self.min_val) / scale).round().clamp(0, 255) * scale + self.min_val
        return x + (q - x).detach()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), FakeQuantize(), nn.Linear(16, 16), nn.ReLU(), FakeQuantize(), nn.Linear(16, 3)), torch.Generator().manual_seed(15)
    data = [(torch.randn(6, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(9)]
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.SGD(m.parameters(), lr=0.05))
