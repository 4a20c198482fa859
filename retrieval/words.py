"""Split texts into the words that BM25 compares."""

from functools import cache
from itertools import pairwise
from unicodedata import normalize

import regex

# Letters and marks of scripts that put no spaces between words: those that Lucene's CJKAnalyzer splits into bigrams,
# and those of Unicode's line breaking class SA (Thai, Lao, Khmer, Burmese, ...).
_CJK = r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{scx=Hira}\p{scx=Kana}]--\p{Inherited}]"
_UNSPACED = rf"[[{_CJK}\p{{Line_Break=SA}}]&&[\p{{L}}\p{{N}}\p{{M}}]]"
# Vowel signs and other marks that are a part of one script's letters. Accents, which scripts share, are not.
_MARK = r"[\p{M}--\p{Inherited}]"
_SYMBOLS = rf"[\p{{L}}--{_UNSPACED}](?:\+\+|#)"  # C++, C#
_RUN = rf"[[\p{{L}}\p{{N}}_{_MARK}]--{_UNSPACED}]{{2,}}"
_WORD = regex.compile(rf"(?V1){_UNSPACED}+|{_SYMBOLS}|{_RUN}")
_BEGINS_UNSPACED = regex.compile(rf"(?V1){_UNSPACED}")
_CHARACTER = regex.compile(r"\X")  # a letter with its marks
# Normalized: full and half width forms, decomposed Hangul, and voicing marks that are not composed with their kana.
_WIDE = rf"[{_CJK}\uff00-\uffef\u3099\u309a]"
_NORMALIZED = regex.compile(rf"(?V1){_WIDE}+")
_BEYOND_RUNS = regex.compile(rf"(?V1){_WIDE}|{_UNSPACED}|{_MARK}|{_SYMBOLS}")


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case, without English stop words and without stemming.

    A word is a run of two or more letters, digits, underscores and vowel signs; or a single letter before ++ or #, with
    these signs. A run of characters of a script that puts no spaces between words (Chinese, Japanese, Korean, Thai,
    Lao, Khmer, Burmese, ...) is split into bigrams, as by Lucene's CJKAnalyzer; a single such character is a word.
    """
    if not text.isascii():
        text = _NORMALIZED.sub(lambda run: normalize("NFKC", run[0]), text)
    words, stop_words = [], _stop_words()
    for word in _WORD.findall(text.lower()):
        if not word.isascii() and _BEGINS_UNSPACED.match(word):
            characters = _CHARACTER.findall(word)
            words += ["".join(pair) for pair in pairwise(characters)] or characters
        elif word not in stop_words:
            words.append(word)
    return words


def has_other_words(text: str) -> bool:
    """Return whether `words_of` may give other words than version 1: plain runs of two or more letters and digits."""
    return _BEYOND_RUNS.search(text) is not None


@cache
def _stop_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)
