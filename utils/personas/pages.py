"""The sections of each step's page to read (utils/building/reading_page.py)."""

from collections.abc import Iterator, Sequence
from typing import Any

from utils.benchmarks.personamem import TYPES
from utils.building.reading_page import Section, Shown

Made = dict[str, Any]  # the values of a step's file by id


def of_conversations(made: Made) -> Iterator[Section]:
    kept = []
    for key, topic in made.items():
        for period, its in topic["periods"].items():
            told = {one["date"]: f"{one['date']}: {one['event']} ({_opinion(one)})" for one in its["events"]}
            for section in its["sections"]:
                title = told.get(section["event"], "Introduction")
                kept.append(Shown(f"{key}, {period}", title, _lines(section["turns"], topic["speakers"]), ""))
    yield Section(
        "Conversations", "Does the user mention the event, and say what they think?", {"sections": len(kept)}, kept
    )


def of_small_talk(made: Made) -> Iterator[Section]:
    kept = [Shown(key, turns[0]["user"], _lines(turns, ["User", "Assistant"]), "") for key, turns in made.items()]
    yield Section("Small talk", "Does it reveal nothing about the user?", {"conversations": len(kept)}, kept)


def of_questions(made: Made) -> Iterator[Section]:
    for type_ in TYPES:
        entries = [entry for its in made.values() for entry in its if entry["type"] == type_]
        kept = [Shown(one["id"], one["question"], _options(one), "") for one in entries]
        yield Section(type_, "Is the right answer right, and are the others wrong?", {"questions": len(kept)}, kept)


SECTIONS = {"conversations": of_conversations, "small_talk": of_small_talk, "questions": of_questions}


def _opinion(event: Made) -> str:
    return f"{'likes' if event['is_liked'] else 'dislikes'} {event['thing']}"


def _options(entry: Made) -> str:
    return "\n".join([f"Right: {entry['answer']}", *(f"Wrong: {text}" for text in entry["wrong"])])


def _lines(turns: Sequence[dict[str, str]], speakers: Sequence[str]) -> str:
    user, assistant = speakers
    return "\n".join(f"{user}: {turn['user']}\n{assistant}: {turn['assistant']}" for turn in turns)
