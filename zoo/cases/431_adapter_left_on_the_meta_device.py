"""Adapters built on the meta device and moved with to_empty(): the loader fills what the checkpoint has and nobody initialises the
second adapter matrix. Its memory held NaN (filled here, so that the run is deterministic)."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="431_adapter_left_on_the_meta_device", source="https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to_empty",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="layers.1.ffn.wo.down", line_marker=None, tensor="layers.1.ffn.wo.down.weight", tensor_kind="parameter",
             first_bad_step=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init"}


class Adapted(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, r, bias=False, device="meta"), nn.Linear(r, base.out_features, bias=False, device="meta")

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.layers:
        block.ffn.wo = Adapted(block.ffn.wo)
        for part in (block.ffn.wo.down, block.ffn.wo.up):
            part.to_empty(device="cpu")
            nn.init.constant_(part.weight, float("nan"))  # what happened to be in that memory
    return model


def load_adapters(model, skip=()):
    g = torch.Generator().manual_seed(3)
    for name, m in model.named_modules():
        if isinstance(m, Adapted):
            with torch.no_grad():
                m.up.weight.zero_()
                if name not in skip:
                    m.down.weight.copy_(torch.randn(m.down.weight.shape, generator=g) * 0.1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = adapt(B.TinyLM())
    load_adapters(m, skip=() if fix == "init" else ("layers.1.ffn.wo",))
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3)
    return Case(m, B.lm_loss, B.lm_data(6), opt)
