"""The shipped prompts, pinned, and prompts of the user's own."""

import hashlib
import re
from pathlib import Path

import pytest

import prompts
from prompts import join_posts, load_prompt
from utils.base.errors import UserError

FOLDER = Path(prompts.__file__).parent / "lampqa"

# A changed prompt changes every number measured with it. To change one on purpose: edit its file, run this test,
# copy the new hash from the failure, and describe the new wording in prompts/README.md.
GOLDEN = {
    "aspect_extraction": "c678dddc2606c4185b52137177ca3c35a75868bdb7a72cefe3cea35c7a6bdd85",
    "aspect_judge": "afcf84f5b2f1249c8813d702a9395514aa34cb1c00ca8d5957c7ab1c0bf82975",
    "direct_judge": "67322955c5a53d6c3f88fe68802a4e73498893014627a87676ebea41ed60fe2a",
    "factoid_filter": "db7ba8e0d177ad7f1cf7ed1598bac6bab762ed437aebeac7a7192a2d1fc439c7",
    "no_personalization": "9dca53a404ad678c0f07cbd6e9cfe56c48b73ac24e94420494f19966d977a8fe",
    "pairwise_judge": "5741133710e5cb1c3bceb91b389ef3dc2208427ba4680915aa917499c9519b8c",
    "planner": "8c56954dc19bef811c310787095b73654c40d7f2c70444b61b1f280dcf5263af",
    "planpers": "889c21eb7bedb052027661488ff2d4e5d7500e78baeaac4fecfeb56a4c187236",
    "rag": "9d2ea0304ef2a616da2650cc3684137d6ef5dd5c642f502f6c45ea089a6f7014",
    "reward": "77c95ca3ed1e91e471227a9622bf367c46688c8a082d20a7dffb21a351e78c95",
    "feedback": "2d3ab1ad0516f2d5a9c184990fc9c0ae949f7d4a019925989b79c31064f86056",
    "teacher": "52f1bfaeb5933dd741e95ee6fd98f52d218685c289a417b183d1d70f9226c6f2",
}

TRICKY = {
    "braces": "a {dict: {1}} and {} and }{ {question} {profile} {aspect}",
    "format fields and backslashes": r"{0} {question!r:>10} %s %(question)s C:\new\table \\ \n \1 \g<1> \0",
    "a fence and part names": '```json\n{"personalized_answer": "x"}\n```\n[system]\n[user]\n',
    "CJK and white space": "  \n\n\ttabbed \r\n 日本語の質問 한국어 🎸 ’×\u2028",
}


def values_of(name):
    return {placeholder: f"<{placeholder}>" for placeholder in load_prompt(f"lampqa/{name}").placeholders}


def own_prompt(folder, name, text):
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def test_every_prompt_file_matches_its_pinned_hash():
    found = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.txt")}
    assert found == GOLDEN == {name: load_prompt(f"lampqa/{name}").digest for name in found}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_messages_are_a_system_and_a_user_turn_with_every_value_in_it(name):
    system, user = load_prompt(f"lampqa/{name}").messages(**values_of(name))
    assert (system["role"], user["role"]) == ("system", "user")
    for value in values_of(name).values():
        assert user["content"].count(value) == 1
        assert value not in system["content"]
    assert not re.search(r"\{\w+\}", system["content"] + user["content"])  # nothing was left unfilled
    is_json = name not in ("planner", "feedback", "reward")
    assert user["content"].endswith("\n\noutput: ```json") == ("```json```" in system["content"]) == is_json


@pytest.mark.parametrize("value", TRICKY.values(), ids=TRICKY.keys())
@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_values_are_inserted_unchanged(name, value):
    prompt = load_prompt(f"lampqa/{name}")
    _, user = prompt.messages(**dict.fromkeys(prompt.placeholders, value))
    pieces = re.split("|".join(rf"\{{{placeholder}\}}" for placeholder in prompt.placeholders), prompt.user)
    assert user["content"] == value.join(pieces)


