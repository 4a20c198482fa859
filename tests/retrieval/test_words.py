"""The words that BM25 compares, in scripts with and without spaces; Latin text has the words of bm25s' own splitter."""

import json
import random
import unicodedata
from pathlib import Path

import bm25s
import pytest

from retrieval.rankers import BM25Index, words_of

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("C++ or C#?", ["c++", "c#"]),
        ("(C++), C++17, F# and g++.", ["c++", "c++", "17", "f#", "g++"]),
        ("Notepad++, .NET, #1, i+1, a+ and 5#", ["notepad", "net"]),
        ("用C++写程序", ["用", "c++", "写程", "程序"]),
        ("浇水，猫！", ["浇水", "猫"]),
        ("二手自行车", ["二手", "手自", "自行", "行车"]),
        ("ミントが枯れ、iPhone15も", ["ミン", "ント", "トが", "が枯", "枯れ", "iphone15", "も"]),
        ("ｶﾞｲﾄﾞ ＡＢＣ ㌔", ["ガイ", "イド", "abc", "キロ"]),
        (unicodedata.normalize("NFD", "ガイド 한국"), ["ガイ", "イド", "한국"]),
        ("スーパー々", ["スー", "ーパ", "パー", "ー々"]),
        ("자전거를 사", ["자전", "전거", "거를", "사"]),
        ("น้ำเย็น", ["น้ำเ", "เย็", "ย็น"]),
        ("ទឹកត្រជាក់ ៥០", ["ទឹក", "កត្រ", "ត្រជា", "ជាក់", "៥០"]),
        ("ນ້ຳເຢັນ", ["ນ້ຳເ", "ເຢັ", "ຢັນ"]),
        ("ရေအေး", ["ရေအေ", "အေး"]),
        ("पानी और मिट्टी", ["पानी", "और", "मिट्टी"]),
        ("தண்ணீர் செடி", ["தண்ணீர்", "செடி"]),
        ("Вода для мяты", ["вода", "для", "мяты"]),
        ("مياه النعناع", ["مياه", "النعناع"]),
    ],
)
def test_what_a_word_is(text, words):
    assert words_of(text) == words


def plain_words(text):
    return bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)[0]


def texts_in(value):
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [text for part in values for text in texts_in(part)]


def test_the_samples_have_the_words_of_the_librarys_splitter():
    texts = [text for path in sorted(DATA.rglob("*.json")) for text in texts_in(json.loads(path.read_text()))]
    plain = [text for text in texts if text.isascii() and "++" not in text and "#" not in text]
    assert len(plain) > 2000 and all(words_of(text) == plain_words(text) for text in plain)


def test_generated_latin_texts_have_the_words_of_the_librarys_splitter():
    """With accents, composed or not, digits, punctuation, Greek, Cyrillic and emoji."""
    draw, num_words = random.Random(0), 0
    ranges = [(0x20, 0x250), (0x300, 0x370), (0x370, 0x483), (0x48A, 0x530), (0x1E00, 0x2070), (0x1F300, 0x1F650)]
    others = [chr(code) for first, last in ranges for code in range(first, last)]
    others = [character for character in others if unicodedata.category(character) != "Cn"]
    usual = [*"aaeeiioottnnsshrdlu", *"      .,;'-_", "the", "and", "É", "ß", "İ", "3"]
    for number in range(30_000):
        characters = draw.choices(usual if number % 2 else [*others, *usual * 40], k=draw.randrange(40))
        text = "".join(characters).replace("#", "").replace("++", "")
        assert words_of(text) == plain_words(text), ascii(text)
        num_words += len(words_of(text))
    assert num_words > 80_000


@pytest.mark.parametrize(
    ("question", "posts"),
    [
        ("冬天怎么给薄荷浇水？", ["想买自行车，注意什么？", "薄荷在冬天枯萎，浇水太多？", "周末爬山"]),
        ("ミントに水をやりますか", ["自転車を買う", "水をやりすぎたミント", "週末の登山"]),
        ("민트에 물을 주나요", ["자전거를 샀다", "민트는 물이", "주말 등산"]),
        ("รดน้ำสะระแหน่อย่างไร", ["ซื้อจักรยาน", "สะระแหน่เหี่ยวเพราะน้ำ", "เดินป่า"]),
        ("ស្រោចទឹកជីរ", ["ទិញកង់", "ជីរស្រពោន ទឹកច្រើន", "ឡើងភ្នំ"]),
        ("पुदीने को पानी", ["साइकिल ली", "पानी से मुरझाया", "पहाड़ चढ़ा"]),
        ("C#?", ["Which bike?", "I write C# daily.", "Which hike in C major?"]),
    ],
)
def test_a_post_on_the_same_thing_is_first(question, posts):
    assert BM25Index(posts).rank(question)[0] == 1


def test_posts_that_share_no_word_are_known():
    index = BM25Index(["薄荷", "Which stove?"])
    assert index.shared_words("the 薄荷 and a STOVE") == ["薄荷", "stove"]
    assert index.shared_words("the? 荷 +") == BM25Index([]).shared_words("stove") == []
