"""DPO with length-normalised log-probabilities in a Trainer subclass: truncation left one rejected answer without a single token."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="449_dpo_average_over_an_empty_answer", source="common report: average log-probability of an empty completion", symptom="nan_loss", phase="loss", cause="zero_division",
             op="div", module=None, line_marker="# <-- origin", first_bad_step=2, bad_rows=[1], fixes_that_work=["clamp", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps"}


def sequence_logp(logits, labels, fix=None):
    labels = labels[:, 1:]
    keep = labels != -100
    lp = logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    n = keep.sum(-1)
    n = n.clamp(min=1) if fix == "clamp" else n + 1e-4 if fix == "eps" else n
    return (lp * keep).sum(-1) / n  # <-- origin


def dpo_loss(model, batch, fix=None, beta=0.5):
    w = sequence_logp(model(input_ids=batch["chosen_ids"]).logits, batch["chosen_labels"], fix)
    r = sequence_logp(model(input_ids=batch["rejected_ids"]).logits, batch["rejected_labels"], fix)
    return -F.logsigmoid(beta * ((w - batch["ref_chosen"]) - (r - batch["ref_rejected"]))).mean()


def make(seed=0, fix=None):
    import transformers
    torch.manual_seed(seed)
    m, data = H.gpt2(), []
    for c, r in zip(B.lm_data(6, bs=3, seed=1), B.lm_data(6, bs=3, seed=2), strict=True):
        for x in (c, r):
            x["labels"][:, :5] = -100
        data.append(dict(chosen_ids=c["ids"], chosen_labels=c["labels"], rejected_ids=r["ids"], rejected_labels=r["labels"], ref_chosen=torch.full((3,), -3.4), ref_rejected=torch.full((3,), -3.4)))
    data[2]["rejected_labels"][1] = -100

    class DPOTrainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kw):
            return dpo_loss(model, inputs, fix)

    return Case(m, lambda m, b: dpo_loss(m, b, fix), data, B.adam(m, 1e-3), trainer=lambda: H.trainer(m, data, lr=1e-3, cls=DPOTrainer))
