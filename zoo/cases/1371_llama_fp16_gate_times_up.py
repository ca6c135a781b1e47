"""A tiny Llama in fp16: for one special token gate and up projection are each about 400, their product leaves the fp16
range inside the second MLP."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="1371_llama_fp16_gate_times_up", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="mul", module="model.layers.1.mlp", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["fp32", "bf16", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16"}


def loss_fn(m, b):
    return m(input_ids=b["ids"], labels=b["labels"]).loss  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama()
    with torch.no_grad():
        m.model.embed_tokens.weight[:, 0] = 0.0
        m.model.embed_tokens.weight[1] = 0.0
        m.model.embed_tokens.weight[1, 0] = 30.0
        for p in (m.model.layers[1].mlp.gate_proj, m.model.layers[1].mlp.up_proj):
            p.weight[:, 0] = 100.0
    m = m.to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    data = B.lm_data(9)
    data[5]["ids"][2, 6] = 1
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3))
