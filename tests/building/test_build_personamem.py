"""utils/build_personamem.py, from one-sentence personas to a table; the model is a scripted server."""

import csv
import hashlib
import json
import shutil
import signal
from collections import Counter
from pathlib import Path

import persona_model
import pytest
from api_server import Reply, serve, text_of
from batch_server import serve_batches
from check_files import check
from tiny_t5 import save_tiny_t5

import baselines
import evaluate_responses
from retrieval import rank_dataset
from utils import batch, build_personamem, download_datasets, make_table
from utils.base.errors import UserError
from utils.benchmarks.personamem.task import TYPES
from utils.generation import batches
from utils.generation.chat import load_tokenizer
from utils.models.model_folder import ModelFolder

FILES = ("personas.json", "conversations.json", "small_talk.json", "questions.json")
ASSEMBLED = ("questions_32k.csv", "shared_contexts_32k.jsonl", "validity_32k.json")
CHAT = Path(__file__).resolve().parents[2] / "demo/models/chat"


def drawn(request, with_seed=True):
    said = [request["messages"], request.get("seed") if with_seed else None]
    return int(hashlib.sha256(json.dumps(said).encode()).hexdigest()[:8], 16)


def spoil(found, number):
    """Return a right reply with a fault; `number` selects which fault."""
    text = json.dumps(found)
    ways = ["I would rather not.", f"{text[:-1]}, }}", json.dumps({"more": 1, **found}), ""]
    if "events" in found:
        for fields in ({"date": "soon"}, {"date": "1900-01-01"}, {"event": " "}, {"reason": "so", "changes": None}):
            ways.append(json.dumps({"events": [*found["events"][:-1], {**found["events"][-1], **fields}]}))
        ways.append(json.dumps({"events": found["events"][:3]}))
    if "turns" in found and "event" in found["turns"][0]:
        ways += [json.dumps({"turns": found["turns"][:-2]})] * 3  # two events have no turn
        ways.append(json.dumps({"turns": [*found["turns"], {**found["turns"][-1], "event": "1900-01-01"}]}))
    if "wrong" in found:
        ways.append(json.dumps({"wrong": found["wrong"][:2]}))
    return ways[number % len(ways)]


