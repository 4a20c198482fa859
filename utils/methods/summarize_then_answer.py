"""Two calls: summarize what the asker's posts say about them, then answer with that summary instead of the posts."""

SUMMARIZE = """[system]
You read what a person has written and describe that person for someone who will answer their next question.
[user]
Describe in at most five sentences what matters to this person: their interests, their situation, and what they expect
from an answer. Write only the description.

Their posts:
{profile}"""


async def answer(record, ask):
    posts = record.best(ask.num_contexts)
    if not posts:
        return await ask("none")
    summary = await ask(SUMMARIZE, items=posts, max_tokens=256)
    ask.note(summary=summary)
    return await ask("rag", items=[summary] if summary else posts)
