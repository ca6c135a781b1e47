"""Embedding and output layer are tied in __init__; the initialisation that runs afterwards assigns a new nn.Parameter to every Linear. The tie is gone. Training looks fine; the checkpoint
stores the tied tensor once, as the config says, and what is loaded again is another model."""
import types, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="912_init_makes_new_output_weight", source="constructed", symptom="silent", phase="state", cause="tied_weights_broken", op=None, module="lm_head", module_also=["embed"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["lm_head.weight", "embed.weight"],
             static_visible=dict(source="yes: new nn.Parameter after tying", objects="yes: config.tie_word_embeddings and lm_head.weight is not embed.weight"),
             quality_limit=1.0, margin=2.0, fixes_that_work=["tie_after_init"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"tie_after_init"}


class TiedLM(B.TinyLM):
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(s):
        super().__init__(V=24, d=24, n=1)
        s.config = types.SimpleNamespace(tie_word_embeddings=True)
        s.lm_head = nn.Linear(24, 24, bias=False)
        s.tie_weights()

    def tie_weights(s):
        s.lm_head.weight = s.embed.weight


def init(mod):
    if isinstance(mod, nn.Linear):
        mod.weight = nn.Parameter(torch.randn(mod.out_features, mod.in_features) * mod.in_features ** -0.5)  # <-- origin
    elif isinstance(mod, nn.Embedding):
        nn.init.normal_(mod.weight, std=0.2)


def signal(case, i, r):
    return case.model.config.tie_word_embeddings and case.model.lm_head.weight is not case.model.embed.weight


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = TiedLM(), S.cat(B.lm_data(16, V=24, seed=9))
    m.apply(init)
    if fix:
        m.tie_weights()

    def quality(c):                                # loss of what is loaded again
        new = TiedLM()
        new.load_state_dict({k: v for k, v in m.state_dict().items() if k not in m._tied_weights_keys}, strict=False)
        new.tie_weights()
        return S.in_eval(new, lambda: B.lm_loss(new, test))

    return SCase(m, B.lm_loss, B.lm_data(120, V=24), torch.optim.AdamW(m.parameters(), lr=4e-3, weight_decay=0.01), quality=quality)
