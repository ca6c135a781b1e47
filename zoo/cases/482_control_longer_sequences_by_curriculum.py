"""CONTROL: a curriculum doubles the sequence length and with it a summed loss: the jump is wanted and learning goes on."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="482_control_longer_sequences_by_curriculum", source="standard practice (sequence length warm-up)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(T=32)
    data = B.lm_data(8, T=4, seed=1) + B.lm_data(8, T=24, seed=2)

    def summed(m, b):
        lg = m(b["ids"])
        return F.cross_entropy(lg[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), reduction="sum") / len(b["ids"])

    return Case(m, summed, data, B.adam(m, 1e-3), clip_norm=1.0)
