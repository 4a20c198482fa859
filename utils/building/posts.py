"""Read the questions in StackExchange's dumps and in SE-PQA one by one, so that gigabytes need little memory.

A dump is a community's folder with Posts.xml and Users.xml, which maps the community's users to network accounts.
SE-PQA is JSON Lines; its texts have no markup, and its authors are accounts.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from utils.base.errors import UserError
from utils.base.json_files import read_lines
from utils.benchmarks.readers import one_line, writable

NETWORK = ".stackexchange.com"  # suffix of dumps' folder names, after the community's name
# The licence's version by a post's date, for older dumps, which do not name it.
LICENCES = (("2018-05-02", "CC BY-SA 4.0"), ("2011-04-08", "CC BY-SA 3.0"), ("", "CC BY-SA 2.5"))
# Tags after which a line ends, unless the markup has a line break there, as the sites' own markup does.
_LINE_ENDS = re.compile(
    r"(</(?:p|li|h[1-6]|pre|blockquote|div|tr|ul|ol|dl|dt|dd|table)>|<[bh]r\s*/?>)(?!\n)", re.IGNORECASE
)
_BETWEEN_CELLS = re.compile(r"(?<=</t[dh]>)(?=\S)", re.IGNORECASE)
_ALTERED = re.compile(
    r"<(?:s(?:cript|tyle|trike|up|ub)?|del)\b", re.IGNORECASE
)  # tags whose text is removed or gets a sign
# References to characters that XML forbids (control characters and the like), but that real dumps contain.
_FORBIDDEN = re.compile(rb"&#x(?:0?[0-8BCEF]|1[0-9A-F]|D[89A-F][0-9A-F]{2}|FFF[EF]);", re.IGNORECASE)
_SHIFTED = {"sup": "^", "sub": "_"}  # by tag, the sign before its text: 10<sup>2</sup> becomes 10^2, not 102
_ORDINAL = re.compile(r"st|nd|rd|th", re.IGNORECASE)  # gets no sign: 1<sup>st</sup> becomes 1st
COMMUNITY = r"^[\w.-]+$"
_NUMBER = re.compile(r"\d{1,18}")  # the largest that SQLite holds
_SEPQA_ID = re.compile(rf"([\w.-]+)_({_NUMBER.pattern})")


@dataclass(frozen=True)
class Post:
    """A question. Its texts have no markup. Its `date` is in ISO 8601 (UTC), so dates sort as strings."""

    community: str
    number: int  # in its community
    author: str  # the same in all communities, if the network account is known
    date: str
    title: str
    body: str
    licence: str  # version, author and link, as the licence requires

    @property
    def id(self) -> str:
        return f"{self.community}_{self.number}"


class User(NamedTuple):
    """A community's user: the network account (None if unknown), and the display name."""

    account: str | None
    name: str


def community_of(path: Path) -> str:
    """Return a dump's community, from its folder's name; UserError if that cannot be a community's name."""
    name = path.resolve().parent.name.removesuffix(NETWORK)
    if not re.fullmatch(COMMUNITY, name):
        raise UserError(f"{path}: rename its folder to the community's name, such as cooking or cooking{NETWORK}")
    return name


def read_users(path: Path) -> Iterator[tuple[int, User]]:
    """Yield the users in a dump's Users.xml, by their number in the community."""
    for row in read_rows(path):
        if _NUMBER.fullmatch(row.get("Id", "")):
            yield int(row["Id"]), User(row.get("AccountId"), row.get("DisplayName", ""))


