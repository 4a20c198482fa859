"""Find texts that only the scorer may see, but that a question's profile shows to every method."""

from collections.abc import Iterator

from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task


def find_leaks(task: Task, record: Record) -> Iterator[str]:
    """Yield, for each profile item, the names of the hidden texts that it contains word for word, each name once."""
    hidden = [(name, padded(text)) for name, text in task.hidden(record) if isinstance(text, str) and text.strip()]
    profile = record.get("profile")
    items = [item.get("text") for item in profile if isinstance(item, dict)] if isinstance(profile, list) else []
    texts = [padded(text) for text in items if isinstance(text, str)] if hidden else []
    whole = "\n".join(texts)  # searched first as one text, because most profiles contain no hidden text
    hidden = [(name, hidden_text) for name, hidden_text in hidden if hidden_text in whole]
    for text in texts if hidden else ():
        yield from dict.fromkeys(name for name, hidden_text in hidden if hidden_text in text)


def padded(text: str) -> str:
    """Return the text with one space before and after each word, so that a search finds only whole words."""
    return f" {' '.join(text.split())} "
