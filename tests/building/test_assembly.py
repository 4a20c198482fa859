"""Histories and questions from made-up files: questions, distances, and the written files."""

import ast
import json
import os
from collections import Counter

import pytest
from check_files import check
from made_up import make_inputs

from utils.base.errors import UserError
from utils.base.manifest import file_hash, manifest_of, read_manifest
from utils.building.personas.assembly import COLUMNS, SIZES, assemble, read_inputs, write_files

BIG = {"personas": 2, "topics": 15, "counts": (6, 4, 4, 4), "pieces": 40, "lengths": (2, 3)}


def count_words(texts):
    return [len(text.split()) for text in texts]


def save(folder, files):
    folder.mkdir(exist_ok=True)
    for name, file in files.items():
        (folder / f"{name}.json").write_text(json.dumps(file), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    return save(tmp_path_factory.mktemp("big"), make_inputs(**BIG))


def parts_of(folder, size="1M", n_variants=2, seed=0, filter_questions=False):
    settings = {"size": size, "n_blocks": SIZES[size][1], "n_variants": n_variants, "seed": seed}
    settings["filter_questions"] = filter_questions
    return list(assemble(read_inputs(folder), settings, count_words))


def write(folder, parts, size):
    paths = folder / f"questions_{size}.csv", folder / f"shared_contexts_{size}.jsonl"
    write_files(parts, *paths, {"settings": {"size": size}})
    return paths


@pytest.mark.parametrize(("size", "variants"), [("128k", 2), ("32k", 3)])
def test_the_files_hold_what_they_were_made_from(size, variants, big, tmp_path):
    parts = parts_of(big, size, variants)
    paths = write(tmp_path, parts, size)
    assert [len(part.contexts) for part in parts] == [0, variants, variants]
    assert check(*paths, big, 0.9 * SIZES[size][0], count_words, variants) == []
    spoilt = parts[1]._replace(rows=parts[1].rows[1:])  # which the check would report
    assert check(*write(tmp_path, [spoilt], size), big, 0.9 * SIZES[size][0], count_words, variants) != []


def test_one_seed_gives_the_same_bytes_whatever_the_order_and_the_other_personas(big, tmp_path):
    files = {name: json.loads((big / f"{name}.json").read_text(encoding="utf-8")) for name in make_inputs(0, 1)}
    for entry in files["questions"].values():
        entry["value"].reverse()
    turned = save(tmp_path / "turned", {name: dict(reversed(file.items())) for name, file in files.items()})
    paths = write(tmp_path, parts_of(big), "1M")
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write(tmp_path, parts_of(turned), "1M")] == before
    del files["personas"]["0"]
    assert parts_of(save(tmp_path / "alone", files))[1] == parts_of(big)[2]


def entry_of(number, period="next_week", event="d2", **others):
    entry = {"id": f"0/a/{event}/{number}", "type": "suggest_new_ideas", "period": period, "event": event}
    entry |= {"question": f"q{number}", "answer": "yes", "wrong": ["n", "o", "😀"], "place": None, "blind": None}
    entry |= {"reference": {"period": period, "event": event}, "later_update": False, "is_line": False}
    return {**entry, "is_stereotypical": False, **others}


def tiny_files(entries):
    """Topic a has two periods, b one; a card has 4 words, a user's message 3, an assistant's 2."""
    turns = [{"user": "u1 u2", "assistant": "r"}]
    periods = {"init": [None, "d1"], "next_week": ["d2", "d3"]}
    sections = {
        name: {"sections": [{"event": day, "turns": turns} for day in values]} for name, values in periods.items()
    }
    talk = {"speakers": ["User", "Assistant"], "periods": sections}
    short = {**talk, "periods": {"init": {"sections": [{"event": "d1", "turns": turns}]}}}
    files = {"personas": {"0": {"card": "C"}, "1": None}, "conversations": {"0/a": talk, "0/b": short}}
    files |= {"small_talk": {}, "questions": {f"0/{topic}": values for topic, values in entries.items()}}
    return {name: {key: {"value": value} for key, value in file.items()} for name, file in files.items()}


