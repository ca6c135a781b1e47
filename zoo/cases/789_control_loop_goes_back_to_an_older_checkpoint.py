"""CONTROL: fine-tuning with patience: at step 9 the loop goes back to the weights and the optimizer state it saved at step 2, with half the
rate. The loss rises at once to where it was, by decision."""
import copy
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="789_control_loop_goes_back_to_an_older_checkpoint", source="common sight: restore_best_weights / reduce on plateau with rollback", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, saved = B.TinyLM(), {}

    def before_step(case, i):
        if i == 2:
            saved.update(model=copy.deepcopy(m.state_dict()), opt=copy.deepcopy(case.optimizer.state_dict()))
        if i == 9:
            m.load_state_dict(saved["model"])
            case.optimizer.load_state_dict(saved["opt"])
            for group in case.optimizer.param_groups:
                group["lr"] *= 0.5

    return Case(m, B.lm_loss, B.lm_data(16, bs=24), B.adam(m, 3e-3), before_step=before_step)
