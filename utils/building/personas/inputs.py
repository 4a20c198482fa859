"""The user's inputs (persona sentences, topics, questions for small talk), random draws, and files of earlier steps."""

import random
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json, read_json_lines, read_text, read_toml
from utils.base.manifest import file_hash

PERIODS = ("init", "next_week", "next_month", "next_year")  # of a history, in order
SAMPLES = Path(__file__).parent / "samples"
FIRST_YEAR, LAST_YEAR = 1920, 2010  # in which a persona's history may begin; later years are more likely
RECENT, RECENT_WEIGHT = 1991, 3  # years from this one on have a weight three times as high
AGE = 18  # a persona's age in the first year of its history
MOST_DAYS = 7 * 365  # between the start of a persona's history and of a topic's
GENDERS, TRANSGENDER = ("female", "male", "non-binary"), 0.2
GROUPS = (
    "African American", "Caribbean", "East Asian", "Hispanic", "Indigenous", "Middle Eastern", "Pacific Islander",
    "South Asian", "White",
)  # fmt: skip


class Topic(msgspec.Struct):
    """A topic that users talk about with an assistant."""

    about: str  # for prompts
    speakers: tuple[str, str] = ("User", "Assistant")  # names at the beginning of their lines
    conversation: list[str] = []  # an example; user and assistant take turns

    @property
    def example(self) -> str:
        return "\n".join(f"{self.speakers[number % 2]}: {turn}" for number, turn in enumerate(self.conversation))


def read_personas(path: Path) -> list[str]:
    """Return the sentences of a JSON Lines file of {"persona": ...}; UserError if a line has another form."""
    sentences = []
    for number, line in enumerate(read_json_lines(path), 1):
        sentence = line.get("persona") if isinstance(line, dict) else None
        if not isinstance(sentence, str) or not sentence.strip():
            raise UserError(f'{path}: line {number}: not {{"persona": "one sentence"}}')
        sentences.append(" ".join(sentence.split()))
    return sentences


def read_topics(path: Path, wanted: list[str] | None) -> dict[str, Topic]:
    """Read the wanted topics of a TOML file by name, or all; UserError if one is missing or malformed."""
    tables = read_toml(path)
    if unknown := [name for name in wanted or () if name not in tables]:
        raise UserError(f"{path}: no topic {quote(unknown[0])}; the topics are {', '.join(tables)}")
    topics = {}
    for name in wanted or tables:
        if not name.isidentifier():
            raise UserError(f"{path}: topic {quote(name)}: a topic's name may have only letters, digits and _")
        try:
            topics[name] = msgspec.convert(tables[name], Topic)
        except msgspec.ValidationError as error:
            example = 'about = "what the conversations are about"'
            raise UserError(
                f"{path}: topic {quote(name)}: {error}\n  write a topic as in this example: {example}"
            ) from None
    if not topics:
        raise UserError(f'{path}: has no topics; add a table such as [cooking] with about = "..."')
    return topics


def read_small_talk(path: Path) -> list[str]:
    """Return the questions of a text file, one per line; UserError if it has none."""
    questions = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not questions:
        raise UserError(f"{path}: has no questions; write one per line")
    return questions


def hash_of_step(path: Path) -> str:
    """Return the hash of a step's file; UserError if it is missing."""
    if not path.is_file():
        step = "conversations" if path.stem == "personas" else path.stem
        raise UserError(f"{path}: no such file; run --step {step} first")
    return file_hash(path)


def read_values(path: Path) -> dict[str, Any]:
    """Return the values in a step's file by key, None for records without one; UserError if there is no valid file."""
    hash_of_step(path)
    pieces = read_json(path)
    if not isinstance(pieces, dict) or not all(
        isinstance(piece, dict) and "value" in piece for piece in pieces.values()
    ):
        raise UserError(f"{path}: not a file of utils/build_personamem.py")
    return {key: piece["value"] for key, piece in pieces.items()}


def draw_personas(sentences: list[str], first: int, end: int, seed: int) -> list[dict[str, Any]]:
    """Return the personas `first` to `end` - 1 of an order drawn by the seed, each with its other random draws.

    A number means the same persona in every range, as long as the number of sentences stays the same.
    """
    order = random.Random(f"{seed}:personas").sample(range(len(sentences)), len(sentences))
    personas = []
    for number in range(first, end):
        draw = random.Random(f"{seed}:persona:{number}")
        years = range(FIRST_YEAR, LAST_YEAR + 1)
        weights = [(year - FIRST_YEAR + 1) * (RECENT_WEIGHT if year >= RECENT else 1) for year in years]
        year = draw.choices(years, weights)[0]
        gender = ("transgender " if draw.random() < TRANSGENDER else "") + draw.choice(GENDERS)
        persona = {"id": str(number), "persona": sentences[order[number]], "gender": gender}
        persona |= {"ethnicity": draw.choice(GROUPS), "birth_year": year - AGE}
        personas.append(persona | {"start": (date(year, 1, 1) + timedelta(draw.randrange(365))).isoformat()})
    return personas


def draw_start(start: str, persona: str, topic: str, seed: int) -> str:
    """Return the date on which a topic's history begins, up to `MOST_DAYS` after the persona's.

    It does not depend on other topics, so topics can be added; the paper's code adds up to a year per topic.
    """
    days = random.Random(f"{seed}:start:{persona}:{topic}").randrange(MOST_DAYS)
    return (date.fromisoformat(start) + timedelta(days)).isoformat()
