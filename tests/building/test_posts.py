"""Posts are read from dumps and SE-PQA, and found by author."""

import json
import sqlite3
import tracemalloc
from collections import Counter

import pytest

from utils.base.errors import UserError
from utils.building.candidates import Terms, choose, profile_of
from utils.building.index import PostIndex
from utils.building.posts import User, licence_of, read_dump, read_sepqa, text_of

ROW = (
    '<row Id="7" PostTypeId="1" CreationDate="2019-03-01T10:00:00.123" OwnerUserId="5" Title="A &amp;  b"'
    ' Body="&lt;p&gt;1 &amp;lt; 2&lt;/p&gt;"/>'
)


def write_dump(folder, rows, name="cooking.stackexchange.com", head=""):
    (folder / name).mkdir(exist_ok=True)
    path = folder / name / "Posts.xml"
    path.write_text(f'\ufeff<?xml version="1.0" encoding="utf-8"?>\n{head}<posts>\n{rows}\n</posts>', encoding="utf-8")
    return path


def question(number, **more):
    values = {"Id": number, "PostTypeId": 1, "CreationDate": f"2019-01-{number:02}T00:00:00.000", "OwnerUserId": 5}
    values |= {"Title": f"Title {number}", "Body": f"Body of number {number}."} | more
    return "<row " + " ".join(f'{name}="{value}"' for name, value in values.items() if value is not None) + "/>"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One</p>\n\n\n\n<p>two</p>\n", "One\n\ntwo"),
        ("a<br>b<br />c<hr>d", "a\nb\nc\nd"),
        ("<ul>\n<li>a</li>\n<li>b</li>\n</ul>", "a\nb"),
        ("<pre><code>if a &lt; b:\n    c(&quot;&amp;amp;&quot;)\n</code></pre>", 'if a < b:\n    c("&amp;")'),
        ('<a href="http://x.y">link</a> <img src="a" alt="b">end', "link end"),
        ("a<script>alert(1)</script>b<style>p {}</style>c", "abc"),
        ("2<sup>n+1</sup>, 2<sup>a<sup>b</sup></sup>; H<sub>2</sub>O.", "2^(n+1), 2^(a^b); H_2O."),
        ("the 1<sup>st</sup> and 22<sup>ND</sup><sup></sup> one", "the 1st and 22ND one"),
        ("<s>20</s> 30 <strike>old</strike>, <del>x<sup>2</sup></del> <DEL>gone</DEL>kept", "30 ,  kept"),
        ("<table><tr><th>a</th><td>b</td></tr><tr><TD>c</TD> <td>d</td></tr></table>e", "a b\nc d\n\ne"),
        ("never <b>closed <i>here", "never closed here"),
        ("1 < 2 and a <unknown>tag</unknown>", "1 < 2 and a tag"),
        ("null \0 and half \ud83d", "null � and half ?"),
        ("猫 &#128512; &eacute;&nbsp;x", "猫 😀 é\xa0x"),
        ("<div>" * 200 + "deep" + "</div>" * 200, "deep"),
    ],
)
def test_a_posts_text_is_what_a_reader_sees(markup, text):
    assert text_of(markup) == text


def test_a_question_of_a_dump(tmp_path):
    counts = Counter()
    (post,) = read_dump(write_dump(tmp_path, ROW), {5: User("88", "Ann <b>")}, counts)
    assert (post.id, post.author, post.date) == ("cooking_7", "account:88", "2019-03-01T10:00:00.123")
    assert (post.title, post.body, counts) == ("A & b", "1 < 2", {})
    at = "https://cooking.stackexchange.com"
    assert post.licence == f"CC BY-SA 4.0, by Ann <b> ({at}/users/5), {at}/q/7"
    # Without an account, an author belongs to one community.
    rows = question(1) + question(2, ContentLicense="CC BY-SA 3.0")
    first, second = read_dump(write_dump(tmp_path, rows, "askubuntu.com"), {5: User(None, "")}, Counter())
    assert first.author == second.author == "askubuntu.com:5" and second.licence.startswith("CC BY-SA 3.0, by user 5 ")


@pytest.mark.parametrize(
    ("date", "version"),
    [("2011-04-07T23:59:59.999", "2.5"), ("2011-04-08T00:00:00.000", "3.0"), ("2018-05-01T23:59:59.999", "3.0"),
     ("2018-05-02T00:00:00.000", "4.0")],
)  # fmt: skip
def test_the_licence_depends_on_the_date(date, version):
    assert licence_of(date) == f"CC BY-SA {version}"


def test_unusable_posts_are_counted(tmp_path):
    rows = [
        question(1, PostTypeId=2), question(2, OwnerUserId=None), question(3, OwnerUserId=-1), question(4, Title="  "),
        question(5, CreationDate="yesterday"), question(6, Id="six"), question(7, Body=None), question(8),
    ]  # fmt: skip
    counts = Counter()
    posts = list(read_dump(write_dump(tmp_path, "\n".join(rows)), {}, counts))
    assert [(post.number, post.body) for post in posts] == [(7, ""), (8, "Body of number 8.")]
    expected = {"answers and other posts": 1, "without author": 2, "without title, date or number": 3}
    assert counts == expected


