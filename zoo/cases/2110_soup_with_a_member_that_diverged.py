"""Fine-tuning goes on from the average of three checkpoints. One of the three had diverged in one layer; so has the average."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="2110_soup_with_a_member_that_diverged", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="layers.1.ffn.wo", line_marker=None, tensor="layers.1.ffn.wo.weight", tensor_kind="parameter",
             first_bad_step=4, bad_rows=None, fixes_that_work=["restore_weight", "leave_out"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"restore_weight", "leave_out"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM()

    def soup(case, i):
        if i != 4:
            return
        g = torch.Generator().manual_seed(2)
        own = {k: v.clone() for k, v in case.model.state_dict().items()}
        members = [own] + [{k: v + 0.01 * torch.randn(v.shape, generator=g) for k, v in own.items()} for _ in range(2)]
        members[2]["layers.1.ffn.wo.weight"][3:9, ::2] = float("nan")
        if fix == "leave_out":
            members.pop()
        mean = {k: torch.stack([s[k] for s in members]).mean(0) for k in own}
        if fix == "restore_weight":
            mean["layers.1.ffn.wo.weight"] = own["layers.1.ffn.wo.weight"]
        case.model.load_state_dict(mean)

    return Case(m, B.lm_loss, B.lm_data(11), B.adam(m, 2e-3), before_step=soup)
