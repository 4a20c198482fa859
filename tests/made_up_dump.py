"""Made-up dumps of StackExchange communities, seeded, with the difficult cases of real ones.

To write them into a folder, run `python tests/made_up_dump.py FOLDER --posts 10000`.
"""

import argparse
import random
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from xml.sax.saxutils import quoteattr

COMMUNITIES = ("cooking", "travel", "law")
WORDS = (
    "winter", "kitchen", "ferry", "landlord", "notice", "oven", "dough", "visa", "permit", "border", "train", "clause",
    "tenant", "sister", "budget", "knee", "allergy", "stove", "rice", "tent", "museum", "contract", "deposit", "island",
    "morning", "evening", "neighbour", "market", "recipe", "soup", "broth", "ticket", "station", "bicycle", "court",
    "letter", "agency", "spice", "butter", "flour", "cellar", "harbour", "passport", "luggage", "dispute", "witness",
)  # fmt: skip
WISHES = (
    "I need it to be cheap", "it's got to fit in a \"small\" flat", "my mother can't eat nuts", "I have two weeks",
    "we don't own a car", "a lawyer costs more than I earn", "it must be done by Friday", "I'm new to this",
)  # fmt: skip


@dataclass
class Made:
    """Counts of the difficult cases in the dump."""

    rows: int = 0
    questions: int = 0
    deleted: int = 0
    repeated: int = 0  # the same row again
    copies: int = 0  # another question with the same body
    dates: dict[str, str] = field(default_factory=dict)  # of each question, by community_number
    authors: dict[str, str] = field(default_factory=dict)  # likewise the account


def make_dumps(folder: Path, num_posts: int, seed: int = 0, communities: tuple[str, ...] = COMMUNITIES) -> Made:
    """Write Posts.xml and Users.xml of each community; about half of the rows are questions."""
    drawn, made = random.Random(seed), Made()
    num_users = max(4, num_posts // 40)
    bodies: list[tuple[str, str]] = []  # of questions, for copies: author and body
    for number, community in enumerate(communities):
        place = folder / f"{community}.stackexchange.com"
        place.mkdir(parents=True)
        # A user's number differs between communities, the account is the same.
        users = "".join(
            f'  <row Id="{user + number * 7}" AccountId="{user}" DisplayName={quoteattr(f"User <{user}> & Söhne")} />\n'
            for user in range(1, num_users + 1)
        )
        write_xml(place / "Users.xml", "users", f'  <row Id="-1" AccountId="-1" DisplayName="Community" />\n{users}')
        count = num_posts // len(communities) + (number < num_posts % len(communities))
        rows = "".join(make_row(drawn, made, bodies, community, number, one, num_users) for one in range(1, count + 1))
        write_xml(place / "Posts.xml", "posts", rows)
    return made


def write_xml(path: Path, name: str, rows: str) -> None:
    path.write_text(f'\ufeff<?xml version="1.0" encoding="utf-8"?>\n<{name}>\n{rows}</{name}>\n', encoding="utf-8")


def make_row(
    drawn: random.Random, made: Made, bodies: list[tuple[str, str]], community: str, place: int, number: int, users: int
) -> str:
    made.rows += 1
    # Posts of one day have one of two times, so two posts of an author may have the same time.
    day = f"{2010 + number * 14 // 4000:04}-{drawn.randint(1, 12):02}-{drawn.randint(1, 28):02}"
    date = f"{day}T10:00:0{drawn.choice('07')}.000"
    if number % 2 == 0:
        text = 'CreationDate="2020-01-01T00:00:00.000" Body="&lt;p&gt;No.&lt;/p&gt;" OwnerUserId="3"'
        return f'  <row Id="{number}" PostTypeId="2" ParentId="1" {text} />\n'
    made.questions += 1
    author = min(int(drawn.expovariate(4 / users)) + 1, users)
    body = make_body(drawn)
    if drawn.random() < 0.03 and bodies:
        made.copies += 1
        author, body = int(drawn.choice(bodies)[0]), drawn.choice(bodies)[1]
    bodies.append((str(author), body))
    title = f"How do I {drawn.choice(WORDS)} the {drawn.choice(WORDS)} & <{drawn.choice(WORDS)}> {number}?"
    owner, is_deleted = f'OwnerUserId="{author + place * 7}"', drawn.random() < 0.05
    if is_deleted:
        owner = drawn.choice(['OwnerDisplayName="user1234"', 'OwnerUserId="-1"'])
    else:
        made.dates[f"{community}_{number}"], made.authors[f"{community}_{number}"] = date, f"account:{author}"
    licence = ' ContentLicense="CC BY-SA 4.0"' if drawn.random() < 0.5 else ""
    row = (
        f'  <row Id="{number}" PostTypeId="1" CreationDate="{date}" Score="3" Body={quoteattr(body)} {owner}'
        f' Title={quoteattr(title)} Tags="&lt;a&gt;"{licence} />\n'
    )
    times = 1 + (drawn.random() < 0.02)
    made.deleted += is_deleted * times
    made.repeated += (not is_deleted) * (times - 1)
    made.rows, made.questions = made.rows + times - 1, made.questions + times - 1
    return row * times


def make_body(drawn: random.Random) -> str:
    """Return HTML, some of it unlike the sites' own."""

    def sentence() -> str:
        words = " ".join(drawn.choices(WORDS, k=drawn.randint(6, 14)))
        return escape(f"{words.capitalize()}, and {drawn.choice(WISHES)}.", quote=False)

    paragraphs = [f"<p>{sentence()} {sentence()}</p>" for _ in range(drawn.randint(1, 4))]
    extras = [
        "<pre><code>if a &lt; b:\n    stir(&quot;soup&quot;)\n\n\n\n</code></pre>",
        f"<ul>\n<li>{sentence()}</li>\n<li>it&#39;s <em>“late”</em>&nbsp;already</li></ul>",
        f"<blockquote><p>{sentence()}</p></blockquote><p>no break<br>here</p><!-- hidden --><script>alert(1)</script>",
        '<p><a href="https://example.org/?a=1&amp;b=2" rel="nofollow">a link</a> <img src="x.png" alt="pan"> 猫😀</p>',
        "<p>never closed <b>and bold",
    ]
    return "\n\n".join(drawn.sample([*paragraphs, *drawn.sample(extras, drawn.randint(0, 2))], k=len(paragraphs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the communities' folders")
    parser.add_argument("--posts", type=int, default=10_000, help="total number of rows (%(default)s)")
    args = parser.parse_args()
    print(make_dumps(args.folder, args.posts).questions, "questions")


if __name__ == "__main__":
    main()