@pytest.mark.parametrize("name", ["rag", "planpers", "planner"])
def test_without_posts_their_paragraph_is_dropped(name):
    values = values_of(name)
    _, with_posts = load_prompt(f"lampqa/{name}").messages(**values)
    _, without = load_prompt(f"lampqa/{name}").messages(**{**values, "profile": ""})
    heading = "Past post questions and detailed descriptions of these questions:\n<profile>\n\n"
    assert with_posts["content"].startswith(heading + "Current post question:\n<question>")
    assert without["content"] == with_posts["content"].removeprefix(heading)
    _, judged = load_prompt("lampqa/aspect_judge").messages(**{**values_of("aspect_judge"), "reason": ""})
    assert "aspect:\n<aspect>\n\nevidence:\n<evidence>\n\noutput" in judged["content"]
    assert join_posts(["best", "next", "last"]) == "best\n\nnext\n\nlast" and join_posts([]) == ""


@pytest.mark.parametrize("values", [{}, {"question": "Q"}, {"question": "Q", "profile": "P", "plan": "L"}])
def test_a_missing_or_surplus_value_is_our_mistake(values):
    with pytest.raises(AssertionError, match="rag takes"):
        load_prompt("lampqa/rag").messages(**values)


OWN = "[system]\nBe brief.\n[user]\n{question}\n"


@pytest.mark.parametrize(
    "change", [lambda text: text, lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"), str.rstrip]
)
def test_own_prompt_is_used_and_missing_ones_are_taken_from_here(tmp_path, change):
    (tmp_path / "no_personalization.txt").write_bytes(change(OWN).encode())
    (tmp_path / "README.md").write_text("notes")
    prompt = load_prompt("lampqa/no_personalization", tmp_path)
    assert (prompt.system, prompt.user) == ("Be brief.", "{question}")
    assert change(OWN) != OWN or prompt.digest == hashlib.sha256(OWN.encode()).hexdigest()
    assert load_prompt("lampqa/rag", tmp_path) == load_prompt("lampqa/rag")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[system]\nS\n[user]\nno question\n", r"must contain each of \{question\} exactly once"),
        ("[system]\nS\n[user]\n{question} {question}\n", r"must contain each of \{question\} exactly once"),
        ("[system]\n{question}\n[user]\n{question}\n", r"must contain each of \{question\} exactly once"),
        ("[user]\n{question}\n[system]\nS\n", r"must have a \[system\] line with its text, then a \[user\] line"),
        ("", r"must have a \[system\] line with its text, then a \[user\] line with its text"),
    ],
)
def test_an_invalid_own_prompt_is_refused(tmp_path, text, message):
    own_prompt(tmp_path, "no_personalization", text)
    with pytest.raises(UserError, match=rf"^{re.escape(str(tmp_path))}/no_personalization\.txt: .*{message}"):
        load_prompt("lampqa/no_personalization", tmp_path)


def test_an_invalid_prompts_folder_is_refused(tmp_path):
    at = re.escape(f"--prompts_dir {tmp_path}")
    with pytest.raises(UserError, match=rf"^{at}/nothing: no such folder$"):
        load_prompt("lampqa/rag", tmp_path / "nothing")
    (tmp_path / "rag.md").write_text(OWN)
    with pytest.raises(UserError, match=rf"^{at}: has no prompts; .*rag\.txt"):
        load_prompt("lampqa/rag", tmp_path)
    (tmp_path / "no_personalization.txt").write_bytes(OWN.replace("brief", "bref é").encode("latin-1"))
    with pytest.raises(UserError, match=r"no_personalization\.txt: not UTF-8 text \(byte 17\)"):
        load_prompt("lampqa/no_personalization", tmp_path)
    own_prompt(tmp_path, "aspect_jugde", OWN)  # would silently be unused
    with pytest.raises(UserError, match=r"aspect_jugde\.txt is not the name of a prompt; .*aspect_judge\.txt"):
        load_prompt("lampqa/no_personalization", tmp_path)
