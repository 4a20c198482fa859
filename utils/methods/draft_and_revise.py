"""Three calls: draft an answer from the posts, criticize it, revise it.

The critic is the generator, or another model with --model critic=MODEL --set critic=critic.
"""

CRITICIZE = """[system]
You check whether an answer fits the person who asked.
[user]
Their posts:
{profile}

The question:
{question}

The answer:
{draft}

Name the three most important things that this person would find missing from the answer, or that do not suit them.
Write only these, one per line."""

REVISE = """[user]
The question:
{question}

A draft of the answer:
{draft}

What the asker would criticize:
{critique}

Rewrite the answer so that it addresses this criticism, and keep what is good in the draft. Write only the answer."""


async def answer(record, ask):
    posts = record.best(ask.num_contexts)
    draft = await ask("rag", items=posts)
    if draft is None:
        return None
    critic = ask.settings.get("critic", "generator")
    critique = await ask(CRITICIZE, items=posts, draft=draft, model=critic, max_tokens=256)
    ask.note(draft=draft, critique=critique)
    if critique is None:
        return draft
    return await ask(REVISE, draft=draft, critique=critique) or draft
