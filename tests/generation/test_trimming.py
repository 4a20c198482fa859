"""Entries trimmed as LaMP's code does, against its rule written down plainly, with a real tokenizer."""

import random
from pathlib import Path

import pytest
from lamp_samples import CONFIGS, LAMP, read_sample

from prompts import load_prompt
from utils.benchmarks import tasks
from utils.generation.chat import LocalChat, fit_profile
from utils.generation.trimming import fit_trimmed, trim

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
WORDS = ["review", "of", "a", "chair", "“quoted”", "1.234", "naïve", "漢字", "🎸", "I'd", "-", "it,", "etc."]
# What the demo's model takes for a text may be the same for a shorter and a longer one, and it is a token off then.
MOST_OFF = 1


@pytest.fixture(scope="module")
def chat():
    if not (CHAT / "tokenizer.json").is_file():
        pytest.skip("make models")
    return LocalChat(str(CHAT))


@pytest.fixture(scope="module")
def tokens(chat):
    """How many tokens a text has, by transformers' own way."""
    return lambda text: len(chat.tokenizer(text, add_special_tokens=False)["input_ids"])


def made_up(length, seed):
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(length))


def state(text):
    return f'the score 4 for the review "{text}"'


def naive_trim(entries, around, budget, tokens):
    """The rule, a step after the other: every cut is tried, the longest first."""
    factor = 0.6
    while factor > -0.05:
        share = (budget - min(around, int(factor * budget + 1e-9))) // len(entries)
        left, found = 0, []
        for text, write in entries:
            own = share + left
            cuts = [text, *(text[:n].rstrip() for n in range(len(text) - 1, -1, -1))]
            fitting = [write(cut) for cut in cuts if tokens(write(cut)) <= own]
            if not fitting:
                break
            found.append(fitting[0])
            left = own - tokens(fitting[0])
        if len(found) == len(entries):
            return found
        factor -= 0.1
    return []


@pytest.mark.parametrize("budget", [400, 200, 100, 80, 60, 40, 20])
@pytest.mark.parametrize("around", [10, 50, 90, 300])
def test_entries_are_trimmed_by_lamp_s_rule(chat, tokens, budget, around):
    lengths = [(40, 2, 40, 12), (5,), (0, 60, 60), (12,) * 8]
    for seed, sizes in enumerate(lengths):
        entries = [(made_up(length, seed + i), state) for i, length in enumerate(sizes)]
        ours, naive = trim(entries, around, budget, chat.count), naive_trim(entries, around, budget, tokens)
        assert len(ours) == len(naive)
        for one, other in zip(ours, naive, strict=True):
            assert abs(tokens(one) - tokens(other)) <= MOST_OFF
            assert one[:-1] in other or other[:-1] in one  # of two cuts the shorter one begins the longer


def test_what_an_entry_leaves_is_the_next_one_s(chat, tokens):
    long, short = made_up(200, 1), "Good."
    alone = tokens(state(short))
    first, second, third = trim([(short, state), (long, state), (long, state)], 0, 300, chat.count)
    assert first == state(short)
    assert 200 - alone - 2 <= tokens(second) <= 200 - alone  # its hundred and what the first one left
    assert 98 <= tokens(third) <= 102
    assert all(long.startswith(text[len(state("")) - 1 : -1]) for text in (second, third))


def test_where_a_share_is_too_small_the_rest_counts_for_less(chat, tokens):
    words = tokens(state(""))
    entries = [("", state)] * 4
    assert trim(entries, 1000, 10 * words, chat.count) == [state("")] * 4  # 0.6 of the budget leaves just these
    assert trim(entries, 1000, 5 * words, chat.count) == [state("")] * 4  # 0.2
    assert trim(entries, 1000, 4 * words, chat.count) == [state("")] * 4  # nothing at all
    assert trim(entries, 1000, 4 * words - 1, chat.count) == []
    assert trim([], 1000, 10, chat.count) == []


@pytest.mark.parametrize("name", [*LAMP, *CONFIGS])
def test_a_prompt_has_all_its_entries_and_is_within_the_budget(chat, name):
    task = tasks()[name]
    prompt = load_prompt(task.prompts["rag"])
    for record in read_sample(name):
        entries, values = task.best_entries(record, 10), task.values(record)
        items = task.best_items(record, 10)
        assert [write(text) for text, write in entries] == items
        whole = fit_profile(prompt, items, chat, 8192, task.join, **values)
        assert fit_trimmed(prompt, entries, chat, 8192, task.join, **values).prompt == whole.prompt
        if not items:
            continue
        around = chat.length(fit_profile(prompt, [], chat, 8192, task.join, **values).prompt)
        needed = sum(chat.count(write("")) for _, write in entries)
        # Room for what stands around within 0.6 of it, for the entries' own words, and some of their texts.
        budget = max(int(around / 0.6) + 50, around + 2 * needed + 50)
        fitted = fit_trimmed(prompt, entries, chat, budget, task.join, **values)
        assert chat.length(fitted.prompt) <= budget
        assert (fitted.num_contexts_used, fitted.num_contexts_dropped) == (len(items), 0)
        assert 0 <= fitted.num_contexts_trimmed <= len(items)
        assert record["question"].strip() in chat.tokenizer.decode(list(fitted.prompt))


def test_a_long_question_costs_entries_and_is_never_cut(chat):
    task = tasks()["LaMP-4"]
    prompt = load_prompt(task.prompts["rag"])
    question = made_up(120, 3)
    entries = [(made_up(60, i), lambda text: f'the headline "x" for the article "{text}"') for i in range(4)]
    bare = chat.length(fit_profile(prompt, [], chat, 8192, task.join, question=question).prompt)
    fitted = fit_trimmed(prompt, entries, chat, bare + 120, task.join, question=question)
    assert question in chat.tokenizer.decode(list(fitted.prompt))
    assert 0 < fitted.num_contexts_used < 4 and fitted.num_contexts_used + fitted.num_contexts_dropped == 4
    assert fit_trimmed(prompt, entries, chat, bare - 1, task.join, question=question) is None


def test_all_lengths_of_long_entries_fit(chat):
    """Between others a text may have a token more than alone: the seams have room for it."""
    task = tasks()["LongLaMP-review"]
    prompt = load_prompt(task.prompts["rag"])
    for seed in range(30):
        review = {"overall": 4.0, "description": "A chair.", "summary": "Fine!"}
        profile = [review | {"id": str(i), "reviewText": made_up(100 + seed, seed + i)} for i in range(6)]
        record = {"id": "1", "question": "Write the review.", "profile": profile}
        entries = task.best_entries(record, 10)
        fitted = fit_trimmed(prompt, entries, chat, 500 + seed, task.join, **task.values(record))
        assert (fitted.num_contexts_used, fitted.num_contexts_trimmed) == (6, 6)
        # Little is left over: a token an entry for the seams, and what no cut comes nearer to.
        assert 500 + seed - 30 <= chat.length(fitted.prompt) <= 500 + seed
