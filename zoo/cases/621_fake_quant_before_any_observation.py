"""Quantisation-aware training: observers start at min=inf, max=-inf and were switched off for the second activation before it saw a batch
(disable_observer applied by a name pattern). Fake quantisation is enabled at step 3 and reads the range that was never written."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="621_fake_quant_before_any_observation", source="https://github.com/alibaba/TinyNeuralNetwork/issues/375",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="act2", line_marker=None, tensor="act2.min_val", tensor_kind="buffer", first_bad_step=3, latent_from=0, bad_rows=None,
             fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init"}


class FakeQuantize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))
        self.observing, self.quantising = True, False

    def forward(self, x):
        if self.observing:
            with torch.no_grad():
                self.min_val.copy_(torch.minimum(self.min_val, x.min()))
                self.max_val.copy_(torch.maximum(self.max_val, x.max()))
        if not self.quantising:
            return x
        scale = (self.max_val - self.min_val) / 255
        q = ((x - self.min_val) / scale).round().clamp(0, 255) * scale + self.min_val
        return x + (q - x).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act1, self.fc2, self.act2, self.out = nn.Linear(8, 16), FakeQuantize(), nn.Linear(16, 16), FakeQuantize(), nn.Linear(16, 3)

    def forward(self, x):
        x = self.act1(F.relu(self.fc1(x)))
        return self.out(self.act2(F.relu(self.fc2(x))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(15)
    m.act2.observing = fix == "init"

    def schedule(case, i):
        if i == 3:
            for q in (case.model.act1, case.model.act2):
                q.quantising = True

    data = [(torch.randn(6, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(9)]
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.SGD(m.parameters(), lr=0.05), before_step=schedule)
