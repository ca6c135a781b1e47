"""freeze_bn() of a fine-tuning recipe, called each step, in a run from scratch: batch norm works with mean 0 and variance 1 for ever and normalises
nothing, although model.training is True."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="507_batch_norm_frozen_from_scratch", source="constructed; neighbour of the freeze_bn idiom of segmentation recipes", symptom="silent", phase="loop",
             cause="eval_mode_in_training", op=None, module="net.1", module_also=["net.4"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             named=dict(kind="buffer_never_moves", names=["net.1.running_mean", "net.1.running_var", "net.4.running_mean"]),
             static_visible=dict(source="yes: eval() on batch norm before every step, no checkpoint is loaded", objects="no: running_mean 0 and running_var 1 are the initial values; from step 0 on the mode shows"),
             quality_limit=0.8, margin=1.4, fixes_that_work=["leave_bn_alone"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"leave_bn_alone"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(s, x):
        return s.net(x)


def signal(case, i, r):
    """after a training step a batch norm has never counted a batch"""
    return bool(r) and r.stepped and any(isinstance(x, nn.BatchNorm1d) and int(x.num_batches_tracked) == 0 and not x.training for x in case.model.modules())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    kw = dict(scale=0.05)
    m, test = Net(), S.cat(S.classes(16, seed=99, **kw))

    def freeze_bn():
        for x in m.modules():
            if isinstance(x, nn.modules.batchnorm._BatchNorm):
                x.eval()  # <-- origin

    def before(case, i):
        m.train()
        if not fix:
            freeze_bn()

    return SCase(m, S.ce, S.classes(80, **kw), torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9), before_step=before, quality=lambda c: S.heldout_ce(m, test))
