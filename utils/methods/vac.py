"""Answer, get feedback that uses the narrative, and revise: the training data of one round of VAC (arXiv 2508.10695).

Needs --show_fields narrative, so it is for training sets; at test time, the trained policy answers alone (--rag). The
feedback model is the generator, or another model with --model feedback=MODEL --set feedback=feedback. With several
--num_generated_outputs, all samples revise the same greedy answer, each with its own feedback.
"""

REVISE = """[system]
You revise an answer so that it fits the user who asked.
[user]
The user's past post questions and detailed descriptions of these questions:
{profile}

The user's current question:
{question}

The answer so far:
{draft}

Feedback on it:
{feedback}

Write only the revised answer, and do not mention the feedback."""


def whole_text(text):
    return text.strip() or None


async def answer(record, ask):
    posts = record.best(ask.num_contexts)
    draft = await ask("rag", items=posts, temperature=0.0)
    if draft is None:
        return None
    values = {"answer": draft, "narrative": record["narrative"], "model": ask.settings.get("feedback", "generator")}
    feedback = await ask("feedback", items=posts, parse=whole_text, temperature=1.0, max_tokens=512, **values)
    ask.note(answer=draft, feedback=feedback)
    return feedback and await ask(REVISE, items=posts, draft=draft, feedback=feedback)
