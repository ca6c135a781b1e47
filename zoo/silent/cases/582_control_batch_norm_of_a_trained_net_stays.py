"""CONTROL: fine-tuning with tiny batches; batch norm stays in eval mode with the statistics of the pre-training, its gains and the first layer are frozen. On purpose, and it learns."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="582_control_batch_norm_of_a_trained_net_stays", source="standard practice (frozen batch norm in fine-tuning)", looks_like=["eval_mode_in_training", "frozen_by_mistake"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in S.classes(80, seed=3, bs=32):
        opt.zero_grad()
        S.ce(m, b).backward()
        opt.step()
    opt.zero_grad()
    m.head = nn.Linear(32, 4)                      # the labels are numbered anew
    m.bn.requires_grad_(False)
    m.fc1.requires_grad_(False)
    data = S.classes(120, bs=4, seed=4)
    for b in data + [test]:
        b["y"] = (b["y"] + 2) % 4

    def before(case, i):
        m.train()
        m.bn.eval()

    return SCase(m, S.ce, data, torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=3e-3), before_step=before, quality=lambda c: S.heldout_ce(m, test))