BOMB = "<!DOCTYPE posts [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
    f"<!ENTITY {after} '{f'&{before};' * 10}'>" for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("head", "rows", "said"),
    [
        (f"{BOMB}]>", '<row Id="1" Title="&i;"/>', "has a DOCTYPE, unlike Stack Exchange's dumps"),
        ("", '<row Id="1"', "incomplete or invalid XML: "),
        ("", '<row Id="1" Title="&i;"/>', "incomplete or invalid XML: "),
    ],
)
def test_dangerous_or_incomplete_xml_is_refused(head, rows, said, tmp_path):
    path = write_dump(tmp_path, question(1) + rows, head=head)
    tracemalloc.start()
    with pytest.raises(UserError) as error:
        list(read_dump(path, {}, Counter()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value).startswith(f"{path}: {said}") and peak < 10_000_000


def test_a_reference_to_an_invalid_character_is_left_out(tmp_path):
    """Real dumps have a few, such as apple.stackexchange.com's of 2024, and no parser accepts them."""
    body = "Press &#x0E;⌘-1 &amp;amp; &#xB;&#xfffe;&#xD83D;twice&#xA;&#x9;now, &#xE9;."
    [post] = read_dump(write_dump(tmp_path, question(1, Body=body)), {}, Counter())
    assert post.body == "Press ⌘-1 & twice\n\tnow, é."


def sepqa(**more):
    record = {"id": "law_3", "title": "May I?", "text": "May I? 1 < 2 <b>", "timestamp": 1_300_000_000, "user_id": 77}
    return json.dumps(record | more) + "\n"


def test_a_question_of_sepqa(tmp_path):
    path, counts = tmp_path / "data.jsonl", Counter()
    wrong = [sepqa(id="law_4", user_id=-1), sepqa(id="law_5", title=""), sepqa(id="law_6", timestamp=10**18)]
    wrong += [sepqa(id="law_7", timestamp=True), sepqa(id="law_8", user_id=[]), sepqa(id="law_9", text=7)]
    path.write_text(sepqa() + "".join(wrong))
    post, last = read_sepqa(path, counts)
    assert (post.id, post.author, post.date) == ("law_3", "account:77", "2011-03-13T07:06:40.000")
    assert (post.title, post.body, last.body) == ("May I?", "1 < 2 <b>", "")  # its markup is already removed
    link = "https://stackexchange.com/users/77"
    assert post.licence == f"CC BY-SA 2.5, by account 77 ({link}), https://law.stackexchange.com/q/3"
    assert counts == {"without author": 2, "without title, date or number": 3}
    path.write_text(sepqa() + "[]")
    with pytest.raises(UserError, match=r"data.jsonl: line 2: not a question of SE-PQA"):
        list(read_sepqa(path, Counter()))


def test_an_author_of_a_dump_and_of_sepqa_is_one(tmp_path):
    dump = write_dump(tmp_path, question(1))
    dump.with_name("Users.xml").write_text('<users><row Id="5" AccountId="77" DisplayName="A"/></users>')
    (tmp_path / "data.jsonl").write_text(sepqa(timestamp=1_600_000_000))
    index = PostIndex(tmp_path / "posts.sqlite")
    index.fill([dump, tmp_path / "data.jsonl"])
    assert [item["id"] for item in profile_of(index, "account:77", "2030", "", 9)[0]] == ["cooking_1", "law_3"]


def made_index(tmp_path, rows):
    index = PostIndex(tmp_path / "posts.sqlite")
    index.fill([write_dump(tmp_path, rows)])
    return index


AUTHOR = "cooking:5"


def test_a_profile_has_the_newest_earlier_posts_latest_last(tmp_path):
    same_time = question(9, CreationDate="2019-01-06T00:00:00.000")
    index = made_index(tmp_path, "".join(map(question, (3, 1, 2, 6, 8))) + same_time + question(4, OwnerUserId=6))
    profile, num_reposts = profile_of(index, AUTHOR, "2019-01-06T00:00:00.000", "", 2)
    assert num_reposts == 0
    assert [item["id"] for item in profile] == ["cooking_2", "cooking_3"]
    assert profile[0]["text"] == "Title 2 Body of number 2." and profile[0]["category"] == "cooking"


def test_copies_count_once_even_across_authors(tmp_path):
    rows = [question(1, Body="Twice  the same"), question(2, Body="TWICE the\nsame", OwnerUserId=6)]
    rows += [question(3, Body="")]
    rows += [question(4, Body=""), question(5, Body="twice the same"), question(6)]
    index = made_index(tmp_path, "".join(rows))
    _, counts = choose(index, {"cooking"}, Terms(1, 0, 9))
    assert counts == {"candidates": 2, "copies of earlier posts": 2, "with fewer than 1 words": 2}
    ids = [item["id"] for item in profile_of(index, AUTHOR, "2030", "", 9)[0]]
    assert ids == ["cooking_1", "cooking_3", "cooking_4", "cooking_6"]  # posts without a body are not copies


BODY = "I moved here in May and need a quiet flat that takes two old cats"  # 15 words: 11 runs of five


@pytest.mark.parametrize(
    ("earlier", "is_dropped"),
    [
        (f"Nobody has answered. {BODY}", True),  # the first version, or one with an additional line
        ("MOVED  here in May and need a\nquiet flat", True),  # a part of it
        ("he moved here in May and needed a quiet flat that takes two old cats", False),  # 5 of its 11 runs are shared
        ("I moved here in May and needed a quiet flat that takes two old cats", True),  # 6 of 11
        ("old cats", False),  # too short to tell
        (f"{BODY} . {' '.join(map(str, range(500)))}", True),  # the whole of it, in a long post
    ],
)
def test_a_repost_of_the_question_is_not_in_its_profile(earlier, is_dropped, tmp_path):
    index = made_index(tmp_path, question(1, Body=earlier) + question(2))
    profile, num_reposts = profile_of(index, AUTHOR, "2030", BODY, 9)
    kept = ["cooking_2"] if is_dropped else ["cooking_1", "cooking_2"]
    assert ([item["id"] for item in profile], num_reposts) == (kept, is_dropped)


def test_a_refused_input_leaves_nothing_behind(tmp_path):
    good, bad = write_dump(tmp_path, question(1), "law"), write_dump(tmp_path, question(2) + "<row", "rpg")
    index = PostIndex(tmp_path / "posts.sqlite")
    with pytest.raises(UserError, match="incomplete or invalid XML"):
        index.fill([good, bad])
    assert not index.counts() and not list(index.authors_posts())
    for given, told in (
        (write_dump(tmp_path, question(1, PostTypeId=2), "rpg"), "no question with title, author and date"),
        (tmp_path / "nowhere" / "Posts.xml", "no such file"),
        (good.parent, "is a folder; pass the unpacked Posts"),
        (write_dump(tmp_path, ROW, "my dump"), "rename its folder to the community's name"),
    ):
        with pytest.raises(UserError, match=told):
            index.fill([good, given])


def test_candidates_are_an_authors_newest_after_enough_posts(tmp_path):
    index = made_index(tmp_path, "".join(map(question, range(1, 8))) + question(8, OwnerUserId=6))
    places, counts = choose(index, {"cooking"}, Terms(1, 3, 2))
    assert [post.number for post in index.posts(places)] == [7, 6]
    assert counts == {
        "candidates": 2, "over the limit of 2 per author": 2, "with fewer than 3 earlier posts by the author": 4,
    }  # fmt: skip
    assert choose(index, {"law"}, Terms(1, 0, 2)) == ([], {"candidates": 0, "in communities without a category": 8})


def test_inputs_are_read_again_only_if_changed(tmp_path, capsys):
    one, two = write_dump(tmp_path, question(1), "law"), write_dump(tmp_path, question(2), "rpg")
    index = PostIndex(tmp_path / "posts.sqlite")
    index.fill([one, two])
    index.fill([one, two])
    assert capsys.readouterr().err.count(f"{one}: 1 question") == 1
    identity = index.identity()
    write_dump(tmp_path, question(2) + question(3), "rpg")
    index.fill([one, two])
    assert "was made from other inputs; rebuilding it" in capsys.readouterr().err
    assert index.identity() != identity and index.counts()["rpg/Posts.xml"] == {"questions": 2}
    one.with_name("Users.xml").write_text('<users><row Id="5" AccountId="77"/></users>')
    index.fill([one, two])
    assert "rebuilding it" in capsys.readouterr().err
    assert [row[1] for row in index.authors_posts()] == ["account:77", "rpg:5", "rpg:5"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DROP TABLE posts", "cannot be read or written: no such table: posts\n  if it is damaged, delete it"),
        ("", "cannot be used as the posts index: .*; move it away"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, change, said):
    made_index(tmp_path, "".join(question(number % 28 + 1, Id=number) for number in range(400))).close()
    path = tmp_path / "posts.sqlite"
    if change:
        with sqlite3.connect(path) as file:
            file.execute(change)
    else:
        path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(UserError, match=rf"posts\.sqlite: {said}"):
        index = PostIndex(path)
        index.counts()
        list(index.authors_posts())


def test_another_programs_database_is_not_changed(tmp_path):
    with sqlite3.connect(tmp_path / "posts.sqlite") as theirs:
        theirs.execute("CREATE TABLE posts (text)")
        theirs.execute("INSERT INTO posts VALUES ('theirs')")
    with pytest.raises(UserError, match="cannot be used as the posts index: another program created it; move it"):
        PostIndex(tmp_path / "posts.sqlite")
    assert theirs.execute("SELECT * FROM posts").fetchall() == [("theirs",)]
    (tmp_path / "link.sqlite").symlink_to("theirs")
    with pytest.raises(UserError, match=r"link\.sqlite: a symbolic link; move it away"):
        PostIndex(tmp_path / "link.sqlite")
