"""embed_responses.py: states equal those of transformers, are paid once though killed, and are of the right texts."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from utils import embed_responses
from utils.base.errors import UserError
from utils.base.manifest import file_hash, publish, read_manifest

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
RECORDS = json.loads((ROOT / "tests/data/mini_lampqa/test.json").read_text())[:4]
POSTS = 2
ULP = 2**-10  # the largest relative distance of two neighbours in float16


class Samples:
    """Three responses to each of four questions, in a folder; one of them is missing."""

    def __init__(self, folder):
        self.folder = folder
        self.answers = {
            record["id"]: [
                {"output": f"Try {n} of {record['id']}.", "num_contexts_used": min(POSTS, len(record["profile"]))}
                for n in range(3)
            ]
            for record in RECORDS
        }
        self.answers[RECORDS[0]["id"]][1] = {"output": None, "reason": "no text"}
        self.write()

    def write(self, **settings):
        (self.folder / "data.json").write_text(json.dumps(RECORDS))
        publish(self.folder / "samples.json", self.answers, {"settings": settings})

    def flags(self, *more, output="states.safetensors"):
        words = ["--model_addr", CHAT, "--inputs_addr", self.folder / "data.json"]
        words += ["--response_addr", self.folder / "samples.json", "--output_addr", self.folder / output, *more]
        return list(map(str, words))

    def texts(self):
        """Return the texts of questions, profiles and responses."""
        questions = [record["question"] for record in RECORDS]
        profiles = ["\n\n".join(post["text"] for post in record["profile"][:POSTS]) for record in RECORDS]
        outputs = [answer["output"] for answers in self.answers.values() for answer in answers]
        return [[text or " " for text in texts] for texts in (questions, profiles, outputs)]

    def read(self, name="states.safetensors"):
        arrays = load_file(self.folder / name)
        return [arrays[kind] for kind in "xuy"]


@pytest.fixture
def samples(tmp_path):
    return Samples(tmp_path)


def reference(texts, dtype):
    """Return transformers' last hidden states at the last token of each text, which are after the final norm."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(CHAT, dtype=dtype).eval(), AutoTokenizer.from_pretrained(CHAT)
    with torch.inference_mode():
        rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1] for text in texts]
    return torch.stack(rows).float().numpy()


KILL_AFTER_5 = """
from retrieval.embeddings import Embeddings
whole, calls = Embeddings.add, []
def counted(*arguments):
    whole(*arguments)
    calls.append(1)
    if len(calls) == 5:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
Embeddings.add = counted
"""


@pytest.mark.engine
def test_states_are_those_of_transformers_and_are_paid_once(warm_engine, samples):
    """In float32, although it was killed on the way; each text has one row in the store."""
    flags = samples.flags("--dtype", "float32")
    run = warm_engine.run("utils/embed_responses.py", flags, do=KILL_AFTER_5)
    assert run.returncode == -signal.SIGKILL and not (samples.folder / "states.safetensors").exists(), run.errors
    done = warm_engine.run("utils/embed_responses.py", flags)
    assert done.returncode == 0, done.errors
    of_kind = samples.texts()
    number = len({text for texts in of_kind for text in texts})
    counts = read_manifest(samples.folder / "states.safetensors")["counts"]
    assert counts == {"texts": number, "texts_embedded": number - 5}
    hashes = [path.read_bytes() for path in (samples.folder / "embeddings").rglob("*.sha")]
    assert sorted(map(len, hashes)) == [5 * 16, (number - 5) * 16]
    for rows, texts in zip(samples.read(), of_kind, strict=True):
        assert rows.dtype == np.float16
        expected = reference(texts, "float32")
        np.testing.assert_allclose(rows.astype(np.float32), expected, rtol=ULP, atol=2e-3)
    # The same responses again, by another name: no model is loaded.
    again = warm_engine.run("utils/embed_responses.py", samples.flags("--dtype", "float32", output="2.safetensors"))
    assert again.returncode == 0 and "loaded" not in again.errors and "; 0 texts embedded" in again.printed
    assert (samples.folder / "2.safetensors").read_bytes() == (samples.folder / "states.safetensors").read_bytes()


@pytest.mark.engine
def test_states_in_bfloat16_and_of_length_1(warm_engine, samples):
    flags = samples.flags("--dtype", "bfloat16", "--normalize")
    done = warm_engine.run("utils/embed_responses.py", flags)
    assert done.returncode == 0, done.errors
    for rows, texts in zip(samples.read(), samples.texts(), strict=True):
        rows, expected = rows.astype(np.float32), reference(texts, "float32")
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)
        cosines = (rows * expected).sum(axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.min() > 0.999


def test_a_dry_run_counts_texts_and_tokens_and_writes_nothing(samples, capsys):
    from transformers import AutoTokenizer

    before = {*samples.folder.iterdir()}
    assert embed_responses.main(samples.flags("--dry_run")) == 0
    texts = {text for texts in samples.texts() for text in texts}
    tokens = sum(map(len, AutoTokenizer.from_pretrained(CHAT)(sorted(texts))["input_ids"]))
    assert capsys.readouterr().out.startswith(f"{len(texts)} of {len(texts)} texts to embed, {tokens} tokens\n")
    assert {*samples.folder.iterdir()} == before


def texts_read(samples):
    questions, texts = embed_responses.read_texts(embed_responses.build_parser().parse_args(samples.flags()))
    return questions, [texts[kind] for kind in "xuy"]


def test_the_texts_are_the_question_the_posts_of_its_prompt_and_the_responses(samples):
    first = RECORDS[0]["id"]
    questions, texts = texts_read(samples)
    assert [(key, *rows) for key, _, *rows in questions] == [
        (record["id"], 3 * place, 3 * place + 3) for place, record in enumerate(RECORDS)
    ]
    assert texts == samples.texts() and texts[2][1] == " "
    # A method says which posts it showed; without posts, the profile is a blank.
    for answer, places in zip(samples.answers[first], ([1, 0], [], [1, 0]), strict=True):
        answer["posts_shown"] = places  # those of the missing answer do not count
    for answer in samples.answers[RECORDS[1]["id"]]:
        del answer["num_contexts_used"]
    samples.write()
    _, [_, profiles, _] = texts_read(samples)
    posts = [post["text"] for post in RECORDS[0]["profile"]]
    assert profiles[:2] == [f"{posts[1]}\n\n{posts[0]}", " "]


def test_what_cannot_be_embedded_is_refused(samples):
    first = RECORDS[0]["id"]
    samples.write(inputs="0" * 64)
    with pytest.raises(UserError, match=r"data\.json: not the dataset of .*samples\.json, according to the manifest"):
        texts_read(samples)
    samples.write(inputs=file_hash(samples.folder / "data.json"))
    texts_read(samples)
    samples.answers[first][0]["num_contexts_used"] = 1
    samples.write()
    with pytest.raises(UserError, match=rf"samples\.json: id '{first}': its answers had different posts in their pro"):
        texts_read(samples)
    for answer in samples.answers[first]:
        answer["num_contexts_used"] = 99
    samples.write()
    with pytest.raises(
        UserError, match=rf"id '{first}': its answers had different posts in their prompts, or more than"
    ):
        texts_read(samples)
    samples.answers[first] = [{"output": "word " * 9000}]
    samples.write()
    with pytest.raises(
        UserError, match=r"a text has \d+ tokens, but .*demo/models/chat reads at most 8192; remove its"
    ):
        embed_responses.main(samples.flags("--dry_run"))
