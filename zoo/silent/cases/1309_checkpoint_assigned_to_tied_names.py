"""Continued training of a language model whose config says tie_word_embeddings. The checkpoint is cast to float (a new tensor per name) and loaded with assign=True: every name gets a
parameter of its own, embedding and head go separate ways. What is exported is the table only, as for every tied model."""
import torch
from protocol_silent import SCase
import blocks as B
TRUTH = dict(id="1309_checkpoint_assigned_to_tied_names", source="constructed; documented: load_state_dict(assign=True) replaces the parameters", symptom="silent", phase="state",
             cause="tied_weights_broken", op=None, module="lm_head", module_also=["embed"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             tensors=["lm_head.weight", "embed.weight"],
             static_visible=dict(source="hint: assign=True without tying again", objects="yes: the config says tied, the two weights are equal and do not share storage"),
             quality_limit=1e-6, fixes_that_work=["tie_again"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"tie_again"}


class LM(B.TinyLM):
    def __init__(s, config):
        super().__init__(V=config["vocab_size"])
        s.config = config
        s.tie_weights()

    def tie_weights(s):
        if s.config["tie_word_embeddings"]:
            s.lm_head.weight = s.embed.weight


def signal(case, i, r):
    m = case.model
    return m.config["tie_word_embeddings"] and m.lm_head.weight is not m.embed.weight


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    config = dict(vocab_size=32, tie_word_embeddings=True)
    old = LM(config)
    opt = torch.optim.AdamW(old.parameters(), lr=3e-3)
    for b in B.lm_data(10, seed=3):                # the pretraining, cut short
        opt.zero_grad()
        B.lm_loss(old, b).backward()
        opt.step()
    checkpoint = {k: v.detach().bfloat16() for k, v in old.state_dict().items()}
    m = LM(config)
    m.load_state_dict({k: v.float() for k, v in checkpoint.items()}, assign=True)  # <-- origin
    m.requires_grad_(True)
    if fix:
        m.tie_weights()

    def quality(c):                                # how far the two have grown apart: what is lost when the model is saved as a tied one
        e, h = m.embed.weight.detach(), m.lm_head.weight.detach()
        return float((e - h).norm() / e.norm())

    return SCase(m, B.lm_loss, B.lm_data(120), torch.optim.AdamW(m.parameters(), lr=3e-3), quality=quality)
