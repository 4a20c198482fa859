"""Fusion in decoder over a random T5: its results, and what they do not depend on."""

import pytest
import torch
from tiny_t5 import make_tiny_t5

from utils.generation.beams import fuse, pad_passages

PAD, END = 0, 1


@pytest.fixture(scope="module")
def model():
    return make_tiny_t5()


def passage(seed, length):
    drawn = torch.randint(2, 128, (length,), generator=torch.Generator().manual_seed(seed))
    return [*drawn.tolist(), END]


LABELS = torch.tensor([[5, 17, 99, 3, END]])


def logits_of(model, prompts, labels=LABELS):
    batch = pad_passages(prompts, PAD, "cpu")
    with torch.no_grad():
        return model(**fuse(model, **batch), labels=labels.repeat(len(prompts), 1)).logits


def plain_logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), labels=LABELS).logits


def test_with_one_passage_it_is_the_plain_model(model):
    tokens = passage(0, 30)
    plain = plain_logits(model, tokens)
    assert plain.std() > 0.1  # else anything would be near
    torch.testing.assert_close(logits_of(model, [[tokens]]), plain, atol=1e-5, rtol=0)


def test_passages_are_encoded_by_themselves_and_all_attended_to(model):
    """The decoder's logits are those over the plain encoder's states of each passage, joined."""
    passages = [passage(1, 12), passage(2, 12)]
    with torch.no_grad():
        states = [model.encoder(input_ids=torch.tensor([one])).last_hidden_state for one in passages]
        joined = model(encoder_outputs=(torch.cat(states, 1),), labels=LABELS).logits
    torch.testing.assert_close(logits_of(model, [passages]), joined, atol=1e-5, rtol=0)
    for one in passages:
        assert (logits_of(model, [[one]]) - joined).abs().max() > 0.01
    together = passages[0][:-1] + passages[1]
    assert (plain_logits(model, together) - joined).abs().max() > 0.01


def test_padding_changes_nothing(model):
    """Of a passage beside longer ones, of a prompt beside one with more passages, and what stands under the mask."""
    short, long = [passage(0, 5), passage(1, 9)], [passage(seed, 40) for seed in range(2, 6)]
    alone = torch.cat([logits_of(model, [short]), logits_of(model, [long])])
    torch.testing.assert_close(logits_of(model, [short, long]), alone, atol=1e-5, rtol=0)
    batch = pad_passages([short, long], PAD, "cpu")
    batch["input_ids"][batch["attention_mask"] == 0] = 77
    with torch.no_grad():
        found = model(**fuse(model, **batch), labels=LABELS.repeat(2, 1)).logits
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


def test_every_passage_is_learnt_from(model):
    """Gradients of a batch with empty passages are the sum of those of its prompts."""
    prompts = [[passage(0, 6)], [passage(1, 8), passage(2, 20), passage(3, 4)]]
    weights = [model.encoder.block[0].layer[0].SelfAttention.q.weight, model.shared.weight]

    def gradients(its):
        batch = pad_passages(its, PAD, "cpu")
        logits = model(**fuse(model, **batch), labels=LABELS.repeat(len(its), 1)).logits
        return torch.autograd.grad(logits.log_softmax(-1)[..., 5].sum(), weights)

    parts = [gradients([prompt]) for prompt in prompts]
    for whole, one, other in zip(gradients(prompts), *parts, strict=True):
        torch.testing.assert_close(whole, one + other, atol=1e-4, rtol=1e-4)
    assert all(part.abs().max() > 0 for part in parts[1])


def test_beams_of_several_prompts_are_those_of_each_alone(model):
    prompts = [[passage(9 * n + k, 4 + 5 * k) for k in range(n + 1)] for n in range(4)]

    def generated(its):
        batch = fuse(model, **pad_passages(its, PAD, "cpu"))
        return model.generate(**batch, num_beams=4, do_sample=False, max_new_tokens=12).tolist()

    def ending(ids):
        return [token for token in ids if token != PAD]

    with torch.no_grad():
        together = list(map(ending, generated(prompts)))
        assert together == [ending(generated([prompt])[0]) for prompt in prompts]
        one = passage(5, 20)
        plain = model.generate(input_ids=torch.tensor([one]), num_beams=4, do_sample=False, max_new_tokens=12)
        assert generated([[one]]) == plain.tolist()
    assert len({tuple(ids) for ids in together}) > 1
