"""Think and search in up to four turns, then answer: PR2 (arXiv 2602.19317) without its training.

In each turn, the model writes thoughts and a query, and gets the best k posts (--set k=3) that it has not seen yet; or
it writes that it knows enough. The answer is then written with the benchmark's RAG prompt and all posts found, or if
there are none, with the best --num_contexts posts. With PersonaMem, the posts are turns of a history.

PR2 learns by GRPO when to search, and for what; here, nothing is trained. The turns are a dialogue without tags, which
any chat API supports, and the final prompt does not contain the thoughts. The prompts are this project's own.

With --set bare=first, each question's first sample is answered without a search, as training like PR2's requires
(docs/beyond_planpers.md).
"""

import re
from dataclasses import replace

FIRST = """[system]
You find out what to know about a person before their request is answered. You can search what they wrote earlier. Someone else then answers the request; do not answer it yourself.
[user]
The person asks:
{question}

In two or three sentences, think about what you need to know about this person. Then end with one line that begins with "Search:" and has a few words to search for."""  # noqa: E501
# Follows each search; "#" becomes the turn's number.
NEXT = """
[assistant]
{said#}
[user]
Found:
{posts#}

In two or three sentences, think about what this says about the person, and what you still need to know. Then end with one line: "Search:" and a few other words to search for, or only "Enough" if you know enough."""  # noqa: E501
LAST_LINE = re.compile(r"(?mi)^[\W_]*+(?:search\b[^:\n]{0,20}:[^\w\n]*+(?P<query>\w.*)|enough\b.*)$")


def read_turn(text):
    """Return the text up to the first "Search:" or "Enough" line, and the query (None for "Enough").

    Return None if the text has no such line.
    """
    line = LAST_LINE.search(text)
    return line and (text[: line.end()].strip(), line["query"] and line["query"].rstrip(" .\"'”’*_`"))


def join(searches, record):
    """Return the posts of several searches as one list, or as one history in chronological order."""
    if isinstance(searches[0], list):
        return [text for posts in searches for text in posts]
    items = [[posts.places[i] for i in item] for posts in searches for item in posts.items]
    fixed = [searches[0].places[i] for i in searches[0].fixed]
    return replace(record.best(None), fixed=fixed, items=items)


async def answer(record, ask):
    if ask.settings.get("bare") == "first" and ask.sample == 0:
        return await ask("rag", items=record.best(ask.num_contexts))
    dialogue, values, searches = FIRST, {}, []
    for number in (1, 2, 3, 4):
        turn, query = await ask(dialogue, parse=read_turn, max_tokens=512, **values) or (None, None)
        seen = [post_id for posts in searches for post_id in posts.ids]
        posts = await ask.search(query, int(ask.settings.get("k", 3)), exclude=seen) if query else None
        if posts is None or not posts.ids:
            break
        searches.append(posts)
        messages = [] if isinstance(posts, list) else posts.messages
        texts = [message["content"] for message in messages if message["role"] != "system"] or posts
        values |= {f"said{number}": turn, f"posts{number}": "\n\n".join(texts)}
        dialogue += NEXT.replace("#", str(number))
    ask.note(num_turns=number)
    return await ask("rag", items=join(searches, record) if searches else record.best(ask.num_contexts))
