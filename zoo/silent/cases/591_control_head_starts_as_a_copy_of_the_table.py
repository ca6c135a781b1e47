"""CONTROL: the output layer starts as a copy of the embedding table and is meant to go its own way (tie_word_embeddings=False); decay on matrices only, none on gains and tables."""
import torch, torch.nn as nn
from types import SimpleNamespace
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="591_control_head_starts_as_a_copy_of_the_table", source="standard practice (untied fine-tuning)", looks_like=["tied_weights_broken", "weight_decay_dominates", "wrong_param_group_lr"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.3)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=24, n=1)
    m.config = SimpleNamespace(tie_word_embeddings=False, vocab_size=32)
    nn.init.normal_(m.embed.weight, std=0.2)
    with torch.no_grad():
        m.lm_head.weight.copy_(m.embed.weight)
    decay = [p for n, p in m.named_parameters() if p.dim() > 1 and "embed" not in n and "pos" not in n]
    rest = [p for p in m.parameters() if all(p is not q for q in decay)]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 1e-2}], lr=5e-3)
    test = torch.cat([b["ids"] for b in B.lm_data(8, seed=9)])
    return SCase(m, B.lm_loss, B.lm_data(80), opt, quality=lambda c: S.in_eval(m, lambda: (m(test)[:, :-1].argmax(-1) != test[:, 1:]).float().mean()))