def read_dump(path: Path, users: Mapping[int, User], counts: Counter[str]) -> Iterator[Post]:
    """Yield the questions in a Posts.xml, and count the other rows in `counts` by what they lack."""
    community = community_of(path)
    host = community if "." in community else community + NETWORK
    for row in read_rows(path):
        if row.get("PostTypeId") != "1":
            counts["answers and other posts"] += 1
            continue
        number, owner, date = row.get("Id", ""), row.get("OwnerUserId", ""), iso_date(row.get("CreationDate", ""))
        title = one_line(row.get("Title", ""))
        if not _NUMBER.fullmatch(owner):  # a deleted account, or -1, the community itself
            counts["without author"] += 1
        elif not title or date is None or not _NUMBER.fullmatch(number):
            counts["without title, date or number"] += 1
        else:
            user = users.get(int(owner), User(None, ""))
            author = f"{community}:{owner}" if user.account is None else f"account:{user.account}"
            link = f"https://{host}/users/{owner}"
            licence = row.get("ContentLicense") or licence_of(date)
            signed = attribution(licence, user.name or f"user {owner}", link, f"https://{host}/q/{number}")
            yield Post(community, int(number), author, date, title, text_of(row.get("Body", "")), signed)


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the attributes of each row of a dump's file; UserError for incomplete XML or a document type.

    References to characters that XML forbids are dropped. A document type could expand a few bytes into gigabytes, and
    dumps have none, so it is refused.
    """
    from lxml import etree

    parser = etree.XMLPullParser(("end",), tag="row", resolve_entities=False, no_network=True)
    try:
        with open(path, "rb") as file:
            for line in read_lines(file):  # one row per line
                if b"<!DOCTYPE" in line:
                    raise UserError(f"{path}: has a DOCTYPE, unlike Stack Exchange's dumps; use an original Posts.xml")
                parser.feed(_FORBIDDEN.sub(b"", line))
                for _, row in parser.read_events():
                    yield dict(row.attrib)
                    row.getparent().remove(row)  # else the tree would grow as large as the file
            parser.close()
    except etree.XMLSyntaxError as error:
        raise UserError(f"{path}: incomplete or invalid XML: {error.msg}\n  unpack the dump again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def read_sepqa(path: Path, counts: Counter[str]) -> Iterator[Post]:
    """Yield the questions in a file of SE-PQA, as `read_dump` does for a dump."""
    try:
        with open(path, "rb") as file:
            for line_number, line in enumerate(read_lines(file), 1):
                yield from _sepqa_post(_sepqa_record(line, f"{path}: line {line_number}"), counts)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _sepqa_record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{where}: not JSON; SE-PQA's files have one JSON object per line") from None
    if not isinstance(record, dict) or not _SEPQA_ID.fullmatch(str(record.get("id"))):
        raise UserError(f"{where}: not a question of SE-PQA; its id must be like cooking_123")
    return record


def _sepqa_post(record: dict[str, Any], counts: Counter[str]) -> Iterator[Post]:
    community, number = _SEPQA_ID.fullmatch(record["id"]).groups()
    account, seconds = record.get("user_id"), record.get("timestamp")
    texts = (record.get(name) for name in ("title", "text"))
    title, text = (writable(value).strip() if isinstance(value, str) else "" for value in texts)
    date = _date_of(seconds) if type(seconds) is int else None
    if type(account) is not int or account < 0:
        counts["without author"] += 1
    elif not title or date is None:
        counts["without title, date or number"] += 1
    else:
        host = community if "." in community else community + NETWORK
        link = f"https://stackexchange.com/users/{account}"
        signed = attribution(licence_of(date), f"account {account}", link, f"https://{host}/q/{number}")
        body = text.removeprefix(title).strip()  # SE-PQA's text is title and body
        yield Post(community, int(number), f"account:{account}", date, one_line(title), body, signed)


def _date_of(seconds: int) -> str | None:
    """Return the date of a Unix time in the form of `iso_date`; None if it is out of range."""
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds")


def iso_date(text: str) -> str | None:
    """Return a dump's date with milliseconds; None if it is not a date."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None).isoformat(timespec="milliseconds")
    except ValueError:
        return None


def licence_of(date: str) -> str:
    """Return the licence of a post of this date."""
    return next(licence for since, licence in LICENCES if date >= since)


def attribution(licence: str, name: str, user_link: str, post_link: str) -> str:
    return f"{licence}, by {one_line(name)} ({user_link}), {post_link}"


def text_of(markup: str) -> str:
    """Return the text of a post's HTML.

    Paragraphs, list items, table rows and lines of code become lines; link targets, pictures and struck-out text are
    dropped.
    """
    from lxml import etree

    if not markup.strip():
        return ""
    broken = _BETWEEN_CELLS.sub(" ", _LINE_ENDS.sub("\\1\n", markup))
    root = etree.fromstring(broken.encode("utf-8", "replace"), _html_parser())
    if root is None:  # only comments
        return ""
    if _ALTERED.search(markup):
        etree.strip_elements(root, "script", "style", "s", "strike", "del", with_tail=False)
        for element in reversed([*root.iter(*_SHIFTED)]):  # inner elements first
            _mark_shifted(element)
    text = etree.tostring(root, method="text", encoding="unicode")
    text = "\n".join(map(str.rstrip, text.split("\n"))).strip()
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def _mark_shifted(element: Any) -> None:
    """Put a sign before the text of a superscript or subscript, and parentheses around it unless it is one word."""
    text = "".join(element.itertext()).strip()
    for child in list(element):
        element.remove(child)
    if text and not _ORDINAL.fullmatch(text):
        text = _SHIFTED[element.tag] + (text if re.fullmatch(r"[+−-]?\w+", text) else f"({text})")
    element.text = text


@cache
def _html_parser() -> Any:
    from lxml import etree

    return etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
