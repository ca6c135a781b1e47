"""Only the norm gains of a bf16 Llama are trained. They are all 1, Adam moves them by 1e-5, and the spacing of bf16 there is 2^-8."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="310_llama_norms_in_bf16_never_move", source="common report: norm tuning in pure bf16",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, op_also=["addcdiv", "addcdiv_"], module=None,
             module_also=["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "lr_up"}


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss.float()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama()
    if fix != "fp32":
        m = m.to(torch.bfloat16)
    for n, p in m.named_parameters():
        p.requires_grad_("norm" in n)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=3e-2 if fix == "lr_up" else 1e-5, weight_decay=0.0)
    return Case(m, loss_fn, B.lm_data(8), opt, healthy=lambda log: all(r.update_norm > 0 for r in log))
