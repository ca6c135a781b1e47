"""GPT-2 whose position table was lengthened with torch.empty: nothing happens until the first document that reaches the new
positions. (Deterministic mode hands out NaN for fresh memory.)"""
import torch, torch.nn as nn
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="308_gpt2_positions_never_filled", source="common report: context extended by enlarging wpe",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, op_also=["embedding"], module="transformer.wpe", line_marker=None, tensor="transformer.wpe.weight", tensor_kind="parameter",
             first_bad_step=5, latent_from=0, bad_rows=[2], fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = H.gpt2()
    torch.use_deterministic_algorithms(True, warn_only=True)
    new = torch.empty(8, 16)
    torch.use_deterministic_algorithms(False)
    if fix == "init":
        new.normal_(std=0.02)
    m.transformer.wpe = nn.Embedding.from_pretrained(torch.cat([m.transformer.wpe.weight.detach(), new]), freeze=False)

    def loss_fn(m, b):
        return m(input_ids=b["ids"], position_ids=b["at"], labels=b["labels"]).loss

    data = B.lm_data(9, bs=4)
    for b in data:
        b["at"] = torch.arange(12)[None].repeat(4, 1)
    data[5]["at"][2] += 25                        # the tail of a long document
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
