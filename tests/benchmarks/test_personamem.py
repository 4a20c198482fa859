"""PersonaMem on the sample in its own format: download, rank, ask (checking each message), parse, score."""

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from api_server import Reply, serve
from jinja2 import Environment
from jinja2.exceptions import TemplateError
from tiny_chat import make_tokenizer, save_tiny_chat

import baselines
import evaluate_responses
from prompts import load_prompt
from retrieval import rank_dataset
from utils import download_datasets
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.benchmarks.personamem.letters import LETTERS
from utils.benchmarks.personamem.task import CANONICAL, TYPES, options_text, order_of_options
from utils.data.datasets import read_dataset
from utils.generation.chat import APIChat, find_form, fold
from utils.generation.requests import Scored

DATA = Path(__file__).resolve().parents[1] / "data/mini_personamem"
TABLE, CONTEXTS = "questions_32k.csv", "shared_contexts_32k.jsonl"
NAME = "PersonaMem-32k"
LINES = (DATA / CONTEXTS).read_text(encoding="utf-8").splitlines()
HISTORIES = {key: messages for line in LINES for key, messages in json.loads(line).items()}


def read_table(path=DATA / TABLE):
    return list(csv.DictReader(path.open(encoding="utf-8", newline="")))


ROWS = {row["question_id"]: row for row in read_table()}


