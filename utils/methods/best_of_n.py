"""Sample n answers with the RAG prompt, and let a judge that sees question and posts, but no rubric, choose the best.

--set n=16 sets n (default: 8). The judge is the generator, or another model with --model judge=MODEL --set judge=judge:
a chat model, which marks each answer from 1 to 10, or a reward model.
"""

import re
from math import inf

JUDGE = """[system]
You judge how well an answer fits the person who asked.
[user]
Their posts:
{profile}

The question:
{question}

The answer:
{candidate}

How well does the answer cover what this person cares about, from 1 (not at all) to 10 (completely)? Write only
the number."""


def read_mark(text):
    match = re.fullmatch(r"\D*(10|[1-9])\D*", text)
    return int(match[1]) if match else None


async def answer(record, ask):
    posts = record.best(ask.num_contexts)
    candidates = await ask("rag", items=posts, n=int(ask.settings.get("n", 8)), temperature=1.0)
    judge, marks = ask.settings.get("judge", "generator"), {}
    for candidate in dict.fromkeys(candidates):
        if candidate is not None and ask.steps.model(judge).gives_rewards:
            marks[candidate] = await ask.reward(candidate, model=judge)
        elif candidate is not None:
            options = {"candidate": candidate, "model": judge, "max_tokens": 8, "temperature": 0.0}
            marks[candidate] = await ask(JUDGE, items=posts, parse=read_mark, **options)
    if not marks:
        return None
    readable = [mark for mark in marks.values() if mark is not None]
    ask.note(num_candidates=len(marks), mark=max(readable, default=None))
    return max(marks, key=lambda candidate: -inf if marks[candidate] is None else marks[candidate])  # tie: the first