def unsteady(request):
    """Reply wrongly in a fifth of all tries, and in all tries of one in twelve prompts and a third of conversations."""
    found = persona_model.right_reply(request)
    if isinstance(found, str):
        return Reply(found)
    always = drawn(request, with_seed=False)
    one_in = 3 if "turns" in found and "event" in found["turns"][0] else 12
    if always % one_in == 0 and "card" not in found and "hobbies" not in found:
        return Reply(spoil(found, always // one_in))
    if drawn(request) % 5 == 0:
        return Reply(spoil(found, drawn(request) // 5))
    return Reply(json.dumps(found))


def flags(out, url, *more, topics=("therapy",)):
    key = out.parent / "key.txt"
    key.write_text("sk-test")
    api = ["--openai", "--api_key_addr", key, "--base_url", url, "--model_addr", "some-model", "--tokenizer", CHAT]
    api += ["--model_id", "some-model"]  # at any address
    own = ["--n_persona", 2, "--topics", *topics, "--n_blocks", 4, "--output_dir", out]
    return list(map(str, [*own, *api, *more]))


def files_of(out):
    return {name: (out / name).read_bytes() for name in (*FILES, *ASSEMBLED)}


def made(out, name):
    return {key: piece["value"] for key, piece in json.loads((out / name).read_text()).items()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A finished run's folder, and the requests that its server received."""
    out = tmp_path_factory.mktemp("built") / "out"
    out.mkdir()
    with serve(unsteady) as server:
        build_personamem.main(flags(out, server.url))
    return out, server.requests


def test_faulty_replies_are_left_out_and_counted(built):
    """Every fault of a last try is counted, and the files are consistent."""
    out, requests = built
    manifests = [json.loads((out / f"{name}.manifest.json").read_text()) for name in FILES]
    requested = [manifest["completions"]["requested"] for manifest in manifests if "completions" in manifest]
    assert sum(requested) == len(requests)  # each file counts its own
    reasons = Counter()
    for name in FILES:
        for piece in json.loads((out / name).read_text()).values():
            reasons.update(piece["dropped"])
    told = {reason.partition(": ")[2] for reason in reasons}
    assert {"no JSON object", "no valid JSON", "not 3 wrong answers", "no turn for an event"} <= told
    manifest = json.loads((out / "questions.json.manifest.json").read_text())
    assert manifest["counts"].keys() - reasons.keys() == {"question sets"}
    entries = [entry for its in made(out, "questions.json").values() for entry in its or ()]
    assert {entry["type"] for entry in entries} == set(TYPES)
    assert all(len(entry["wrong"]) == len(entry["blind"]) == 3 for entry in entries)
    tokenizer, _ = load_tokenizer(ModelFolder(str(CHAT)))
    count = lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # noqa: E731
    assert check(out / ASSEMBLED[0], out / ASSEMBLED[1], out, 28_800, count) == []


def test_an_empty_reply_is_not_part_of_the_conversation(tmp_path):
    def silent(request):
        found = persona_model.right_reply(request)
        return Reply("" if isinstance(found, str) else json.dumps(found))

    with serve(silent) as server:
        build_personamem.main(flags(tmp_path / "out", server.url, "--max_retries", 0))
    said = [message for request in server.requests for message in request["messages"]]
    assert "assistant" in {message["role"] for message in said} and all(message["content"] for message in said)


def test_from_files_to_a_table(built, tmp_path, capsys):
    out, _ = built
    data, ranked, answers, scores = (tmp_path / name for name in ("data", "ranked.json", "a.json", "s.json"))
    source = ["--dataset", "PersonaMem-32k", "--source_dir", out, "--output_dir", data]
    assert download_datasets.main(list(map(str, source))) == 0
    dataset = data / "PersonaMem_32k.json"
    number = len(list(csv.DictReader((out / "questions_32k.csv").open())))
    assert len(json.loads(dataset.read_text())) == number
    with serve(persona_model.reply) as server:
        key = ["--openai", "--api_key_addr", out.parent / "key.txt", "--base_url", server.url]
        rank = ["--ranker", "bm25", "--input_dataset_addr", dataset, "--output_dataset_addr", ranked]
        assert rank_dataset.main(list(map(str, rank))) == 0
        ask = ["--model_addr", "m", "--rag", "--inputs_addr", ranked, "--output_addr", answers, *key]
        assert baselines.main(list(map(str, ask))) == 0
    judge = ["--inputs_addr", ranked, "--response_addr", answers, "--score_addr", scores]
    assert evaluate_responses.main(list(map(str, judge))) == 0
    capsys.readouterr()
    assert make_table.main(["--system", "RAG", str(scores)]) == 0
    assert "| RAG | " in capsys.readouterr().out


def test_the_same_command_again_requests_nothing(built, capsys):
    out, _ = built
    before = files_of(out)
    with serve(persona_model.reply) as server:
        assert build_personamem.main(flags(out, server.url)) == 0
        assert not server.requests
        with serve(unsteady) as other:  # only assembling, in another order
            again = ["--step", "assemble", "--seed", 1, "--overwrite"]
            assert build_personamem.main(flags(out, other.url, *again)) == 0
    assert "already finished" in capsys.readouterr().out
    assert files_of(out)["questions_32k.csv"] != before["questions_32k.csv"]
    with serve(unsteady) as server:
        build_personamem.main(flags(out, server.url, "--step", "assemble", "--overwrite"))
    assert files_of(out) == before


def test_adding_a_persona_and_a_topic_requests_only_these(built, tmp_path):
    """A number always means the same persona, and a topic's dates do not depend on the other topics."""
    out, small = built[0], tmp_path / "out"
    with serve(unsteady) as server:
        conversations = ["--step", "conversations"]
        build_personamem.main(flags(small, server.url, *conversations, "--n_persona", 1, topics=["foodRecommendation"]))
        first, before = server.requests[:], made(small, "conversations.json")
        both = ["therapy", "foodRecommendation"]
        build_personamem.main(flags(small, server.url, *conversations, topics=both))
        again = [json.dumps(request) for request in server.requests[len(first) :]]
    assert not set(again) & set(map(json.dumps, first))
    grown, alone = made(small, "conversations.json"), made(out, "conversations.json")
    assert before.items() <= grown.items() and alone.items() <= grown.items()


def test_changed_inputs_are_noticed(built, tmp_path, capsys):
    """A step runs again if the user's file has changed; files made from its old output are not assembled."""
    out, samples = tmp_path / "out", build_personamem.inputs.SAMPLES
    shutil.copytree(built[0], out)
    topics, small_talk = tmp_path / "topics.toml", tmp_path / "small_talk.txt"
    topics.write_text((samples / "topics.toml").read_text().replace("what weighs on", "what rests on"))
    small_talk.write_text((samples / "small_talk.txt").read_text().replace("bees", "ants"))
    with serve(unsteady) as server:
        again = ["--step", "conversations", "small_talk", "--topics_addr", topics, "--small_talk_addr", small_talk]
        assert build_personamem.main(flags(out, server.url, *again)) == 0
        asked = [text_of(message) for request in server.requests for message in request["messages"]]
        assert any("what rests on" in text for text in asked) and any("ants" in text for text in asked)
        with pytest.raises(UserError, match=r"questions.json: was made from a different conversations.json"):
            build_personamem.main(flags(out, server.url, "--step", "assemble"))
    (out / "small_talk.json").write_text('["damaged"]')
    with pytest.raises(UserError, match=r"small_talk.json: not a file of utils/build_personamem.py"):
        build_personamem.inputs.read_values(out / "small_talk.json")


def test_batches_give_the_same_file(built, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "POLLS", (0.01, 0.02))
    with serve_batches(unsteady) as server:
        assert batch.main([build_personamem.SCRIPT, *flags(tmp_path / "out", server.url, "--step", "small_talk")]) == 0
        assert len(server.batches) > 2
    assert (tmp_path / "out/small_talk.json").read_bytes() == (built[0] / "small_talk.json").read_bytes()


def test_the_small_model_expands_conversations_and_answers_blind(tmp_path):
    with serve(persona_model.reply) as server:
        small = ["--model", "small=tiny-model", "--step", "conversations", "questions", "--time", "next_year"]
        assert build_personamem.main(flags(tmp_path / "out", server.url, *small)) == 0
        asked = {name: [] for name in ("some-model", "tiny-model")}
        for one in server.requests:
            asked[one["model"]].append(text_of(one["messages"][-1]))
    assert any("part of a conversation" in text for text in asked["tiny-model"])
    assert any("<final_answer>" in text for text in asked["tiny-model"])
    assert not any("<final_answer>" in text for text in asked["some-model"])
    periods = {one["period"] for its in made(tmp_path / "out", "questions.json").values() for one in its}
    assert periods == {"next_year"}


def test_a_dry_run_counts_the_first_calls(built, tmp_path, capsys):
    with serve(persona_model.reply) as server:
        assert build_personamem.main(flags(tmp_path / "out", server.url, "--dry_run")) == 0
        assert not server.requests
        told = capsys.readouterr().out
        assert "/personas.json: 2 of 2 personas still need requests\n  generator: at least 2 requests, " in told
        assert "/conversations.json: not counted: " in told
        assert "/small_talk.json: 8 of 8 small talks still need requests\n  generator: at least 8 requests, " in told
        assert not (tmp_path / "out/personas.json").exists()
        build_personamem.main(flags(built[0], server.url, "--dry_run", "--step", "questions"))
        assert "/questions.json: finished, 0 requests" in capsys.readouterr().out
        assert build_personamem.main(flags(built[0], server.url, "--dry_run", "--step", "assemble")) == 0
        assert capsys.readouterr().out == "assemble: needs no model, 0 requests\n"


def test_a_run_can_be_killed_anywhere_and_resumed(built, warm, tmp_path):
    """After repeated SIGKILLs, the files have the same bytes, and hardly anything was requested twice."""
    (out := tmp_path / "out").mkdir()
    kills = (40, 400, 900, 1500)
    with serve(unsteady) as server:
        words = flags(out, server.url, "--max_concurrency", "4")
        for number in kills:
            run = warm.start("utils.build_personamem", words)
            server.wait_for(number)
            run.send(signal.SIGKILL)
            assert run.wait() == -signal.SIGKILL
        done = warm.run("utils.build_personamem", words)
        assert done.returncode == 0, done.errors
        assert files_of(out) == files_of(built[0])
        asked = Counter(map(json.dumps, server.requests))
        assert asked.total() - len(asked) <= 8 * len(kills)


PERSONAS, TOPICS = (build_personamem.inputs.SAMPLES / name for name in ("personas.jsonl", "topics.toml"))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--s_persona", "2"], f"--s_persona 2 --n_persona 2: {PERSONAS} has 8 personas; --s_persona must be below"),
        (["--topics", "golf"], f"{TOPICS}: no topic 'golf'; the topics are foodRecommendation, travelPlanning, "),
        (["--model", "big=m"], "--model big=...: unknown name; the only name is small"),
        (["--step", "assemble"], "personas.json: no such file; run --step conversations first"),
        (["--personas_addr", '{"persona": "x"}\n{"name": "y"}\n'], 'line 2: not {"persona": "one sentence"}'),
        (["--topics_addr", "[therapy]\n"], "topic 'therapy': Object missing required field `about`"),
        (["--topics_addr", '["a b"]\nabout = "g"\n', "--topics", "a b"], "topic 'a b': a topic's name may"),
        (["--small_talk_addr", "\n\n"], "has no questions"),
    ],
)
def test_mistakes_in_flags_and_input_files_are_refused(tmp_path, more, problem):
    out, file = tmp_path / "out", tmp_path / "given"
    if more[0].endswith("_addr"):
        file.write_text(more[1])
        more, problem = [more[0], file, *more[2:]], f"{file}: {problem}"
    with pytest.raises(UserError) as error:
        build_personamem.main(flags(out, "http://127.0.0.1:9/v1", *more))
    assert problem in str(error.value)
    assert not out.exists() or not list(out.glob("*.json"))


def test_a_model_that_is_not_a_chat_model_is_refused(tmp_path):
    save_tiny_t5(tmp_path / "t5")
    with pytest.raises(UserError, match="t5: is an encoder-decoder; use a chat model"):
        build_personamem.main(["--model_addr", str(tmp_path / "t5"), "--output_dir", str(tmp_path / "out")])


def test_requests_that_failed_on_the_server_are_sent_again(built, tmp_path, capsys):
    """One in fifty prompts gets status 500 at first; its record is not written until the server answers."""
    out, fails = tmp_path / "out", [True]

    def reply(request):
        is_down = fails[0] and drawn(request, with_seed=False) % 50 == 2
        return Reply("try later", status=500) if is_down else unsteady(request)

    steps = ["--step", "conversations", "small_talk"]
    with serve(reply) as server:
        assert build_personamem.main(flags(out, server.url, *steps, "--max_retries", "0")) == 1
        assert "missing because the server failed; run the same command again to retry it" in capsys.readouterr().err
        fails[0] = False
        build_personamem.main(flags(out, server.url, *steps))
    for name in ("conversations.json", "small_talk.json"):
        assert (out / name).read_bytes() == (built[0] / name).read_bytes()


def test_a_persona_that_the_server_failed_on_is_reported(tmp_path, capsys):
    """It has no topics, so no later file lacks any."""

    def reply(request):
        is_first = request["messages"] == server.requests[0]["messages"]
        return Reply("try later", status=500) if is_first else unsteady(request)

    with serve(reply) as server:
        words = flags(tmp_path / "out", server.url, "--step", "conversations", "--max_retries", "0")
        assert build_personamem.main(words) == 1
    assert "1 persona is missing because the server failed" in capsys.readouterr().err


def test_a_lost_file_is_made_again_from_the_one_before(built, tmp_path):
    """Without the store, nothing is requested for finished files before it."""
    out = tmp_path / "out"
    shutil.copytree(built[0], out)
    shutil.rmtree(out / "completions", ignore_errors=True)
    (out / "conversations.json").unlink()
    with serve(unsteady) as server:
        build_personamem.main(flags(out, server.url, "--step", "conversations"))
        assert server.requests and built[1][0] not in server.requests
    assert (out / "conversations.json").read_bytes() == (built[0] / "conversations.json").read_bytes()


def test_files_of_other_personas_and_an_edited_table_are_kept(built, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(built[0], out)
    before = files_of(out)
    with serve(unsteady) as server:
        for more in (["--n_persona", 1], ["--s_persona", 1], ["--n_persona", 1, "--step", "questions"]):
            with pytest.raises(UserError, match="that this command does not make, such as '"):
                build_personamem.main(flags(out, server.url, *more))
        assert files_of(out) == before
        (out / ASSEMBLED[0]).write_text("edited")
        with pytest.raises(UserError, match="or was changed since"):
            build_personamem.main(flags(out, server.url))
        assert build_personamem.main(flags(out, server.url, "--overwrite")) == 0
        assert files_of(out) == before
        assert build_personamem.main(flags(out, server.url, "--n_persona", 1, "--overwrite")) == 0
    assert {key.partition("/")[0] for key in made(out, "questions.json")} == {"0"}