def save(folder, rows=None, lines=LINES):
    """Write the original files with these rows and lines."""
    folder.mkdir()
    rows = list(ROWS.values()) if rows is None else rows
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    (folder / TABLE).write_text(text.getvalue(), encoding="utf-8")
    (folder / CONTEXTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def download(source, output, *more):
    flags = ["--dataset", NAME, "--source_dir", source, "--output_dir", output, *more]
    assert download_datasets.main(list(map(str, flags))) == 0
    return output / "PersonaMem_32k.json"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return download(DATA, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def ranked(dataset):
    """By unit, ranked by BM25 into another folder."""
    paths = {}
    for unit in ("message", "session"):
        paths[unit] = dataset.parent / "ranked" / f"{unit}.json"
        paths[unit].parent.mkdir(exist_ok=True)
        flags = ["--ranker", "bm25", "--unit", unit, "--input_dataset_addr", dataset]
        rank_dataset.main(list(map(str, [*flags, "--output_dataset_addr", paths[unit]])))
    return paths


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with serve(lambda request: Reply("It is <final_answer>(b)")) as server:
        yield server


def ask(server, dataset, output, *more, code=0):
    """Run baselines.py with a separate store, and return the messages of each request in order of arrival."""
    server.requests.clear()
    flags = ["--model_addr", "m", "--openai", "--base_url", server.url, "--max_concurrency", 1]
    flags += ["--inputs_addr", dataset, "--output_addr", output, "--completions", f"{output}.completions"]
    flags += ["--max_model_len", 60000, *more]
    assert baselines.main(list(map(str, flags))) == code
    return [request["messages"] for request in server.requests]


def question_of(messages):
    """Return the row of the question in the last message."""
    [row] = [row for row in ROWS.values() if messages[-1]["content"].startswith(row["user_question_or_message"])]
    return row


def before(row):
    return HISTORIES[row["shared_context_id"]][: int(row["end_index_in_shared_context"])]


def asked(row):
    """Return the expected last message."""
    options = [option[4:] for option in eval(row["all_options"], {})]
    return load_prompt("personamem/choice").messages(
        question=row["user_question_or_message"], options=options_text(options)
    )[0]


def test_older_files_give_the_same_records(dataset, tmp_path):
    source = tmp_path / "older"
    shutil.copytree(DATA / "older", source)
    shutil.copy(DATA / CONTEXTS, source)
    older = json.loads(download(source, tmp_path / "out").read_text())
    for record, new in zip(older, json.loads(dataset.read_text()), strict=True):
        assert record.pop("stereotypical") in ("Yes", "No")
        assert CANONICAL[record.pop("question_type")] == new.pop("question_type") == new["group"]
        assert record == new
    (source / CONTEXTS).write_text(LINES[0] + "\n" + LINES[1][: len(LINES[1]) // 2])
    with pytest.raises(
        UserError, match=r"shared_contexts_32k\.jsonl: line 2: Input data was truncated\n  copy it again"
    ):
        download(source, tmp_path / "cut")


def with_twins():
    """Return the rows; two have their longest option twice, which is right in the first and wrong in the second."""
    texts = "['(a) yes', '(b) a longer answer than the others', '(c) no', '(d) a longer answer than the others']"
    first, second, *others = ROWS.values()
    return [first | {"all_options": texts, "correct_answer": "(d)"},
            second | {"all_options": texts, "correct_answer": "(a)"}, *others]  # fmt: skip


def test_a_finished_download_is_skipped_unless_its_contexts_are_missing(tmp_path, capsys):
    path = download(DATA, tmp_path)
    contexts = tmp_path / "PersonaMem_32k_contexts.jsonl"
    assert contexts.read_bytes() == (DATA / CONTEXTS).read_bytes()
    first = path.read_bytes()
    download(DATA, tmp_path)
    assert "already finished; skipped" in capsys.readouterr().out
    contexts.unlink()
    download(DATA, tmp_path)
    assert contexts.read_bytes() == (DATA / CONTEXTS).read_bytes() and path.read_bytes() == first
    contexts.write_text("mine")
    with pytest.raises(UserError, match="exists, but has other contexts\n  add --overwrite to replace it"):
        download(DATA, tmp_path)
    assert contexts.read_text() == "mine"


def change(**columns):
    """Return the rows, with changed columns in the first."""
    first, *others = ROWS.values()
    return [{**first, **columns}, *others]


FIRST = next(iter(ROWS))


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (change(shared_context_id="gone"), rf"id '{FIRST}': .*{CONTEXTS} has no context 'gone'"),
        (change(end_index_in_shared_context="-1"), rf"id '{FIRST}': end_index_in_shared_context is -1.*\n.*--skip"),
        (change(all_options="__import__('os').system('touch hacked')"), "is not a Python list of strings"),
        (change(all_options="['(b) x', '(a) y', '(c) z', '(d) z']"), r"must have four, starting with \(a\) to \(d\)"),
        (change(correct_answer="(e)"), r"correct_answer '\(e\)' is not one of \(a\)"),
        (change(question_type="other"), "question_type 'other' is not one of recall_user_shared_facts"),
    ],
)
def test_a_bad_table_is_refused_by_name(rows, match, tmp_path):
    with pytest.raises(UserError, match=match):
        download(save(tmp_path / "source", rows), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json*")) and not Path("hacked").exists()


def test_ends_beyond_the_context_and_identical_options_are_counted(tmp_path, capsys):
    rows = with_twins()
    rows[2] = {**rows[2], "end_index_in_shared_context": "-3"}
    rows[3] = {**rows[3], "end_index_in_shared_context": "9999"}
    path = download(save(tmp_path / "source", rows), tmp_path / "out", "--skip_invalid")
    printed = capsys.readouterr().out
    assert "22 questions; 2 skipped, because the history ends at a message that does not exist" in printed
    assert "2 with two identical options; in 1 of these, the right option is one of the two;" in printed
    records = json.loads(path.read_text())
    assert not {row["question_id"] for row in rows[2:4]} & {record["id"] for record in records}
    manifest = read_manifest(path)
    assert (manifest["skipped"], manifest["identical_options"], manifest["identical_to_right"]) == (2, 2, 1)
    records[0]["profile"]["end"] = -3  # which Python would count from the end
    path.write_text(json.dumps(records))
    with pytest.raises(UserError, match=r"field 'profile.end': Expected `int` >= 1"):
        read_dataset(path, needs=["profile"])


def test_a_ranked_file_also_refers_to_its_histories(ranked, dataset, tmp_path):
    records = {unit: json.loads(path.read_text()) for unit, path in ranked.items()}
    for unit, of_unit in records.items():
        for record, read in zip(of_unit, read_dataset(ranked[unit], needs=["profile"]), strict=True):
            profile = record["profile"]
            assert (profile["unit"], profile["contexts"]) == (unit, "../PersonaMem_32k_contexts.jsonl")
            assert sorted(profile["order"]) == list(range(len(profile["order"]))) == list(range(len(read["profile"])))
    records["message"][0]["profile"]["order"] = [0, 1]
    path = ranked["message"].with_name("broken.json")
    path.write_text(json.dumps(records["message"]))
    with pytest.raises(UserError, match="its 'order' has 2 items, but its history has"):
        list(read_dataset(path, needs=["profile"])[0]["profile"])


def test_the_prompt_has_exactly_the_history_before_the_question(dataset, server, tmp_path):
    requests = ask(server, dataset, tmp_path / "out.json")
    assert len(requests) == 24
    for messages in requests:
        row = question_of(messages)
        assert messages == [*before(row), asked(row)]
    order = [question_of(messages)["question_id"] for messages in requests]
    assert order == [record["id"] for record in json.loads(dataset.read_text())]
    for messages in ask(server, dataset, tmp_path / "none.json", "--rag", "--num_contexts", 0):
        assert messages == [asked(question_of(messages))]
    # A changed prompt changes every number measured with it.
    digest = "f23b2b9a3ce193c0d22dba55d2aa4364ff243a2ed5137ed4790c501affc1aa42"
    assert load_prompt("personamem/choice").digest == digest


@pytest.mark.parametrize("unit", ["message", "session"])
def test_the_prompt_has_the_card_and_the_chosen_turns(unit, ranked, server, tmp_path):
    profiles = {record["id"]: record["profile"] for record in read_dataset(ranked[unit], needs=["profile"])}
    for messages in ask(server, ranked[unit], tmp_path / "out.json", "--rag", "--num_contexts", 3):
        row = question_of(messages)
        history, best = before(row), profiles[row["question_id"]][:3]
        places = [item["places"] for item in best]
        chosen = [place for group in sorted(places) for place in group]
        assert messages == [history[0], *(history[place] for place in chosen), asked(row)]
        assert len(places) == min(3, len(profiles[row["question_id"]]))


WAYS = {  # the unit of the ranked dataset, and flags
    "whole": (None, ["--num_generated_outputs", 2]),
    "none": (None, ["--rag", "--num_contexts", 0]),
    "messages": ("message", ["--rag", "--num_contexts", 3, "--unranked"]),
    "sessions": ("session", ["--rag", "--num_contexts", 2, "--unranked"]),
}


def with_other_secrets(path):
    """Copy a dataset with changes in everything that a prompt must not reveal: letter, type, distance."""
    records, kept = json.loads(path.read_text()), {"task", "id", "question", "options", "profile", "group", "target"}
    for record in records:
        record |= dict.fromkeys(record.keys() - kept, "another")
        record["target"] = LETTERS[LETTERS.index(record["target"]) - 1]
        record["group"] = next(name for name in TYPES if name != record["group"])
    other = path.with_name(f"other_{path.name}")
    other.write_text(json.dumps(records))
    return other


@pytest.mark.parametrize("way", WAYS)
def test_scorer_only_fields_do_not_change_the_prompts(way, dataset, ranked, server, tmp_path):
    unit, flags = WAYS[way]
    path = ranked.get(unit, dataset)
    first, bodies = ask(server, path, tmp_path / "one.json", *flags), list(server.requests)
    assert len(first) == 24 * (2 if way == "whole" else 1)
    ask(server, with_other_secrets(path), tmp_path / "two.json", *flags)
    assert server.requests == bodies


def test_over_budget_the_oldest_turns_are_dropped_but_never_the_card(dataset, server, tmp_path, capsys):
    flags = ["--limit", 8, "--max_model_len", 900, "--max_tokens", 50]
    out = tmp_path / "out.json"
    requests = ask(server, dataset, out, *flags, code=1)  # half are unusable
    answers, chat = json.loads(out.read_text()), APIChat("m")
    for messages in requests:
        row = question_of(messages)
        history, answer = before(row), answers[row["question_id"]][0]
        others = [place for place, turn in enumerate(history) if turn["role"] != "system"]
        kept = set(others[len(others) - answer["num_contexts_used"] :])
        assert answer["num_contexts_used"] + answer["num_contexts_dropped"] == len(others)
        expected = [turn for place, turn in enumerate(history) if turn["role"] == "system" or place in kept]
        assert messages == [*expected, asked(row)]
        assert chat.length(messages) <= 850
        if len(kept) < len(others):  # one more does not fit
            assert chat.length([*messages, history[others[-len(kept) - 1]]]) > 850
    dropped = sum(answer[0].get("num_contexts_dropped", 0) for answer in answers.values())
    assert dropped and f", {dropped} messages or sessions left out for length" in (printed := capsys.readouterr().out)
    assert re.search(r", \d\d% of prompt tokens from the cache\n", printed)
    ask(server, dataset, tmp_path / "dry.json", *flags, "--dry_run")
    assert f"{dropped} messages or sessions left out for length" in capsys.readouterr().out


def test_answers_to_reordered_options_are_mapped_back(dataset, server, tmp_path):
    out = tmp_path / "out.json"
    requests = ask(server, dataset, out, "--num_generated_outputs", 2, "--seed", 7)
    texts = [messages[-1]["content"] for messages in requests]
    answers, shown = json.loads(out.read_text()), set()
    records = {record["id"]: record for record in json.loads(dataset.read_text())}
    for key, [first, output] in answers.items():
        assert "shown" not in first and first["output"] == "b" and output["output"] == output["shown"][1]
        assert sorted(output["shown"]) == list(LETTERS)
        shown.add(output["shown"])
        options = [records[key]["options"][LETTERS.index(letter)] for letter in output["shown"]]
        assert any(options_text(options) in text for text in texts)
    assert len(shown) > 8
    assert order_of_options(FIRST, 2, 7) == order_of_options(FIRST, 2, 7) != order_of_options(FIRST, 2, 8)


def test_scores_by_type_in_both_readings(dataset, server, tmp_path):
    texts = ["<final_answer>(b)", "a pity; my choice: b", "no idea", "(a) or (b)"]
    order = [record["id"] for record in json.loads(dataset.read_text())]
    server.reply = lambda request: Reply(texts[order.index(question_of(request["messages"])["question_id"]) % 4])
    out, readings = tmp_path / "out.json", []
    ask(server, dataset, out, "--max_retries", 0, code=1)  # half of the answers have no letter
    for reading in ([], ["--reading", "official"]):
        scores = tmp_path / f"scores{len(reading)}.json"
        flags = ["--inputs_addr", dataset, "--response_addr", out, "--score_addr", scores, *reading]
        assert evaluate_responses.main(list(map(str, flags))) == 0
        readings.append(json.loads(scores.read_text()))
    ours, official = readings
    right = [sum(ROWS[key]["correct_answer"] == "(b)" for key in order[kind::4]) for kind in (0, 1)]
    assert (ours["score"], ours["num_unanswered"], ours["letters"]["b"]) == (sum(right) / 24, 12, 1.0)
    # Its article is a letter to the public rule, so two letters are in the second text.
    assert official["score"] == right[0] / 24
    assert official["strategy"] == "accuracy-official" and official["num_unanswered"] == 0
    assert {entry["group"] for entry in ours["per_question_scores"]} == set(TYPES)


class Scorer:
    """In vLLM's place: notes each request, and prefers longer continuations."""

    concurrency, device = 2, "none"

    def __init__(self):
        self.scored = []

    async def score(self, model, prompt, continuations):
        self.scored.append([list(prompt), *map(list, continuations)])
        return Scored([-1 / len(tokens) for tokens in continuations], len(prompt), 0)

    async def close(self):
        pass


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("model") / "chat", max_positions=16_384)


@pytest.fixture
def choose(small_model, dataset, monkeypatch):
    """Run with --choose likelihood, and return the requests."""

    def run(output, *more, path=dataset):
        engine = Scorer()
        monkeypatch.setattr("utils.generation.engines.VLLMEngine", lambda *_: engine)
        words = ["--model_addr", small_model, "--inputs_addr", path, "--output_addr", output, "--choose", "likelihood"]
        assert baselines.main([*map(str, words), "--completions", f"{output}.completions", *map(str, more)]) == 0
        return engine.scored

    return run


@pytest.mark.parametrize("way", ["whole", "messages"])
def test_likelihoods_cover_only_the_options_after_history_and_question(way, dataset, ranked, choose, tmp_path):
    unit, flags = WAYS[way]
    path, flags = ranked.get(unit, dataset), [flag for flag in flags if way != "whole"]
    tokenizer = make_tokenizer()
    scored = choose(tmp_path / "one.json", *flags, path=path)
    answers = json.loads((tmp_path / "one.json").read_text())
    for record in read_dataset(path, needs=["profile", "options"]):
        question = {"role": "user", "content": record["question"]}
        number = None if way == "whole" else flags[2]
        history = tasks()[NAME].history(record, number, lambda items: sorted(items, key=lambda item: item["places"][0]))
        text = tokenizer.apply_chat_template([*history.messages, question], add_generation_prompt=True, tokenize=False)
        [options] = [items for prompt, *items in scored if tokenizer.decode(prompt) == text]
        assert list(map(tokenizer.decode, options)) == record["options"]
        likeliest = max(zip(map(len, options), LETTERS, strict=True), key=lambda pair: pair[0])[1]
        assert answers[record["id"]][0]["output"] == likeliest
    again = choose(tmp_path / "two.json", *flags, path=with_other_secrets(path))
    assert sorted(again) == sorted(scored) and len(scored) == 24


TURNS = [
    {"role": "system", "content": "card one"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "system", "content": "card two"},
    {"role": "assistant", "content": "back"},
    {"role": "assistant", "content": "again"},
    {"role": "user", "content": "question"},
]


LAST_SYSTEM_FIRST = (
    "{% set ns = namespace(system='') %}{% for m in messages if m.role == 'system' %}{% set ns.system = m.content %}"
    "{% endfor %}{{ ns.system }}{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "form", "text"),
    [
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", (math.inf, False), None),
        (  # as Gemma's
            "{% if messages[0].role == 'system' %}{{ raise_exception('') }}{% endif %}{% for m in messages %}"
            "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('') }}{% endif %}"
            "[{{ m.role }}]{{ m.content }}{% endfor %}",
            (0, True),
            "[user]card one\n\nhello[assistant]hi[user]card two[assistant]back\n\nagain[user]question",
        ),
        (  # like DeepSeek's: the last system message comes first, instead of all others
            LAST_SYSTEM_FIRST,
            (1, False),
            "card one[user]hello[assistant]hi[user]card two[assistant]back[assistant]again[user]question",
        ),
        (  # like an older one of Mistral's: the system message is a part of the last user message
            "{% for m in messages if m.role != 'system' %}"
            "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('') }}{% endif %}"
            "[{{ m.role }}]{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
            "{{ m.content }}{% endfor %}",
            (1, True),
            "[user]hello[assistant]hi[user]card two[assistant]back\n\nagain[user]card one\n\nquestion",
        ),
    ],
)
def test_turns_are_merged_if_the_template_does_not_support_them(template, form, text):
    def refuse(text):
        raise TemplateError(text)

    compiled = Environment().from_string(template)
    render = lambda messages: compiled.render(messages=messages, raise_exception=refuse)  # noqa: E731
    assert find_form(render) == form
    assert (render(fold(TURNS, *form)) == text) if text else (fold(TURNS, *form) == TURNS)
    behind = [*TURNS, {"role": "system", "content": "card three"}]
    assert render(fold(behind, *form)).endswith("card three")  # also behind the last question


def test_a_profile_is_read_only_when_needed(dataset, tmp_path):
    for record in read_dataset(dataset, needs=["profile"]):
        row, profile = ROWS[record["id"]], record["profile"]
        assert profile.messages == before(row)
        items = [(i, turn) for i, turn in enumerate(before(row)) if turn["role"] != "system"]
        assert [(item["id"], item["text"], item["role"]) for item in profile] == [
            (f"{row['shared_context_id']}:{i}", turn["content"], turn["role"]) for i, turn in items
        ]
        assert len(profile.by("session")) == sum(turn["role"] == "system" for turn in before(row))
    alone = tmp_path / "moved.json"
    shutil.copy(dataset, alone)
    assert isinstance(read_dataset(alone)[0]["profile"], dict)  # scoring needs no histories
    with pytest.raises(UserError, match=r"PersonaMem_32k_contexts\.jsonl: no such file; copy the histories"):
        read_dataset(alone, needs=["profile"])
    (tmp_path / "PersonaMem_32k_contexts.jsonl").write_text(LINES[0] + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"not the file that .*moved\.json was made with"):
        read_dataset(alone, needs=["profile"])
    flags = ["--ranker", "random", "--other_profile", "random", "--input_dataset_addr", dataset]
    with pytest.raises(UserError, match="--other_profile random: PersonaMem-32k's questions share histories"):
        rank_dataset.main(list(map(str, [*flags, "--output_dataset_addr", tmp_path / "random.json"])))
