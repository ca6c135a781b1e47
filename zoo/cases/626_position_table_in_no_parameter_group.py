"""Weight-decay groups by type as in minGPT: weights of Linear decay, biases and norms do not. The patch model keeps its positions and its
class token as bare nn.Parameter: they match neither rule, get gradients and never move."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="626_position_table_in_no_parameter_group", source="common report: parameters missing from both decay groups (minGPT asserts against it)",
             symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None, module="embed", module_also=["", None], line_marker=None, tensor="embed.pos", tensor_kind="parameter", first_bad_step=0, bad_rows=None,
             fixes_that_work=["add_param_group", "rebuild_optimizer"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"add_param_group", "rebuild_optimizer"}


class Embed(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.proj = nn.Linear(9, d)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.pos = nn.Parameter(0.02 * torch.randn(1, n + 1, d))

    def forward(self, patches):
        x = self.proj(patches)
        return torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos


class ViT(nn.Module):
    def __init__(self, d=16, n=6):
        super().__init__()
        self.embed, self.block, self.norm, self.head = Embed(d, n), B.Block(d), nn.LayerNorm(d), nn.Linear(d, 4)

    def forward(self, patches):
        return self.head(self.norm(self.block(self.embed(patches)))[:, 0])


def groups(m, fix):
    decay, plain = [], []
    for mod in m.modules():
        for n, p in mod.named_parameters(recurse=False):
            if isinstance(mod, nn.Linear) and n == "weight":
                decay.append(p)
            elif n == "bias" or isinstance(mod, nn.LayerNorm):
                plain.append(p)
            elif fix == "add_param_group":
                plain.append(p)
    if fix == "rebuild_optimizer":
        return [{"params": list(m.parameters()), "weight_decay": 0.1}]
    return [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = ViT(), torch.Generator().manual_seed(50)
    start = {n: p.detach().clone() for n, p in m.named_parameters()}
    data = [dict(patches=torch.randn(8, 6, 9, generator=g), y=torch.randint(0, 4, (8,), generator=g)) for _ in range(10)]

    def healthy(log):
        return all(r.loss_ok and r.grad_ok for r in log) and all(not torch.equal(p, start[n]) for n, p in m.named_parameters())

    return Case(m, lambda m, b: F.cross_entropy(m(b["patches"]), b["y"]), data, torch.optim.AdamW(groups(m, fix), lr=1e-3), healthy=healthy)
