"""Check a table of questions and its histories against the files that they were made from, by texts alone.

Shares no code with the assembly: blocks are found by what is said in them, lengths and distances are computed again.
"""

import ast
import csv
import hashlib
import json
from collections import Counter, defaultdict
from itertools import accumulate, pairwise

PERIODS = ["init", "next_week", "next_month", "next_year"]
TURNS = {"system": {"user"}, "user": {"assistant"}, "assistant": {"user", "system"}}  # what may follow


def check(questions, contexts, folder, most_tokens, count_tokens, variants=2):
    """Return faults, one line each; `folder` has the input files, `count_tokens` gives a number for each text."""
    files = {name: values_of(folder, name) for name in ("personas", "conversations", "small_talk", "questions")}
    entries, asked, in_use, faults = defaultdict(list), defaultdict(list), defaultdict(set), []
    for key, its in files["questions"].items():
        for entry in its:
            entries[key, *identity(entry, [entry["answer"], *entry["wrong"]])].append(entry)
    lines = [json.loads(line) for line in contexts.read_text(encoding="utf-8").splitlines()]
    histories = {name: History(messages, files, count_tokens) for line in lines for name, messages in line.items()}
    with questions.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    faults += twice([name for line in lines for name in line]) + twice([row["question_id"] for row in rows])
    for row in rows:
        history, options = histories[row["shared_context_id"]], ast.literal_eval(row["all_options"])
        in_use[row["persona_id"]].add(row["shared_context_id"])
        key = f"{row['persona_id']}/{row['topic']}"
        told = {"type": row["question_type"], "question": row["user_question_or_message"]}
        found = entries[key, *identity(told, [option.split(" ", 1)[1] for option in options])]
        tried = [(row_faults(row, options, entry, history), entry["id"]) for entry in found]
        wrong, name = min(tried, key=lambda one: len(one[0]), default=(["not one of the questions"], key))
        faults += [f"{row['question_id']}: {fault}" for fault in wrong]
        asked[name].append(row["shared_context_id"])
    for name, its in asked.items():
        if len(its) != variants or {*its} != in_use[name.split("/")[0]]:
            faults.append(f"{name}: asked {len(its)} times, of {len({*its})} histories")
    for name, history in histories.items():
        others = [histories[other] for other in in_use[history.persona]]
        faults += [f"{name}: {fault}" for fault in history.faults(name, most_tokens)]
        faults += [f"{name}: other blocks than in a variant"] * any(
            {*one.starts} != {*history.starts} for one in others
        )
        faults += [f"{name}: not asked anything"] * (name not in in_use[history.persona])
    return faults


def values_of(folder, name):
    file = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {key: entry["value"] for key, entry in file.items() if entry["value"]}


def identity(entry, options):
    return entry["type"], entry["question"], *sorted(options)


def twice(names):
    return [f"{name}: twice" for name, number in Counter(names).items() if number > 1]


def said_in(speakers, turns):
    return [f"{speaker}: {turn[role]}" for turn in turns
            for speaker, role in zip(speakers, ("user", "assistant"), strict=True)]  # fmt: skip


class History:
    """A history; `starts` has the message that opens each block, `places` the first one of each section."""

    def __init__(self, messages, files, count_tokens):
        self.messages, self.starts, self.places = messages, {}, {}
        self.texts, self.small_talk, self.wrong = [message["content"] for message in messages], set(), []
        cards = {f"Current user persona: {value['card']}": name for name, value in files["personas"].items()}
        self.persona = cards[self.texts[0]]
        self.tokens = count_tokens(self.texts)
        self.before = list(accumulate(self.tokens, initial=0))
        small_talk = [said_in(["User", "Assistant"], piece) for piece in files["small_talk"].values()]
        known = {}
        for key, talk in files["conversations"].items():
            for period, its in talk["periods"].items():
                said = [
                    (one["event"], text) for one in its["sections"] for text in said_in(talk["speakers"], one["turns"])
                ]
                known[key, period, tuple(text for _, text in said)] = [event for event, _ in said]
        cards = [place for place, message in enumerate(messages) if message["role"] == "system"]
        for start, end in pairwise([*cards, len(messages)]):
            said = self.texts[start + 1 : end]
            block = next((block for block in known if said[: len(block[-1])] == [*block[-1]]), ("", "", ()))
            topic, period, texts = block
            if (
                topic.split("/")[0] != self.persona
                or self.texts[start] != self.texts[0]
                or (topic, period) in self.starts
            ):
                self.wrong.append(f"message {start} opens no block of {self.persona}, or one that was there")
            self.starts[topic, period] = start
            for place, event in enumerate(known.get(block, []), start + 1):
                self.places.setdefault((topic, period, event), place)
            rest = said[len(texts) :]
            self.small_talk |= {*range(end - len(rest), end)}
            if any(rest[place : place + 4] not in small_talk for place in range(0, len(rest), 4)):
                self.wrong.append(f"message {end - len(rest)} is neither of the block nor small talk")

    def faults(self, name, most_tokens):
        roles = [message["role"] for message in self.messages]
        digest = hashlib.sha256(json.dumps(self.messages, ensure_ascii=False).encode()).hexdigest()
        is_in_turn = all(after in TURNS[before] for before, after in pairwise(roles)) and roles[-1] == "assistant"
        yield from self.wrong
        yield from ["its id is not its hash"] * (digest != name) + ["roles do not take turns"] * (not is_in_turn)
        yield from [f"{self.before[-1]} tokens"] * (self.before[-1] > most_tokens)
        for topic in {topic for topic, _ in self.starts}:
            periods = [period for its, period in self.starts if its == topic]
            yield from [f"{topic}: {periods}"] * (periods != PERIODS[: len(periods)])


def row_faults(row, options, entry, history):
    """Return what is wrong with a row if it asks this question."""
    key = f"{row['persona_id']}/{row['topic']}"
    begin, end = (
        one and history.places.get((key, one["period"], one["event"]), -1)
        for one in (entry["reference"], entry["place"])
    )
    end = len(history.messages) if end is None else end
    if not 0 < begin < end:
        return [f"refers to message {begin} and is asked before message {end}"]
    length, distance = history.before[end], history.before[end] - history.before[begin]
    last = min(end, len(history.messages) - 1)
    expected = {
        "end_index_in_shared_context": end,
        "context_length_in_tokens": length,
        "context_length_in_letters": sum(map(len, history.texts[:end])),
        "distance_to_ref_in_tokens": distance,
        "distance_to_ref_in_blocks": 1 + sum(begin < start <= last for start in history.starts.values()),
        "num_irrelevant_tokens": sum(history.tokens[place] for place in history.small_talk if place < end),
        "distance_to_ref_proportion_in_context": f"{distance / length:.2%}",
        "stereotypical": "Yes" if entry["is_stereotypical"] else "No",
    }
    right = [option for option in options if option == f"{row['correct_answer']} {entry['answer']}"]
    faults = [f"{name} is {row[name]}, not {value}" for name, value in expected.items() if row[name] != str(value)]
    return faults + ([] if right else [f"{row['correct_answer']} is not the right option"])