def test_places_and_distances_of_a_tiny_example(tmp_path):
    own, after = {"period": "next_week", "event": "d3"}, {"period": "init", "event": "d1"}
    nowhere = {"period": "init", "event": "d9"}
    of_a = [entry_of(1, place=own, reference=after), entry_of(2, is_stereotypical=True, later_update=True)]
    of_a += [entry_of(3, place=after, reference=own), entry_of(7, place=own, reference=own)]
    of_a += [entry_of(4, reference=nowhere), entry_of(5, place=nowhere), entry_of(6, period="next_month")]
    of_b = [entry_of(number, "init", "d1") for number in (8, 11)]
    of_b += [entry_of(9, "init", "d1", later_update=True), entry_of(10, "init", "d1", place=after)]
    parts = [parts_of(save(tmp_path, tiny_files({"a": of_a, "b": of_b})), "32k", 1, seed)[1] for seed in range(9)]
    part, drawn = parts[0], {row.entry["question"] for part in parts for row in part.rows} - {"q1", "q2"}
    [(name, messages)] = part.contexts.items()
    said = [message["content"] for message in messages[:3]]
    assert said == ["Current user persona: C", "User: u1 u2", "Assistant: r"]
    assert [number for number, message in enumerate(messages) if message["role"] == "system"] == [0, 5, 8]
    rows = {row.entry["question"]: [row.columns[column] for column in COLUMNS[4:10]] for row in part.rows}
    # Blocks: a's first with 14 words, b's with 9, a's second with 14. q1 is asked before message 11, the others at 13.
    assert rows.pop("q1") == ["32", "161", "3", "23", "0", "71.88%"]
    assert rows.pop("q2") == ["37", "184", "1", "10", "0", "27.03%"]
    assert [*rows.values()] == [["37", "184", "2", "19", "0", "51.35%"]] and {*rows} < drawn == {"q8", "q11"}
    ends = {row.entry["question"]: row.columns["end_index_in_shared_context"] for row in part.rows}
    assert (ends["q1"], ends["q2"]) == ("11", "13")
    dropped = {name.split(": ")[1]: count for name, count in part.counts.items() if "dropped: " in name}
    assert dropped == {
        "not asked after its reference": 2, "reference not in the history": 1, "place not in the history": 1,
        "block not in the history": 1, "earlier block, updated later": 1, "earlier block, asked in the text": 1,
        "not drawn of their type and block": 1,
    }  # fmt: skip
    assert part.counts["personas without a topic of all periods"] == 1
    assert part.rows[0].columns["shared_context_id"] == name


@pytest.mark.parametrize(
    ("blind", "others", "is_dropped"),
    [([True, True, False], {}, True), ([True, None, None], {}, False), (None, {}, False),
     ([True, True, True], {"is_line": True}, False),
     ([True, True, True], {"type": "track_full_preference_evolution"}, False)],
)  # fmt: skip
def test_the_filter_drops_what_was_guessed_more_than_once(blind, others, is_dropped, tmp_path):
    entries = {"a": [entry_of(1, blind=blind, **others), entry_of(2)]}
    folder = save(tmp_path, tiny_files(entries))
    part = parts_of(folder, "32k", filter_questions=True)[1]
    assert part.counts["questions"] == 2 - is_dropped
    assert part.counts["questions dropped: guessed without the history"] == is_dropped
    assert parts_of(folder, "32k")[1].counts["questions"] == 2


def test_options_are_shuffled_and_the_right_one_is_named(tmp_path):
    entries = {"a": [entry_of(number) for number in range(200)]}
    part = parts_of(save(tmp_path, tiny_files(entries)), "32k")[1]
    letters = Counter()
    for row in part.rows:
        options = ast.literal_eval(row.columns["all_options"])
        assert [option[:4] for option in options] == ["(a) ", "(b) ", "(c) ", "(d) "]
        assert sorted(option[4:] for option in options) == ["n", "o", "yes", "😀"]
        assert f"{row.columns['correct_answer']} yes" in options
        letters[row.columns["correct_answer"]] += 1
    assert len(part.rows) == 400 and min(letters.values()) > 70 and len(letters) == 4
    pairs = zip(part.rows[:200], part.rows[200:], strict=True)
    assert 20 < sum(first.columns["correct_answer"] == other.columns["correct_answer"] for first, other in pairs) < 90


def test_both_files_are_written_or_none(tmp_path):
    parts = parts_of(save(tmp_path / "in", tiny_files({"a": [entry_of(1)]})), "32k")
    with pytest.raises(UserError, match=r"no question is left: 1 persona"):
        write(tmp_path, [parts[1]._replace(rows=[], counts=Counter(personas=1))], "32k")
    with pytest.raises(ZeroDivisionError):
        write(tmp_path, (1 / 0 if part.rows else part for part in parts), "32k")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    table, contexts = write(tmp_path, parts, "32k")
    manifest = read_manifest(table)
    assert (manifest["output_sha256"], manifest["contexts_sha256"]) == (file_hash(table), file_hash(contexts))


@pytest.mark.parametrize("number", range(4))  # of renamings before the kill: two manifests and two files
def test_a_kill_between_two_files_leaves_both_to_be_replaced(tmp_path, number):
    folder = save(tmp_path / "in", tiny_files({"a": [entry_of(1)]}))
    older, newer = (parts_of(folder, "32k", seed=seed) for seed in (0, 1))
    paths = write(tmp_path, older, "32k")
    texts, rename, done = [path.read_bytes() for path in paths], os.replace, []
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    else:
        os.replace = lambda *names: os._exit(9) if len(done) == number else (done.append(names), rename(*names))
        write(tmp_path, newer, "32k")
    table, contexts = paths
    assert [path.read_bytes() == text for path, text in zip(paths, texts, strict=True)] == [True, number < 2]
    assert all(manifest_of(path, or_older=True) for path in paths)
    assert [manifest_of(path) is not None for path in paths] == [number < 3, number != 1]
    write(tmp_path, newer, "32k")
    assert all(map(manifest_of, paths)) and table.read_bytes() != texts[0] and not list(tmp_path.glob("*.tmp"))
    assert read_manifest(table)["contexts_sha256"] == file_hash(contexts)
