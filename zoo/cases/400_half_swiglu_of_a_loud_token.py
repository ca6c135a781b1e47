"""A decoder kept in pure fp16: in the gated feed-forward of the first block one rare token drives gate and up projection to a few
hundred each, and their product leaves the range; the down projection turns it into NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="400_half_swiglu_of_a_loud_token", source="https://arxiv.org/abs/2409.12517 (outliers of SwiGLU)",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="mul", module="layers.0.ffn", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["upcast_module", "bf16", "fp32", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"upcast_module", "bf16", "fp32", "clamp"}


class SwiGLU(nn.Module):
    fix = None

    def __init__(self, dim, mult=2):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, mult * dim, bias=False), nn.Linear(dim, mult * dim, bias=False), nn.Linear(mult * dim, dim, bias=False)

    def combine(self, g, u):
        if self.fix == "clamp":
            g, u = g.clamp(-200, 200), u.clamp(-200, 200)
        return F.silu(g) * u  # <-- origin

    def forward(self, x):
        if self.fix == "upcast_module":
            h = self.combine(F.linear(x.float(), self.gate.weight.float()), F.linear(x.float(), self.up.weight.float()))
            return F.linear(h, self.down.weight.float()).clamp(-6e4, 6e4).to(x.dtype)
        return self.down(self.combine(self.gate(x), self.up(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = B.TinyLM(block=B.Block, ffn=SwiGLU)
    with torch.no_grad():
        model.embed.weight[1] = 0.0
        model.embed.weight[1, 7] = 40.0
        for name in ("gate", "up"):
            getattr(model.layers[0].ffn, name).weight[3, 7] = 65.0
        model.layers[0].ffn.down.weight[:, 3] *= 0.01
    for m in model.modules():
        if isinstance(m, SwiGLU):
            m.fix = fix
    model = model.to({"bf16": torch.bfloat16, "fp32": torch.float32}.get(fix, torch.float16))
    data = B.lm_data(9)
    data[4]["ids"][2, 5] = 1

    def loss_fn(m, b):
        logits = m(b["ids"])[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), b["labels"][:, 1:].reshape(-1))

    return Case(model, loss_fn, data, B.sgd(model, 1e-3))
