"""Learning without forgetting: the new task is learnt with a penalty for moving away from the old model's answers. old = copy.copy(model) shares every
sub-module, the penalty is 0 at every step and the first task is forgotten."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="516_old_model_is_a_shallow_copy", source="constructed: copy.copy of a module shares _modules; neighbour https://github.com/andri27-ts/Reinforcement-Learning/issues/14", symptom="silent",
             phase="loss", cause="reference_aliased", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: copy.copy on a module", objects="yes: old and new share all parameters; the objects themselves are different"),
             quality_limit=0.9, margin=1.5, fixes_that_work=["deepcopy"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"deepcopy"}


def signal(case, i, r):
    return any(p is q for p, q in zip(case.model.parameters(), case.extra["old"].parameters()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier(h=48)
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in S.classes(80, seed=3):                # the first task
        opt.zero_grad()
        S.ce(m, b).backward()
        opt.step()
    opt.zero_grad()
    old = copy.deepcopy(m) if fix else copy.copy(m)  # <-- origin
    first, data = S.cat(S.classes(16, seed=99)), S.classes(80, seed=4, shift=2.5)
    for b, r in zip(data, S.classes(80, seed=5)):
        b["y"], b["replay"] = (b["y"] + 1) % 4, r["x"]          # second task: another scale, other meaning; replay has no labels

    def loss_fn(net, b):
        with torch.no_grad():
            was = F.log_softmax(old(b["replay"]), -1)
        keep = F.kl_div(F.log_softmax(net(b["replay"]), -1), was, reduction="batchmean", log_target=True)
        return F.cross_entropy(net(b["x"]), b["y"]) + 2.0 * keep

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=5e-3), extra={"old": old}, quality=lambda c: S.heldout_ce(m, first))
