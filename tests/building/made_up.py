"""Made-up output of the steps before assembly: conversations, small talk and questions, with realistic lengths."""

import random
from datetime import date, timedelta

from utils.benchmarks.personamem.task import TYPES
from utils.building.personas.inputs import PERIODS

TEXT = """
about after again always another around because before between bread bring change coffee different early enough
evening family favourite feel felt found friend garden great happy house idea know last learn leave letter light
little local long look market maybe morning music never often once people place quiet read really river season share
since small something start still story street summer taste there thing think though through together train travel
under until usually walk want water week while wonder work world would year yesterday
"""
WORDS = TEXT.split()
UPDATED, IN_TEXT, AT_END = list(TYPES)[3], list(TYPES)[:3], list(TYPES)[4:]


def sentences(rng, number):
    return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(10, 24))).capitalize() + "." for _ in range(number))


def make_events(rng, topic, counts):
    """Dated events per period; half of them change an earlier one of the same thing."""
    day, last, periods = date(2001, 1, 1), {}, {}
    for period, count in zip(PERIODS, counts, strict=False):
        periods[period] = []
        for number in range(count):
            day += timedelta(rng.randint(1, 9))
            old = rng.choice(list(last.values())) if last and period != "init" and number % 2 == 0 else None
            thing = old["thing"] if old else f"{topic} {period} {number}"
            liked = not old["is_liked"] if old else rng.random() < 0.5
            event = {"date": day.isoformat(), "event": sentences(rng, 1), "thing": thing, "is_liked": liked}
            event |= {"is_long_term": True, "changes": old and old["date"], "reason": "so" if old else None}
            periods[period].append(last.setdefault(thing, event) if thing not in last else event)
            last[thing] = event
    return periods


def make_conversation(rng, topic, counts, turns=1, lengths=(5, 10)):
    events = make_events(rng, topic, counts)

    def section(name):
        said = [{"user": sentences(rng, lengths[0]), "assistant": sentences(rng, lengths[1])} for _ in range(turns)]
        return {"event": name, "turns": said}

    periods = {name: {"today": its[-1]["date"], "events": its, "sections": [section(one["date"]) for one in its]}
               for name, its in events.items()}  # fmt: skip
    periods["init"]["sections"].insert(0, section(None))
    speakers = ["Patient", "Therapist"] if topic == "therapy" else ["User", "Assistant"]
    return {"speakers": speakers, "hobbies": [], "periods": periods}


def make_questions(rng, key, conversation):
    events = {one["date"]: (period, one) for period, its in conversation["periods"].items() for one in its["events"]}
    entries = []
    for day, (period, event) in events.items():
        own, old = {"period": period, "event": day}, event["changes"]
        before = {"period": events[old][0], "event": old} if old else None
        later = [its for its, one in events.values() if one["thing"] == event["thing"] and one["date"] > day]
        for kind in [*IN_TEXT, UPDATED, *AT_END] if old else IN_TEXT:
            in_text = old and kind not in AT_END
            lines = {one["event"]: one["turns"][0]["user"] for one in conversation["periods"][period]["sections"]}
            text = lines[day] if kind == UPDATED else sentences(rng, 2)
            entry = {"id": f"{key}/{day}/{kind}", "type": kind, "period": period, "event": day, "question": text}
            entry |= {"answer": sentences(rng, 3), "wrong": [sentences(rng, rng.randint(2, 4)) for _ in range(3)]}
            entry |= {"place": own if in_text else None, "reference": before if in_text else own, "num_updates": 1}
            entry |= {"later_update": any(one != period for one in later), "is_stereotypical": rng.random() < 0.1}
            entry |= {"is_line": kind == UPDATED, "blind": rng.choices([True, False, None], k=3)}
            entries.append(entry)
    return entries


def make_inputs(personas=2, topics=4, counts=(20, 10, 10, 10), pieces=30, seed=0, **how):
    """The content of the four files, by name; a persona's part depends on its number and the seed alone."""
    names = ["therapy", *(f"topic{number}" for number in range(topics - 1))]
    files = {name: {} for name in ("personas", "conversations", "small_talk", "questions")}
    rng = random.Random(f"{seed} small talk")
    for number in range(pieces):
        turns = [{"user": sentences(rng, 2), "assistant": sentences(rng, 10)} for _ in range(2)]
        files["small_talk"][str(number)] = {"value": turns}
    for persona in map(str, range(personas)):
        rng = random.Random(f"{seed} {persona}")
        files["personas"][persona] = {"value": {"persona": "x", "card": sentences(rng, 5), "general": {}}}
        for key, topic in ((f"{persona}/{topic}", topic) for topic in names):
            conversation = make_conversation(rng, topic, counts, **how)
            files["conversations"][key] = {"value": conversation}
            files["questions"][key] = {"value": make_questions(rng, key, conversation)}
    return files
