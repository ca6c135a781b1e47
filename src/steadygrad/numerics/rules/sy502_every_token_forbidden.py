"""Every token of a row is forbidden, so there is nothing to sample.

What it sees
    Before sampling, all logits of a row are negative infinity: each was masked, or overflowed downward.

Why it hurts
    Sampling crashes, and greedy decoding quietly takes token 0, which was forbidden too.

Smallest example
    scores = torch.full((1, 32000), float("-inf"))
    # fixed
    NumericalStabilityLogitsProcessor(fallback_token_id=tokenizer.eos_token_id)

What to do
    Look for two constraints that exclude each other (a grammar and a list of bad words, a minimum length at the only
    token left), or give the processor `fallback_token_id=` of a token that ends the row.

Safety
    Without a fallback the row is left as it is: a forbidden token is never made possible.

References
    https://huggingface.co/docs/transformers/internal/generation_utils
"""

from __future__ import annotations

from ...records.rules import Rule

RULE = Rule("SY502", "every_token_forbidden", "Every token of a row is forbidden, so there is nothing to sample.")
