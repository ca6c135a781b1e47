"""Contrastive learning with a queue of negatives: the queue is torch.empty and the first step already compares with all of it.
(PyTorch's deterministic mode fills fresh memory with NaN, which makes this exact.)"""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="231_memory_bank_read_before_written", source="common report: memory banks and centring buffers created with torch.empty",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, op_also=["mm", "cat"], module="bank", line_marker=None, tensor="bank.queue", tensor_kind="buffer",
             first_bad_step=0, bad_rows=None, fixes_that_work=["init", "mask_unwritten"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init", "mask_unwritten"}


class Bank(nn.Module):
    fix = None

    def __init__(s, size, d):
        super().__init__()
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        s.register_buffer("queue", torch.empty(size, d))
        torch.use_deterministic_algorithms(before)
        s.filled = 0

    def forward(s, q):
        neg = s.queue[:s.filled] if s.fix == "mask_unwritten" else s.queue
        return q @ neg.clone().T

    @torch.no_grad()
    def push(s, k):
        s.queue.copy_(torch.cat([k, s.queue[:-len(k)]]))
        s.filled = min(s.filled + len(k), len(s.queue))


class MoCo(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.bank = B.mlp(6, 16, 8), Bank(40, 8)

    def forward(s, a, b):
        q, k = F.normalize(s.encoder(a), dim=-1), F.normalize(s.encoder(b), dim=-1).detach()
        lg = torch.cat([(q * k).sum(-1, keepdim=True), s.bank(q)], 1) / 0.2
        s.bank.push(k)
        return lg


def loss_fn(m, b):
    return F.cross_entropy(m(b["a"], b["b"]), torch.zeros(len(b["a"]), dtype=torch.long))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = MoCo(), torch.Generator().manual_seed(4)
    m.bank.fix = fix
    if fix == "init":
        m.bank.queue.copy_(F.normalize(torch.randn(40, 8, generator=g), dim=-1))
    if fix == "mask_unwritten":
        m.bank.queue.zero_()                      # never read before it is written, so any finite value will do
    data = []
    for _ in range(9):
        x = torch.randn(6, 6, generator=g)
        data.append(dict(a=x + 0.1 * torch.randn(6, 6, generator=g), b=x + 0.1 * torch.randn(6, 6, generator=g)))
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9))
