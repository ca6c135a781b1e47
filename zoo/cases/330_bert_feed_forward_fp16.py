"""A BERT whose second feed-forward output projection was merged with a large scale, run under fp16 autocast: one token drives
the projection past 65504."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B, hfutil  # noqa: F401
TRUTH = dict(id="330_bert_feed_forward_fp16", source="common report: encoder activations beyond the half-precision range",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="addmm", op_also=["linear", "mm", "matmul"], module="encoder.layer.1.output.dense", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["fp32", "bf16", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


def make(seed=0, fix=None):
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    m = BertModel(BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), add_pooling_layer=False)
    with torch.no_grad():
        m.embeddings.word_embeddings.weight[31] = 0.0
        m.embeddings.word_embeddings.weight[31, 0] = 50.0
        for layer in m.encoder.layer:
            layer.intermediate.dense.weight[0] = 0.0
            layer.intermediate.dense.bias[0] = -30.0
        m.encoder.layer[1].intermediate.dense.weight[0, 0] = 20.0
        m.encoder.layer[1].output.dense.weight[:, 0] = 4000.0

    def loss_fn(m, b):
        h = m(input_ids=b["ids"]).last_hidden_state  # <-- origin
        return F.mse_loss(h.float().mean(1)[:, 0], b["y"])

    g = torch.Generator().manual_seed(5)
    data = [dict(ids=torch.randint(1, 31, (4, 8), generator=g), y=torch.randn(4, generator=g)) for _ in range(7)]
    data[4]["ids"][1, 3] = 31
    return Case(m, loss_fn, data, B.adam(m, 1e-4), autocast=torch.float16)
