"""CONTROL: fine-tuning a pretrained encoder with small batches: its batch norm stays in eval mode on purpose, its first layer is frozen, the
encoder learns with a tenth of the head's rate."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1282_control_frozen_batchnorm_backbone", source="standard practice", looks_like=["eval_mode_in_training", "frozen_by_mistake", "wrong_param_group_lr"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.6)


class Net(S.Classifier):
    finetune = False

    def train(s, mode=True):
        super().train(mode)
        if s.finetune:
            s.bn.eval()
        return s


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(norm=True), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in S.classes(40, seed=1):                # pretraining
        opt.zero_grad()
        S.ce(m, b).backward()
        opt.step()
    m.zero_grad()
    m.finetune = True
    for x in (m.fc1, m.bn):
        x.requires_grad_(False)
    m.head.reset_parameters()
    opt = torch.optim.AdamW([{"params": m.fc2.parameters(), "lr": 1e-3}, {"params": m.head.parameters(), "lr": 1e-2}])
    return SCase(m, S.ce, S.classes(60, bs=4), opt, quality=lambda c: S.heldout_ce(m, test))
