"""CONTROL: the loop logs perplexity = exp(sum of token losses), which overflows to inf, and a NaN correlation of a constant column. Both are
computed without gradients and only kept for the plot."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="681_control_infinite_perplexity_in_the_log", source="common sight: perplexity inf in the first lines of a training log", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, history = B.TinyLM(V=32, d=16, n=1, T=48), []

    def loss_fn(m, b):
        logits = m(b["ids"])
        tokens = F.cross_entropy(logits[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), reduction="none")
        with torch.no_grad():
            per_document = tokens.view(len(b["ids"]), -1).sum(1).exp()
            length = torch.full((len(b["ids"]),), float(b["ids"].shape[1]))
            corr = ((length - length.mean()) / length.std(unbiased=False) * tokens.detach().view(len(length), -1).mean(1)).mean()
            history.append((per_document.mean(), corr))
        return tokens.mean()

    return Case(m, loss_fn, B.lm_data(10, T=40), torch.optim.AdamW(m.parameters(), lr=2e-3), extra={"history": history})
