"""train_epoch() constructs the optimizer. An epoch is three batches long and the momentum of 0.98, on which the small rate was tuned, starts from
nothing in every one."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="513_train_epoch_makes_its_own_optimizer", source="https://github.com/OpenNMT/OpenNMT-py/issues/617 (constructor erases state; here in the epoch loop)", symptom="silent",
             phase="state", cause="momentum_not_restored", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=3, knowable_at=3, tensor_kind="optimizer", tensors=["momentum_buffer"],
             static_visible=dict(source="yes: optimizer constructed inside the epoch function", objects="no: from step 3 on another optimizer object with empty state"),
             quality_limit=0.8, margin=1.4, fixes_that_work=["one_optimizer"], fixes_that_do_not=["clip"])
FIXES = {"one_optimizer"}
EPOCH = 3


def signal(case, i, r):
    """the parameters are the same, the optimizer is another one and remembers nothing"""
    was, case.extra["opt"] = case.extra.get("opt"), case.optimizer
    return i > 0 and was is not None and was is not case.optimizer


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, test = S.Classifier(), S.classes(EPOCH * 40), S.cat(S.classes(16, seed=99))

    def optimizer():
        return torch.optim.SGD(m.parameters(), lr=2e-3, momentum=0.98, nesterov=True)

    def before(case, i):
        if i % EPOCH == 0 and i and not fix:
            case.optimizer = optimizer()  # <-- origin

    def step(case, b, i):
        case.optimizer.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        case.optimizer.step()
        return loss

    return SCase(m, S.ce, data, optimizer(), before_step=before, step=step, quality=lambda c: S.heldout_ce(m, test))
