"""Check a table of questions and its histories against its input files, by texts alone.

It shares no code with the assembly: it finds places by their text, and computes lengths and distances again.
"""

import ast
import csv
import hashlib
import json
from collections import defaultdict
from itertools import accumulate, pairwise

TURNS = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "system"}}  # what may follow


def check(questions, contexts, folder, most_tokens, count_tokens, variants=2):
    """Return faults, one line each; `folder` has the input files, `count_tokens` gives a number for each text."""
    conversations, asked_of = (values_of(folder, name) for name in ("conversations", "questions"))
    lines = [json.loads(line) for line in contexts.read_text(encoding="utf-8").splitlines()]
    histories = {name: messages for line in lines for name, messages in line.items()}
    with questions.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    faults = ["a repeated id"] * (len({row["question_id"] for row in rows}) < len(rows))
    tokens = {}
    for name, messages in histories.items():
        roles = [message["role"] for message in messages]
        digest = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()
        tokens[name] = count_tokens([message["content"] for message in messages])
        in_turn = all(after in TURNS[before] for before, after in pairwise(roles)) and roles[-1] == "assistant"
        faults += [f"{name}: its id, turns or {sum(tokens[name])} tokens"] * (
            digest != name or not in_turn or sum(tokens[name]) > most_tokens
        )
    asked, in_use = defaultdict(list), defaultdict(set)
    for row in rows:
        key, name = f"{row['persona_id']}/{row['topic']}", row["shared_context_id"]
        options = [option.split(" ", 1)[1] for option in ast.literal_eval(row["all_options"])]
        told = row["question_type"], row["user_question_or_message"], sorted(options)
        found = [one for one in asked_of[key] if told == (one["type"], one["question"], options_of(one))]
        texts = [message["content"] for message in histories[name]]
        tried = [(row_faults(row, one, conversations[key], texts, tokens[name]), one["id"]) for one in found]
        wrong, entry = min(tried, key=lambda one: len(one[0]), default=(["not one of the questions"], key))
        faults += [f"{row['question_id']}: {fault}" for fault in wrong]
        asked[entry].append(name)
        in_use[row["persona_id"]].add(name)
    for one, its in asked.items():
        if len(its) != variants or {*its} != in_use[one.split("/")[0]]:
            faults.append(f"{one}: asked {len(its)} times, of {len({*its})} histories")
    return faults


def values_of(folder, name):
    file = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {key: entry["value"] for key, entry in file.items() if entry["value"]}


def options_of(entry):
    return sorted([entry["answer"], *entry["wrong"]])


def row_faults(row, entry, conversation, texts, tokens):
    """Return the faults of a row if it asks this question."""

    def place_of(where):
        sections = conversation["periods"][where["period"]]["sections"]
        first = next(one["turns"][0]["user"] for one in sections if one["event"] == where["event"])
        return texts.index(f"{conversation['speakers'][0]}: {first}")

    begin = place_of(entry["reference"])
    end = place_of(entry["place"]) if entry["place"] else len(texts)
    if not 0 < begin < end:
        return [f"refers to message {begin} and is asked before message {end}"]
    before = list(accumulate(tokens, initial=0))
    expected = {
        "end_index_in_shared_context": end,
        "context_length_in_tokens": before[end],
        "context_length_in_letters": sum(map(len, texts[:end])),
        "distance_to_ref_in_tokens": before[end] - before[begin],
        "distance_to_ref_proportion_in_context": f"{(before[end] - before[begin]) / before[end]:.2%}",
        "stereotypical": "Yes" if entry["is_stereotypical"] else "No",
    }
    faults = [f"{name} is {row[name]}, not {value}" for name, value in expected.items() if row[name] != str(value)]
    is_right = f"{row['correct_answer']} {entry['answer']}" in ast.literal_eval(row["all_options"])
    return faults if is_right else [*faults, f"{row['correct_answer']} is not the right option"]
