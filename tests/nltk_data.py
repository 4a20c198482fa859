"""Small data for NLTK's METEOR: a WordNet of a few words, and abbreviations."""

from pathlib import Path

SYNONYMS = {
    "noun": [["bread", "loaf"], ["street", "road"]],
    "verb": [["buy", "purchase"], ["walk", "stroll"]],
    "adj": [["big", "large"]],
    "adv": [["quickly", "fast"]],
}
LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


def write_nltk_data(folder: Path) -> Path:
    """Write WordNet's files (see its manual page wndb) and the sentence splitter's, and return the folder."""
    wordnet, splitter = folder / "corpora/wordnet", folder / "tokenizers/punkt_tab/english"
    wordnet.mkdir(parents=True)
    splitter.mkdir(parents=True)
    for name, synsets in SYNONYMS.items():
        data, index = "  1 A WordNet for tests.\n", []
        for words in synsets:
            offset = len(data)
            listed = " ".join(f"{word} 0" for word in words)
            frames = " 00" if name == "verb" else ""
            data += f"{offset:08d} 00 {LETTERS[name]} {len(words):02x} {listed} 000{frames} | a gloss  \n"
            index += [f"{word} {LETTERS[name]} 1 0 1 0 {offset:08d}  \n" for word in words]
        (wordnet / f"data.{name}").write_text(data)
        (wordnet / f"index.{name}").write_text("".join(sorted(index)))
        (wordnet / f"{name}.exc").write_text("bought buy\n" if name == "verb" else "")
    for name, text in {"lexnames": "00\tadj.all\t3\n", "index.sense": "", "cntlist.rev": ""}.items():
        (wordnet / name).write_text(text)
    for name, text in {"abbrev_types.txt": "dr\n", "collocations.tab": "", "sent_starters.txt": ""}.items():
        (splitter / name).write_text(text)
    (splitter / "ortho_context.tab").write_text("")
    return folder
