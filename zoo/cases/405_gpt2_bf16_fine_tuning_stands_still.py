"""GPT-2 loaded in bf16 and fine-tuned by the Trainer at 1e-6: every update is below half an ulp of its weight."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="405_gpt2_bf16_fine_tuning_stands_still", source="common report: pure bf16 fine-tuning with a small learning rate does not move",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module=None, module_also=["", "transformer"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "lr_up"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()
    with torch.no_grad():  # a trained model has no weights near zero: give every entry a magnitude
        for p in m.parameters():
            p.copy_(torch.where(p < 0, -1.0, 1.0) * (p.abs() + 0.02))
    m = m.to(torch.float32 if fix == "fp32" else torch.bfloat16)
    raw = B.lm_data(8)
    data = [dict(input_ids=b["ids"], labels=b["labels"]) for b in raw]
    lr = 1e-3 if fix == "lr_up" else 1e-6
    opt = torch.optim.AdamW(m.parameters(), lr=lr, weight_decay=0.0)
    largest = lambda log: all(r.loss_ok and r.grad_ok for r in log) and sum(r.update_norm for r in log) > 1e-4

    def build():
        return H.trainer(m, data, lr=lr, weight_decay=0.0)

    return Case(m, lambda m, b: m(**b).loss, data, opt, healthy=largest, trainer=build)
