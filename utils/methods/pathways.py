"""Pathways of Thoughts (arXiv 2509.19094): several different lines of thought, combined by the asker's preferences.

This follows only the paper's abstract. On each path, the model chooses its operations itself and then answers. One more
call combines the paths' answers according to the preferences that the posts reveal. Not from the paper are the prompts,
the 4 paths (--set paths=N), the limit of 3 operations per path (--set steps=N), and temperature 1 for the operations.
"""

import asyncio
import re

OPERATIONS = {
    "reason": "work out facts and steps that the answer needs",
    "personalize": "relate the question to this user's situation, as their posts show it",
    "clarify": "name what the question leaves open, and decide what this user most likely means",
    "revise": "correct or improve the thoughts so far",
    "answer": "the thoughts are sufficient; write nothing else",
}
STEP = """[system]
You think about a user's question before it is answered. This is path {path} of {paths}: unless it is path 1, think in a direction other than the obvious one.
[user]
The user's past posts:
{profile}

The user's current question:
{question}

Thoughts so far:
{thoughts}

Choose the next operation:
{operations}

Write its name on the first line and its result below."""  # noqa: E501

ANSWER = """[user]
The user's past posts:
{profile}

The user's current question:
{question}

Thoughts on it:
{thoughts}

Answer the question for this user, drawing on these thoughts. Write only the answer."""

PREFERENCES = """[user]
The user's past posts:
{profile}

What does this user prefer in answers to their questions? List at most five preferences, the most important first, one
per line. Write only the list."""

MIX = """[user]
The user's current question:
{question}

This user's preferences, the most important first:
{preferences}

Answers from several lines of thought:
{answers}

Combine the parts of them that best serve these preferences into one answer. Write only the answer."""


def read_step(text):
    """Return the operation that the text names first, and the text after it; None if it names none."""
    match = re.match(rf"\W*({'|'.join(OPERATIONS)})\b\W*(.*)", text.strip(), re.DOTALL | re.IGNORECASE)
    return match and (match[1].lower(), match[2].strip())


async def follow(posts, path, paths, steps, ask):
    """Return the answer at the end of a path, and the number of operations on it."""
    thoughts = []
    operations = "\n".join(f"- {name}: {what}" for name, what in OPERATIONS.items())
    common = {"path": path, "paths": paths, "operations": operations, "temperature": 1.0, "max_tokens": 512}
    for _ in range(steps):
        so_far = "\n\n".join(thoughts) or "none"
        step = await ask(STEP, items=posts, thoughts=so_far, parse=read_step, **common)
        if step is None or step[0] == "answer":
            break
        thoughts.append(f"{step[0]}: {step[1]}")
    return await ask(ANSWER, items=posts, thoughts=f"(path {path})\n\n" + "\n\n".join(thoughts)), len(thoughts)


async def answer(record, ask):
    posts = record.best(ask.num_contexts)
    paths, steps = (int(ask.settings.get(name, default)) for name, default in (("paths", 4), ("steps", 3)))
    preferences = await ask(PREFERENCES, items=posts, max_tokens=256) if posts else None
    outcomes = await asyncio.gather(*(follow(posts, path, paths, steps, ask) for path in range(1, paths + 1)))
    answers = [text for text, _ in outcomes if text is not None]
    ask.note(preferences=preferences, num_steps=[number for _, number in outcomes])
    if len(answers) < 2:
        return answers[0] if answers else None
    listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(answers, 1))
    return await ask(MIX, preferences=preferences or "unknown", answers=listed) or answers[0]
