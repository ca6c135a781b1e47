"""The logits that generation samples from are NaN or infinite.

What it sees
    A logits processor inside `generate` met a NaN or a positive infinity. It repaired the row so that sampling could
    go on.

Why it hurts
    The repair only stops the crash of `torch.multinomial`. The model that made these logits is broken in that row:
    its weights are poisoned or its activations overflow, and a sample drawn from repaired logits teaches noise.

Smallest example
    model.lm_head.weight.data[0, 0] = float("nan")
    model.generate(ids, do_sample=True)      # RuntimeError: probability tensor contains either `inf`, `nan` ...
    # fixed
    model.load_state_dict(last_good); model.generate(ids, do_sample=True)

What to do
    Do not train on these samples. Look at the weights first (steady scan on a checkpoint, or the guard's own look);
    if they are finite, the logits overflowed: run the head in float32 or bfloat16.

Safety
    The finding is fatal: an update that was computed from repaired samples must not be applied. Tokens that were masked
    with negative infinity on purpose are no reason for it, and stay forbidden.

References
    https://docs.pytorch.org/docs/stable/generated/torch.multinomial.html
"""

from __future__ import annotations

from ...records.rules import Rule

RULE = Rule("SY501", "non_finite_logits", "The logits that generation samples from are NaN or infinite.")
