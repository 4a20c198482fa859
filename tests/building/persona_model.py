"""A scripted model for utils/build_personamem.py, with a right reply to every prompt, made from the prompt alone.

The demo runs it as a server: `python tests/building/persona_model.py --port 8000`.
"""

import argparse
import hashlib
import json
import re
from datetime import date, timedelta
from typing import Any

from api_server import ChatServer, Reply, running, text_of

WORDS = "amber birch cedar delta ember fjord grove hazel inlet juniper kelp larch maple nectar olive pebble"


def numbers(text: str) -> list[int]:
    return list(hashlib.sha256(text.encode()).digest())


def words(text: str, number: int) -> str:
    choices = WORDS.split()
    return " ".join(choices[value % len(choices)] for value in numbers(text)[:number])


def after(text: str, begin: str, end: str) -> str:
    return re.search(rf"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)[1]


def sentences(text: str, number: int) -> str:
    return " ".join(f"{words(f'{text}{place}', 6).capitalize()}." for place in range(number))


def earlier_events(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    said = [json.loads(text_of(one)) for one in messages if one["role"] == "assistant"]
    return [event for one in said for event in one.get("events", [])]


def events(request: dict[str, Any], user: str) -> list[dict[str, Any]]:
    """Return as many events as requested; in later periods, three of four change the newest event about their thing."""
    messages = request["messages"]
    number, before = int(re.search(r"at least (\d+)", user)[1]), earlier_events(messages)
    begin = re.search(r"(?:after|from) (\d{4}-\d\d-\d\d)", user)[1]
    liked = next(
        (after(text_of(one), "likes: ", "\n\n").split("; ") for one in messages if "likes: " in text_of(one)), []
    )
    disliked = next(
        (after(text_of(one), "dislikes: ", "\n\n").split("; ") for one in messages if "dislikes: " in text_of(one)), []
    )
    things, made = liked + disliked, []
    for place in range(number):
        day = (date.fromisoformat(begin) + timedelta(1 + place * (30 if not before else 1))).isoformat()
        thing = things[(place + len(before)) % len(things)] if things else None
        last = next((one for one in reversed(before + made) if one.get("thing") == thing), None)
        changes = last["date"] if before and last and place % 4 else None
        one = {"date": day, "event": f"The {words(f'{begin}{place}', 3)} day", "is_long_term": place % 2 == 0}
        one |= {"changes": changes, "reason": f"because of {words(day, 2)}" if changes else None}
        if things:
            was = last["is_liked"] if last else thing in liked
            one |= {"thing": thing, "is_liked": was != bool(changes)}
        made.append(one)
    return made


def right_reply(request: dict[str, Any]) -> Any:
    """Return the JSON object that a prompt asks for, or a letter."""
    user = text_of(request["messages"][-1])
    seed = json.dumps([user, request.get("seed")])
    if "<final_answer>" in user:
        return f"<final_answer>({'abcd'[numbers(seed)[0] % 4]})"
    if '"card"' in user:
        return {"name": "Ada Quill", "card": f"Ada Quill is here. {sentences(user, 4)}"}
    if '{"hobbies"' in user:
        number = int(re.search(r"Name (\d+)", user)[1])
        return {
            "hobbies": [
                {"name": f"{words(f'{user}{i}', 2)} {i}", "is_stereotypical": i % 5 == 0} for i in range(number)
            ]
        }
    if '{"events"' in user:
        return {"events": events(request, user)}
    if '{"turns"' in user and "event" in user.rpartition("{")[2]:
        told = [json.loads(line) for line in user.splitlines() if line.startswith('{"date"')]
        turns = [
            {"event": one["date"], "user": f"I did it: {words(one['event'], 4)}.", "assistant": "I see."}
            for one in told
        ]
        first = {"event": None, "user": "Hello, it is me.", "assistant": "Hello."}
        return {"turns": [first, *turns] if "introduction" in user else turns}
    if '{"turns"' in user:
        said = next(json.loads(line) for line in user.splitlines() if line.startswith('{"user"'))
        return {
            "turns": [{"user": f"{said['user']} {sentences(user, 5)}", "assistant": f"{sentences(user + 'a', 10)}"}]
        }
    if '{"wrong"' in user:
        return {"wrong": [f"Wrong {place} {words(seed + str(place), 4)}." for place in range(3)]}
    if '{"question"' in user:
        return {"question": f"What of the {words(seed, 2)}?", "answer": f"Right {words(seed, 5)}."}
    return {"text": f"Told: {words(seed, 8)}."}


def reply(request: dict[str, Any]) -> Reply:
    found = right_reply(request)
    return Reply(found if isinstance(found, str) else json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    with running(ChatServer(reply, parser.parse_args().port)):
        import time

        time.sleep(1e6)
