"""Prompts: one text file a prompt, a `[system]` and a `[user]` part in each; README.md says where they come from.

Pure apart from reading those files. Values are put in as they are: braces, quotes or another placeholder's name
inside a post stay what they were.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from utils.cli import UserError
from utils.records import read_text

Messages = list[dict[str, str]]

# What each prompt is filled with. Every placeholder stands in its file exactly once.
PLACEHOLDERS = {
    "no_personalization": {"question"},
    "rag": {"profile", "question"},
    "planpers": {"profile", "question", "plan"},
    "planner": {"profile", "question"},
    "aspect_judge": {"question", "details", "response", "aspect", "reason", "evidence"},
    "direct_judge": {"question", "details", "response"},
    "pairwise_judge": {"question", "details", "response_1", "response_2"},
    "factoid_filter": {"question", "post"},
    "aspect_extraction": {"question", "post"},
}


@dataclass(frozen=True)
class Prompt:
    """A prompt's two parts, and the SHA-256 of its file."""

    name: str
    system: str
    user: str
    digest: str

    def messages(self, **values: str) -> Messages:
        """The chat messages with every placeholder replaced by its value, in one pass.

        A paragraph whose placeholders are all empty is left out with its heading, such as the one of the past posts
        where there are none.
        """
        assert values.keys() == PLACEHOLDERS[self.name], f"{self.name} takes {PLACEHOLDERS[self.name]}"
        pattern = _placeholder_pattern(self.name)

        def fill(part: str) -> str:
            paragraphs = _paragraphs(self.name, part)
            kept = [text for text, names in paragraphs if not names or any(values[name] for name in names)]
            return pattern.sub(lambda match: values[match[1]], "\n\n".join(kept))

        return [{"role": role, "content": fill(part)} for role, part in (("system", self.system), ("user", self.user))]


def load_prompt(name: str, prompts_dir: str | Path | None = None) -> Prompt:
    """Read a prompt: from `prompts_dir` if that folder has a file of this name, else the one shipped here.

    Raises:
        UserError: the folder is missing or holds no known prompt, or the file lacks a part or a placeholder, or
            has one that is not filled.
    """
    path = Path(__file__).parent / f"{name}.txt"
    if prompts_dir is not None:
        _check_folder(Path(prompts_dir))
        own = Path(prompts_dir) / path.name
        path = own if os.path.lexists(own) else path  # a link to nothing is not to go unnoticed
    text = read_text(path)
    parts = re.fullmatch(r"\[system\]\n(.*)\n\[user\]\n(.*)", text.rstrip("\n"), re.DOTALL)
    if parts is None:
        raise UserError(f"{path}: a prompt is a line [system], its text, a line [user], its text")
    found = re.findall(r"\{([A-Za-z_]\w*)\}", text)
    if sorted(found) != sorted(PLACEHOLDERS[name]):
        wanted = ", ".join(f"{{{placeholder}}}" for placeholder in sorted(PLACEHOLDERS[name]))
        raise UserError(f"{path}: must hold each of {wanted} exactly once, and no other name in braces")
    return Prompt(name, parts[1], parts[2], hashlib.sha256(text.encode()).hexdigest())


def join_posts(texts: list[str]) -> str:
    """The profile block of a prompt: the posts, best first, a blank line between them."""
    return "\n\n".join(texts)


@cache
def _paragraphs(name: str, part: str) -> list[tuple[str, list[str]]]:
    """Each paragraph of a prompt's part, with the placeholders in it."""
    pattern = _placeholder_pattern(name)
    return [(paragraph, pattern.findall(paragraph)) for paragraph in part.split("\n\n")]


@cache
def _placeholder_pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"\{(" + "|".join(sorted(PLACEHOLDERS[name])) + r")\}")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--prompts_dir {folder}: no such folder")
    known = {f"{name}.txt" for name in PLACEHOLDERS}
    names = {file.name for file in folder.glob("*.txt")}
    if not names or names - known:
        problem = f"{min(names - known)} is no prompt's name" if names else "holds no prompt"
        raise UserError(f"--prompts_dir {folder}: {problem}; a prompt is one of {', '.join(sorted(known))}")
