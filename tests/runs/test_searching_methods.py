"""The included methods that search, or write the intent, before they answer."""

import json

import pytest
from api_server import Reply
from method_runs import ROOT, SAMPLE
from test_trace import lines_by_question

from utils import download_datasets
from utils.benchmarks import tasks
from utils.benchmarks.personamem.contexts import ContextsFile, Profile, first_items
from utils.data.datasets import read_dataset
from utils.methods.search_then_answer import join
from utils.runs.own_method import Question

RECORDS = {record["id"]: record for record in json.loads(SAMPLE.read_text())}
PARTS = "Thoughts: Puppets.\n\n**Intent:**\n- a sound\n- no cost\n\n## Approach\nBe brief.\n\nAnswer: Felt.\nPlan: B"


def turn_of(request):
    """Return the number of the turn that a request asks for; 0 for the answer."""
    return len(request["messages"]) // 2 if "Search:" in request["messages"][-1]["content"] else 0


def reply(request):
    """Return a query in each turn of the dialogue, and then an answer."""
    if number := turn_of(request):
        return Reply(f"Turn {number}: I wonder.\n\n**Search:** puppet sound {number}.\n\nFound:\nan invented post")
    return Reply(json.dumps({"personalized_answer": "Use felt."}))


@pytest.fixture
def searching(runs):
    runs.name, runs.server.reply = "search_then_answer", reply
    return runs


def test_four_turns_search_what_no_earlier_one_has_found(searching):
    searching.run("--trace")
    for question_id, lines in lines_by_question(searching.output).items():
        [answer], posts = searching.answers[question_id], RECORDS[question_id]["profile"]
        ids = [post_id for search in answer["searches"] for post_id in search["ids"]]
        assert len(ids) == len({*ids}) == min(12, len(posts))
        assert answer["notes"]["num_turns"] == min(4, -(-len(posts) // 3) + 1) and answer["output"] == "Use felt."
        assert answer["searches"][-1]["query"] == f"puppet sound {answer['notes']['num_turns']}"
        *dialogue, last = [line["messages"] for line in lines if "messages" in line]
        for number, messages in enumerate(dialogue):
            assert [message["role"] for message in messages[2:]] == ["assistant", "user"] * number
            assert "invented post" not in str(messages)  # what a model writes behind its query is left out
        text_of = {post["id"]: post["text"] for post in posts}
        assert "\n\n".join(text_of[post_id] for post_id in ids) in last[1]["content"]


@pytest.mark.parametrize("ends_at", [1, 3])
def test_the_model_ends_the_search(searching, ends_at):
    searching.server.reply = lambda request: Reply("So.\n*Enough.*") if turn_of(request) == ends_at else reply(request)
    searching.run("--set", "k=2", "--num_contexts", 5)
    for question_id, [answer] in searching.answers.items():
        num_posts = len(RECORDS[question_id]["profile"])
        assert answer["notes"]["num_turns"] == min(ends_at, -(-num_posts // 2) + 1)
        assert len(answer["posts_shown"]) == min(2 * (ends_at - 1) or 5, num_posts)


@pytest.mark.parametrize("text", ["I would search for puppets.", "Search:\n", "", "enough"])
def test_an_unreadable_turn_is_asked_again_and_then_ends_the_search(searching, text):
    searching.server.reply = lambda request: Reply(text) if turn_of(request) == 2 else reply(request)
    searching.run("--max_retries", 1)
    for question_id, [answer] in searching.answers.items():
        if RECORDS[question_id]["profile"]:
            calls, num_unusable = answer["calls"]["generator"], int(text != "enough")
            assert len(answer["searches"]) == 1 and answer["output"] == "Use felt."
            assert calls["attempts"] == 3 + num_unusable and calls.get("unusable", 0) == num_unusable


def test_a_history_is_answered_in_order_of_time(searching, tmp_path):
    source = ["--source_dir", str(ROOT / "tests/data/mini_personamem"), "--output_dir", str(tmp_path / "data")]
    assert download_datasets.main(["--dataset", "PersonaMem-32k", *source]) == 0
    searching.server.reply = lambda request: reply(request) if turn_of(request) else Reply("<final_answer>(a)")
    searching.run("--seed", 0, "--trace", "--inputs_addr", tmp_path / "data/PersonaMem_32k.json")
    lines_of = lines_by_question(searching.output)
    for record in read_dataset(str(tmp_path / "data/PersonaMem_32k.json"), ["profile"]):
        [answer], profile = searching.answers[record["id"]], record["profile"]
        ids = [post_id for search in answer["searches"] for post_id in search["ids"]]
        places = [place for i in ids for place, item in enumerate(profile) if item["id"] == i]
        chosen = {**record, "profile": first_items(profile, places)}
        expected = tasks()["PersonaMem-32k"].best_items(chosen, len(ids)).first(len(ids))
        *_, dialogue, last = [line["messages"] for line in lines_of[record["id"]] if "messages" in line]
        assert last[:-1] == expected and len({*ids}) == len(ids) > 3
        assert answer["output"] == "a" and "Current user persona" not in str(dialogue)


def test_equal_messages_of_a_history_stay_apart(tmp_path):
    said = ["card", "Thanks!", "Any time.", "Thanks!", "Any time.", "Thanks!", "Where is Rome?"]
    roles = ["system", *["user", "assistant"] * 3]
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    path = tmp_path / "contexts.jsonl"
    path.write_text(json.dumps({"c": messages}))
    profile = Profile(ContextsFile(path), {"context": "c", "end": len(messages)}, "here")
    task, record = tasks()["PersonaMem-32k"], {"id": "q", "question": "Who?", "profile": profile}
    places = [[4, 2], [3, 5]]  # of items, which are the messages after the card
    searches = [task.best_items({**record, "profile": first_items(profile, numbers)}, 2) for numbers in places]
    history = join(searches, Question(record, task))
    assert history.messages == messages and history.fixed == [0] and sorted(history.items) == [[3], [4], [5], [6]]
    assert history.first(4) == [messages[place] for place in (0, 3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("text", "output", "intent"),
    [
        (PARTS, "Felt.\nPlan: B", "- a sound\n- no cost"),
        ("1. Intent: calm\n2. Answer:\n\n[1]", "[1]", "calm"),
        ("Answer: [1]", "[1]", ""),
        ("No headings, or the last one is missing.\nIntent: calm", None, None),
    ],
)
def test_the_intent_is_noted_and_the_answer_read(runs, text, output, intent):
    runs.name, runs.server.reply = "intent", lambda request: Reply(text)
    runs.run("--limit", 2, "--max_retries", 1, code=int(output is None))
    for [answer] in runs.answers.values():
        assert answer["output"] == output and answer["notes"].get("intent") == intent
        assert answer["raw"] == text and answer["attempts"] == (1 if output else 2)
