"""Write the asker's intent and then the answer, in one text: IAP (arXiv 2605.12645) without its training.

Profiles must be lists of posts. A text with nothing below the heading "Answer" is unusable. Unlike in the paper, the
model is not trained (IAP uses DAPO), the prompt has the best --num_contexts posts instead of the first 1,024 tokens of
the profile, and headings replace the paper's tags.
"""

import re

PROMPT = """[system]
You answer a particular person's question in the way that serves this person best. Before you answer, you write down what the person is after.
[user]
What the person wrote earlier:
{profile}

The person's question:
{question}

Write four parts, each with its heading:
Thoughts: what the question and the earlier texts say about the person, in a few sentences.
Intent: a list of what the person may be after, the most important first.
Approach: how the answer can serve this intent, in a few sentences.
Answer: the answer itself. The person reads only this part."""  # noqa: E501
HEADING = r"(?mi)^[\W\d_]*+{}\b[*_\s]*(?::[*_]*|$)"  # also in Markdown
INTENT, APPROACH, ANSWER = (re.compile(HEADING.format(name)) for name in ("intent", "approach", "answer"))


def read_answer(text):
    return "".join(ANSWER.split(text, 1)[1:]).strip() or None


async def answer(record, ask):
    reply = await ask.record(PROMPT, items=record.best(ask.num_contexts), parse=read_answer)
    if reply["value"] is not None:
        before = ANSWER.split(reply["raw"], 1)[0]
        ask.note(intent=APPROACH.split("".join(INTENT.split(before, 1)[1:]), 1)[0].strip())
    return reply["value"]
