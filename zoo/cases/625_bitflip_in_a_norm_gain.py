"""The top exponent bit of one gain of the final LayerNorm flips between two steps: 0.99 becomes 1.7e38."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="625_bitflip_in_a_norm_gain", source="https://arxiv.org/abs/2102.11245 (silent data corruption at scale)",
             symptom="nan_loss", phase="state", cause="transient_fault", op=None, module="norm", module_also=[None, ""], line_marker=None, tensor="norm.weight", tensor_kind="parameter",
             first_bad_step=7, bad_rows=None, fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"restore_weight"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(V=24, d=16, n=1)
    with torch.no_grad():
        m.norm.weight.uniform_(0.8, 0.95)

    def cosmic_ray(case, i):
        if i == 7:
            w = case.model.norm.weight.detach()
            keep = w.clone()
            w.view(torch.int32)[5] ^= 1 << 30
            if fix == "restore_weight":
                w.copy_(keep)

    return Case(m, B.lm_loss, B.lm_data(12, V=24), torch.optim.AdamW(m.parameters(), lr=2e-3), before_step=cosmic_ray, clip_norm=1.0)
