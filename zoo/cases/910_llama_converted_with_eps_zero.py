"""A Llama whose converted config says rms_norm_eps = 0: all goes well until the first padded batch. The padding embedding is the zero
vector, rsqrt(0) is infinite, and 0 * inf spreads through the attention of the padded samples."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="910_llama_converted_with_eps_zero", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="rsqrt", op_also=["mul"], module="model.layers.0.input_layernorm", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1, 3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


def loss_fn(m, b):
    return m(input_ids=b["ids"], attention_mask=b["mask"], labels=b["labels"]).loss  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.llama(use_cache=False, rms_norm_eps=1e-6 if fix else 0.0)
    data = B.lm_data(10)
    for b in data:
        b["mask"] = torch.ones_like(b["ids"])
    for r, n in ((1, 3), (3, 5)):
        b = data[6]
        b["ids"][r, -n:], b["mask"][r, -n:], b["labels"][r, -n:] = 0, 0, -100
    return Case(m, loss_fn, data, B.adam(m))
