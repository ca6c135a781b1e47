"""The parts of the latent diffusion language model: configuration, text, latents, noise, model, loss, sampling."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from recipes.latent_dlm.config import CONFIGS, Config, as_yaml, doctor_says, load
from recipes.latent_dlm.corpus import (
    END_ID,
    MASK_ID,
    as_text,
    read_sentences,
    tokenise,
    train_tokenizer,
    webster,
    wordnet,
)
from recipes.latent_dlm.diffusion import add_noise, clean_and_noise, cosine_schedule, draw_times, latent_target
from recipes.latent_dlm.evaluation import nearer_to_own
from recipes.latent_dlm.latents import Scale, encoder_folder, make_encoder, project
from recipes.latent_dlm.losses import make_loss, text_loss, validate, word_weights
from recipes.latent_dlm.model import MMDiT, num_parameters
from recipes.latent_dlm.prepared import Prepared, batches, prepare
from recipes.latent_dlm.sampling import How, Sampler

import steadygrad as sg

SMALLER = [
    "data.seq_len=12", "data.vocab_size=400", "data.max_sentences=200", "data.val_sentences=40",
    "latent.encoder=projection", "latent.dim=16", "model.hidden_size=32", "model.n_blocks=2", "model.n_heads=2",
    "model.mlp_hidden=64", "model.latent_tokens=2", "training.train_batch_size=8",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(20)


@pytest.fixture(scope="module")
def config() -> Config:
    return load("tiny", SMALLER)[0]


@pytest.fixture(scope="module")
def data(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(config, tmp_path_factory.mktemp("cache"))


# -- configuration


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_doctor_finds_nothing_in_the_shipped_configurations(path: Path) -> None:
    config, _ = load(str(path))
    assert doctor_says(config) == []
    assert sg.doctor(path, show=False).advice == ()


def test_the_doctor_warns_of_settings_that_were_changed_for_the_worse() -> None:
    config, _ = load("tiny", ["training.warmup_steps=0", "optimizer.grad_clip_norm=0", "training.save_steps=50000"])
    assert sorted(line.split()[0] for line in doctor_says(config)) == ["PF204", "PF208", "PF304"]


def test_a_configuration_is_found_by_name_and_by_path_and_survives_being_written(tmp_path: Path) -> None:
    by_name, path = load("small")
    assert load("configs/small.yaml")[0] == by_name == load(str(path))[0]
    copy = tmp_path / "mine.yaml"
    copy.write_text(as_yaml(by_name))
    assert load(str(copy))[0] == by_name


def test_a_number_that_yaml_reads_as_text_is_a_number() -> None:
    assert load("tiny", ["optimizer.lr=5e-5"])[0].optimizer.lr == 5e-5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("optimizer.learning=1", "learning is not known. There is: beta1"),
        ("optimizer.lr=fast", "'fast' is not a number"),
        ("training.mode=both", "training.mode must be one of unconditional"),
        ("model.n_heads=5", "model.hidden_size must be a multiple of model.n_heads"),
        ("lr=1", "write it as section.key=value"),
        ("latent.prediction=x0", "latent.prediction must be epsilon or velocity"),
        ("training.train_batch_size=2.5", "2.5 is not a number"),
    ],
)
def test_what_cannot_work_is_an_error_with_a_sentence(change: str, sentence: str) -> None:
    with pytest.raises(sg.UsageError, match=sentence.replace(".", r"\.")):
        load("tiny", [change])


def test_a_configuration_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(sg.UsageError, match=r"no configuration 'huge'.*report_892m, small, tiny"):
        load("huge")


# -- sentences


def test_the_shipped_sentences_are_many_distinct_and_plain() -> None:
    sentences = read_sentences("sample")
    assert len(sentences) == len(set(sentences)) == 6000
    assert all(4 <= len(sentence.split()) <= 14 for sentence in sentences)


def test_a_sentence_comes_back_from_its_tokens_and_hidden_words_show() -> None:
    sentences = read_sentences("sample", 300)
    tokenizer = train_tokenizer(sentences, 400)
    (ids,) = tokenise(tokenizer, [sentences[0]], 64)
    assert as_text(tokenizer, ids) == sentences[0]
    assert as_text(tokenizer, [MASK_ID, *ids[:3], MASK_ID]).startswith("_ ")
    assert as_text(tokenizer, [MASK_ID, *ids[:3], MASK_ID]).endswith(" _")
    assert as_text(tokenizer, [END_ID, *ids]) == ""


def test_the_dictionaries_are_read_without_their_apparatus() -> None:
    entry = (
        "absinthe oil\n    n 1: a dark bitter oil obtained from wormwood leaves; flavors\n         absinthe "
        "liqueurs [syn: {wormwood oil},\n         {absinthe oil}]\n"
        '    2: not limited by law; "an absolute monarch"\nnext\n    n 1: it\n'
    )
    assert list(wordnet(entry)) == [
        "a dark bitter oil obtained from wormwood leaves; flavors absinthe liqueurs",
        "not limited by law",
        "an absolute monarch",
    ]
    entry = 'Alley \\Al"ley\\, n.\n   1. A narrow passage or way in a city. --Shak.\n   [1913 Webster]\n'
    entry += "\n   Obs. See Lane.\n"
    assert list(webster(entry)) == ["a narrow passage or way in a city"]


def test_a_corpus_that_is_missing_or_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sg.UsageError, match="is no file"):
        read_sentences(str(tmp_path / "none.txt"))
    (tmp_path / "few.txt").write_text("one line\n")
    with pytest.raises(sg.UsageError, match="1 sentences, which is too few"):
        read_sentences(str(tmp_path / "few.txt"))


def test_no_sentence_is_both_trained_on_and_held_out(data: Prepared) -> None:
    assert len(data.train) + len(data.val) == 200
    assert not set(data.train.sentences) & set(data.val.sentences)


def test_the_cache_gives_the_same_tensors_and_another_setting_makes_others(config: Config, tmp_path: Path) -> None:
    first, again = prepare(config, tmp_path), prepare(config, tmp_path)
    assert torch.equal(first.train.latents_ND, again.train.latents_ND)
    assert torch.equal(first.train.tokens_NT, again.train.tokens_NT)
    assert first.scale.spread == again.scale.spread
    made = len(list(tmp_path.iterdir()))
    longer = dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=14))
    assert prepare(longer, tmp_path).train.tokens_NT.shape[1] == 14
    assert len(list(tmp_path.iterdir())) == 2 * made


def test_batches_go_on_where_they_left_off(data: Prepared) -> None:
    through = batches(data.train, 8, seed=3)
    seen = [next(through) for _ in range(45)]  # past the end of an epoch of 20
    for place in (0, 19, 20, 44):
        later = next(batches(data.train, 8, seed=3, start=place))
        assert torch.equal(later["sentence"], seen[place]["sentence"])
        assert later["noise_seed"] == seen[place]["noise_seed"]
    assert sorted(torch.cat([batch["sentence"] for batch in seen[:20]]).tolist()) == list(range(160))
    assert len({batch["noise_seed"] for batch in seen}) == 45


# -- latents


def test_the_projection_knows_shared_words_and_is_zero_for_a_blank_line() -> None:
    one, two, far, blank = project(["a red apple tree", "a green apple tree", "we sailed at dawn", ""], 256)
    assert one @ two > 0.5 > abs(one @ far)
    assert torch.allclose(one.norm(), torch.ones(()))
    assert blank.count_nonzero() == 0


def test_an_encoder_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert encoder_folder("projection") is None
    with pytest.raises(sg.UsageError, match=r"no folder with a config\.json"):
        encoder_folder(str(tmp_path))


def test_a_folder_that_holds_no_readable_encoder_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"word_embedding_dimension": 384}', encoding="utf-8")
    with pytest.raises(sg.UsageError, match="cannot be read"):
        make_encoder(str(tmp_path), 384)


def test_the_sentence_encoder_is_the_mean_over_a_sentences_own_tokens_in_its_place(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "small", "dog", "runs"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    shape = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertModel(shape).eval()
    model.save_pretrained(tmp_path)
    encode, name = make_encoder(str(tmp_path), 16)
    sentences = ["a small dog runs", "dog", "a dog runs"]
    made = encode(sentences)
    assert name == "minilm"
    for row, sentence in zip(made, sentences, strict=True):
        alone = torch.tensor([[2, *(words.index(word) for word in sentence.split()), 3]])
        with torch.no_grad():
            mean = model(alone).last_hidden_state[0].mean(0)
        assert torch.allclose(row, mean / mean.norm(), atol=1e-5)
    with pytest.raises(sg.UsageError, match=r"latent\.dim is 8, and the encoder in .* makes 16"):
        make_encoder(str(tmp_path), 8)


def test_standardising_is_taken_back_and_refuses_latents_that_are_all_the_same() -> None:
    latents = torch.randn(50, 8) * 3 + 7
    scale = Scale.of(latents)
    standard = scale.standardise(latents)
    assert torch.allclose(standard.mean(0), torch.zeros(8), atol=1e-5)
    assert math.isclose(float(standard.square().mean()), 1.0, rel_tol=1e-4)
    assert torch.allclose(scale.restore(standard), latents, atol=1e-5)
    with pytest.raises(sg.UsageError, match="all the same"):
        Scale.of(torch.ones(4, 8))


# -- noise


def test_the_cosine_schedule_keeps_the_variance_and_ends_at_signal_and_noise() -> None:
    signal, noise = cosine_schedule(torch.tensor([0.0, 0.3, 0.5, 1.0]))
    assert torch.allclose(signal**2 + noise**2, torch.ones(4))
    assert signal.tolist()[0] == 1
    assert noise.tolist()[0] == 0
    assert abs(float(signal[3])) < 1e-6
    assert float(signal.min()) >= 0


@pytest.mark.parametrize("prediction", ["epsilon", "velocity"])
def test_a_perfect_prediction_gives_back_the_clean_latent_and_the_noise(prediction: str) -> None:
    latent, noise = torch.randn(5, 16), torch.randn(5, 16)
    t = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.95])
    signal, share = cosine_schedule(t)
    noisy = signal[:, None] * latent + share[:, None] * noise
    clean, found = clean_and_noise(prediction, latent_target(prediction, latent, noise, t), noisy, t)
    assert torch.allclose(clean, latent, atol=1e-4)
    assert torch.allclose(found, noise, atol=1e-4)


def test_the_clean_latent_is_finite_even_where_there_is_no_signal() -> None:
    clean, _ = clean_and_noise("epsilon", torch.randn(2, 4), torch.randn(2, 4), torch.ones(2))
    assert clean.isfinite().all()


def test_each_mode_leaves_the_stream_it_is_given_clean() -> None:
    for mode, text_clean, latent_clean in (
        ("unconditional", False, False), ("latent_to_text", False, True), ("text_to_latent", True, False)
    ):  # fmt: skip
        t_text, t_latent = draw_times(mode, 64, torch.device("cpu"))
        assert bool((t_text == 0).all()) is text_clean
        assert bool((t_latent == 0).all()) is latent_clean
    t_text, t_latent = draw_times("random", 4000, torch.device("cpu"))
    for share, wanted in (((t_text == t_latent), 0.25), ((t_latent == 0), 0.35), ((t_text == 0), 0.2)):
        assert abs(float(share.float().mean()) - wanted) < 0.04
    assert not ((t_text == 0) & (t_latent == 0)).any()


def test_times_stay_away_from_both_ends_where_schedules_have_their_poles() -> None:
    for _ in range(200):
        t, _ = draw_times("unconditional", 512, torch.device("cpu"))
        assert float(t.min()) >= 1e-3
        assert float(t.max()) < 1


def test_hidden_words_are_hidden_and_clean_streams_are_untouched() -> None:
    tokens, latent = torch.randint(2, 99, (64, 10)), torch.randn(64, 6)
    t = torch.full((64,), 0.5)
    noised = add_noise(tokens, latent, t, torch.zeros(64), "epsilon")
    assert torch.equal(noised.tokens_BT == MASK_ID, noised.hidden_BT)
    assert 0.4 < float(noised.hidden_BT.float().mean()) < 0.6
    assert torch.equal(noised.latent_BZ, latent)
    assert not noised.latent_counts_B.any()
    assert not add_noise(tokens, latent, torch.zeros(64), t, "epsilon").hidden_BT.any()


# -- model


def test_the_shape_of_the_report_has_892_million_parameters_within_half_a_percent() -> None:
    config, _ = load("report_892m")
    with torch.device("meta"):
        model = MMDiT(config)
        tokens, latent = torch.zeros(2, config.data.seq_len, dtype=torch.long), torch.zeros(2, config.latent.dim)
        logits, said = model(tokens, latent, torch.zeros(2), torch.ones(2))
    assert abs(num_parameters(model) / 892e6 - 1) < 0.005
    assert logits.shape == (2, config.data.seq_len, config.data.vocab_size)
    assert said.shape == (2, config.latent.dim)


def test_the_small_configuration_has_about_a_hundred_million_parameters() -> None:
    with torch.device("meta"):
        assert abs(num_parameters(MMDiT(load("small")[0])) / 100e6 - 1) < 0.05


def test_both_streams_reach_each_other_and_order_matters(config: Config) -> None:
    torch.manual_seed(0)
    model = MMDiT(config).eval()
    for parameter in model.parameters():  # zero at first by design, which would hide every path
        torch.nn.init.normal_(parameter, std=0.1)
    tokens, latent = torch.randint(2, 400, (1, 12)), torch.randn(1, 16)
    half = torch.full((1,), 0.5)
    logits, said = model(tokens, latent, half, half)
    assert not torch.allclose(model(tokens, latent + 1, half, half)[0], logits)
    assert not torch.allclose(model(tokens.flip(1), latent, half, half)[1], said)
    assert not torch.allclose(model(tokens, latent, half, half / 2)[0], logits)
    assert not torch.allclose(model(tokens, latent, half / 2, half)[1], said)


# -- loss


def test_the_end_counts_as_a_word_and_what_follows_it_hardly() -> None:
    assert word_weights(torch.tensor([[7, 8, END_ID, END_ID, END_ID]]), 0.25).tolist() == [[1, 1, 1, 0.25, 0.25]]


def test_the_named_terms_add_up_to_the_loss_and_carry_their_weights(config: Config, data: Prepared) -> None:
    batch = next(batches(data.train, 8, seed=0))
    model = MMDiT(config)
    terms = make_loss(config)(model, batch)
    assert set(terms) == {"loss", "text", "latent"}
    assert torch.equal(terms["loss"], terms["text"] + terms["latent"])
    weights = dataclasses.replace(config.loss, text_loss_weight=2.0, latent_loss_weight=0.1, loss_scale=4.0)
    heavier = make_loss(dataclasses.replace(config, loss=weights))(model, batch)
    assert torch.allclose(heavier["text"], 8 * terms["text"])
    assert torch.allclose(heavier["latent"], 0.4 * terms["latent"])


def test_the_loss_of_a_batch_is_the_same_whenever_it_is_asked_for(config: Config, data: Prepared) -> None:
    batch = next(batches(data.train, 8, seed=0))
    model, loss_fn = MMDiT(config), make_loss(config)
    first = loss_fn(model, batch)["loss"]
    torch.rand(100)
    assert torch.equal(loss_fn(model, batch)["loss"], first)
    assert not torch.equal(loss_fn(model, {**batch, "noise_seed": 1})["loss"], first)


@pytest.mark.parametrize("weighting", ["mean", "elbo"])
def test_a_batch_with_no_hidden_word_has_a_text_loss_of_zero_and_zero_gradient(weighting: str) -> None:
    logits = torch.randn(2, 5, 9, requires_grad=True)
    tokens = torch.randint(2, 9, (2, 5))
    noised = add_noise(tokens, torch.randn(2, 3), torch.zeros(2), torch.full((2,), 0.5), "epsilon")
    loss = text_loss(logits, tokens, noised, weighting, 0.1)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.count_nonzero() == 0


def test_the_bound_on_the_likelihood_is_that_of_a_direct_sum() -> None:
    logits, tokens = torch.randn(2, 4, 6), torch.randint(2, 6, (2, 4))
    t = torch.tensor([0.5, 0.8])
    noised = add_noise(tokens, torch.randn(2, 3), t, t, "epsilon", torch.Generator().manual_seed(1))
    wanted = 0.0
    for row in range(2):
        for place in range(4):
            if noised.hidden_BT[row, place]:
                wanted -= float(logits[row, place].log_softmax(-1)[tokens[row, place]]) / float(t[row])
    assert math.isclose(float(text_loss(logits, tokens, noised, "elbo", 1.0)), wanted / 8, rel_tol=1e-5)


def test_validation_says_the_same_twice_and_leaves_no_trace(config: Config, data: Prepared) -> None:
    model = MMDiT(config).train()
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first = validate(model, config, data.val)
    assert torch.equal(torch.rand(3), wanted)
    assert model.training
    assert validate(model, config, data.val) == first
    # Untrained, the prediction of the latent is zero: its square error is the variance of the noise.
    assert math.isclose(first["latent"], 1.0, abs_tol=0.1)
    assert math.isclose(first["text"], math.log(400), abs_tol=0.5)


# -- sampling


@pytest.mark.parametrize("prediction", ["epsilon", "velocity"])
def test_a_model_that_knows_the_answer_walks_to_it(config: Config, prediction: str) -> None:
    """Not a trained model but the exact answer for one known point: the walk has to end there."""
    goal = torch.randn(1, 16).clamp(-2, 2)

    class Knows(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, noisy: torch.Tensor, t_text: torch.Tensor, t: torch.Tensor):  # type: ignore[no-untyped-def]
            signal, share = (each[:, None] for each in cosine_schedule(t))
            noise = (noisy - signal * goal) / share
            return torch.zeros(*tokens.shape, 400), latent_target(prediction, goal.expand_as(noisy), noise, t)

    changed = dataclasses.replace(config, latent=dataclasses.replace(config.latent, prediction=prediction))
    made = Sampler(Knows(), changed).latent_from_text(torch.zeros(3, 12, dtype=torch.long), How(steps=8))
    assert torch.allclose(made, goal.expand_as(made), atol=1e-3)


def test_samples_have_no_hidden_words_left_and_come_again_with_the_seed(config: Config) -> None:
    torch.manual_seed(0)
    model = MMDiT(config)
    one, latents = Sampler(model, config, seed=4).unconditional(3, How(steps=5))
    two, _ = Sampler(model, config, seed=4).unconditional(3, How(steps=5))
    assert torch.equal(one, two)
    assert not torch.equal(one, Sampler(model, config, seed=5).unconditional(3, How(steps=5))[0])
    assert one.shape == (3, 12)
    assert MASK_ID not in one
    assert latents.isfinite().all()
    guided = Sampler(model, config).text_from_latent(torch.randn(2, 16), How(guidance=2.0))
    assert MASK_ID not in guided


def test_the_likeliest_word_is_drawn_when_little_of_the_mass_is_kept(config: Config) -> None:
    logits = torch.zeros(2, 3, 400)
    logits[..., 7] = 5.0
    logits[..., MASK_ID] = 50.0  # never a word
    assert Sampler(MMDiT(config), config)._words(logits, How(top_p=0.01)).tolist() == [[7] * 3] * 2


def test_retrieval_is_certain_for_the_very_vectors_and_chance_for_noise() -> None:
    own = torch.randn(400, 32)
    share, cosine = nearer_to_own(own, own)
    assert share == 1.0
    assert math.isclose(cosine, 1.0, rel_tol=1e-5)
    share, cosine = nearer_to_own(torch.randn(400, 32), own)
    assert 0.4 < share < 0.6
    assert abs(cosine) < 0.1
