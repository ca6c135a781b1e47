"""CONTROL: MoCo with an empty queue at the start: unused places are masked with -inf, so the loss rises from step to step while the queue
fills with negatives."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="687_control_queue_of_negatives_fills_up", source="https://arxiv.org/abs/1911.05722 (a queue that starts empty)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class MoCo(nn.Module):
    def __init__(self, d=8, size=96):
        super().__init__()
        self.q, self.k = B.mlp(10, 24, d), B.mlp(10, 24, d)
        self.k.load_state_dict(self.q.state_dict())
        self.k.requires_grad_(False)
        self.register_buffer("queue", torch.zeros(size, d))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.filled) % len(self.queue)
        self.queue[at:at + len(keys)] = keys
        self.filled += len(keys)
        for a, b in zip(self.k.parameters(), self.q.parameters()):
            a.lerp_(b, 0.01)

    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=-1)
        with torch.no_grad():
            k = F.normalize(self.k(b), dim=-1)
        pos = (q * k).sum(-1, keepdim=True)
        empty = torch.arange(len(self.queue)) >= self.filled
        neg = (q @ self.queue.T.clone()).masked_fill(empty, float("-inf"))
        self.enqueue(k)
        return torch.cat([pos, neg], 1) / 0.2


def loss_fn(m, b):
    logits = m(b["a"], b["b"])
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = MoCo(), torch.Generator().manual_seed(6)
    data = []
    for _ in range(14):
        x = torch.randn(8, 10, generator=g)
        data.append(dict(a=x + 0.3 * torch.randn(8, 10, generator=g), b=x + 0.3 * torch.randn(8, 10, generator=g)))
    return Case(m, loss_fn, data, torch.optim.SGD(m.q.parameters(), lr=0.05, momentum=0.9))
