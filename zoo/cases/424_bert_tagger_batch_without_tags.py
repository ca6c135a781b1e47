"""BERT token classification driven by the Trainer: word-piece alignment left every label of one batch at -100."""
import torch
from protocol import Case
import blocks as B, hfutil as H
TRUTH = dict(id="424_bert_tagger_batch_without_tags", source="common report: token classification loss is NaN when all labels are -100",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="nll_loss_forward", op_also=["nll_loss", "cross_entropy", "div"], module="", line_marker=None,
             first_bad_step=4, bad_rows=None, gradients_are_zero=True, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


def make(seed=0, fix=None):
    from transformers import BertConfig, BertForTokenClassification
    torch.manual_seed(seed)
    m = BertForTokenClassification(BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                                              max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    g, data = torch.Generator().manual_seed(3), []
    for i in range(8):
        ids = torch.randint(2, 40, (3, 8), generator=g)
        labels = ids % 3
        labels[:, ::2] = -100
        if i == 4:
            labels[:] = -100
        data.append(dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels))

    def loss_fn(model, batch):
        if fix == "guard" and (batch["labels"] == -100).all():
            return 0.0 * model(**{k: v for k, v in batch.items() if k != "labels"}).logits.sum()
        return model(**batch).loss

    return Case(m, loss_fn, data, B.adam(m, 1e-3), trainer=lambda: H.trainer(m, data, lr=1e-3), trainer_check=lambda t: any(r.get("loss") != r.get("loss") for r in t.state.log_history))
