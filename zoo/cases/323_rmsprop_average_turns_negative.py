"""RMSprop's running square was averaged with another replica by subtraction and is negative for one weight when the run resumes:
gradients are finite, the square root in the update is not."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="323_rmsprop_average_turns_negative", source="common report: optimizer state merged from several checkpoints",
             symptom="nan_param", phase="state", cause="poisoned_state", op=None, op_also=["sqrt"], module="fc2", line_marker=None,
             tensor="fc2.weight", tensor_kind="optimizer", first_bad_step=5, bad_rows=None,
             fixes_that_work=["reset_optimizer", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"reset_optimizer", "reset_bad_state"}


def loss_fn(m, b):
    return F.huber_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 16, 1)

    def resume(case, i):
        if i == 5:
            square = case.optimizer.state[case.model.fc2.weight]["square_avg"]
            square[0, 3] = -0.5
            if fix == "reset_bad_state":
                square.clamp_(min=0)
            if fix == "reset_optimizer":
                case.optimizer.state.clear()

    return Case(m, loss_fn, B.xy(9), torch.optim.RMSprop(m.parameters(), lr=1e-3), before_step=resume)
