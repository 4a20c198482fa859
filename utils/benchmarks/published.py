"""Where a benchmark's own files are published, what they are called there, and how many questions they have.

utils/download_datasets.py converts them to the files that every command reads.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from utils.base.errors import UserError
from utils.base.web_files import Server

AVOCADO = "docs/lamp.md"  # explains how to add the texts of the licensed email corpus
CARD = "README.md"
SUFFIXES = (".json", ".jsonl", ".parquet")
RESPONSES, RATINGS = "responses", "ratings"  # files written beside a dataset: responses, and people's ratings of them


class Source(NamedTuple):
    """A dataset at a commit on the hub, or in a folder."""

    name: str
    commit: str | None  # None for a folder
    folder: Path  # the folder with the dataset's card; for a dataset on the hub, the commit's folder in the cache
    sizes: dict[str, int]  # bytes of the dataset's files, by their paths relative to `folder`
    fetch: Callable[[str], Path]  # returns the local file for such a path; UserError if it cannot be fetched

    @property
    def is_folder(self) -> bool:
        return self.commit is None


class Originals(NamedTuple):
    """The paths, at the source, of the files from which one dataset file is made."""

    questions: list[str]
    outputs: str | None = None  # the right answers, if they have their own file
    rows: str = ""  # prefix of the ids that rows without ids get
    contexts: str | None = None  # the file of the histories that questions refer to, if they share one file
    link: str | None = None  # the column that names a question's history file, if each history has its own file
    linked: Mapping[str, str] = {}  # paths of these files by the column's value; empty until the table is read
    messages: str = ""  # the key of the messages in a history's file
    ids_repeat: bool = False  # two questions may have the same id; an occurrence number distinguishes them
    responses: Sequence[str] = ()  # columns of responses; each becomes a file beside the dataset
    tables: Mapping[str, list[str]] = {}  # paths by table, if the dataset is joined from tables


def files_of(source: Source, config: str, split: str) -> list[str]:
    """Return the paths of a split's files, as listed in the card or else found by name; UserError if there are none.

    The card has `configs: [{config_name, data_files: [{split, path}]}]`, where a path is a pattern or a list of them.
    """
    from huggingface_hub.repocard import metadata_load, yaml

    try:
        card = metadata_load(source.folder / CARD) if CARD in source.sizes else None
        configs = [part for part in (card or {}).get("configs") or [] if part["config_name"] == config]
        entries = [entry for part in configs for entry in part.get("data_files", [])]
        listed = [entry["path"] for entry in entries if entry["split"] == split]
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{source.name}: cannot be downloaded: its {CARD} does not list its files") from None
    patterns = [str(path) for paths in listed for path in (paths if isinstance(paths, list) else [paths])]
    patterns = patterns or [f"*{config}/{split}/*", f"*{config}/{split}[-.]*"]
    readable = [path for path in sorted(source.sizes) if path.endswith(SUFFIXES)]
    files = [path for path in readable if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    if not files:
        what = f"{source.name}, {config}, {split}: cannot be downloaded"
        raise UserError(f"{what}: it has no file {patterns[0]!r} of a supported type ({', '.join(SUFFIXES)})")
    return files


@dataclass(frozen=True)
class Published:
    """A set of published files, with one or more files per split."""

    at: str | None  # hub name or web address; None if the texts need a licence
    folder: str  # the folder or config there
    name: str  # the dataset files are called <name>_<split>.json
    identity: Mapping[str, str]  # identifies this set in the datasets' manifests
    questions: Mapping[str, int | None]  # the expected number of questions by split; None if unknown
    said_by: str = ""  # the source of these numbers, in words


class OnHub(Published):
    """A config of a dataset on the hub; each row has a question and its answer."""

    def originals(self, source: Source, split: str) -> Originals:
        """Return a split's files; UserError if the source has none."""
        return Originals(files_of(source, self.folder, split), rows=f"{self.folder}-{split}")


class Pairs(OnHub):
    """Configs on the hub, one per entry of `questions`: datasets `<entry>_test` with two responses per row."""

    def originals(self, source: Source, split: str) -> Originals:
        """Return the files of the test split of the config `split`; UserError if the source has none."""
        return Originals(files_of(source, split, "test"), responses=("chosen", "rejected"))


@dataclass(frozen=True)
class Tables(OnHub):
    """Tables on the hub, each in its own folder, which a benchmark joins; `tables` names the tables of each part."""

    tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rated: str | None = None  # the part with rated responses, which are written to files beside it

    def originals(self, source: Source, split: str) -> Originals:
        """Return the files of a part's tables; UserError if the source lacks a table."""
        readable = [path for path in sorted(source.sizes) if path.endswith(SUFFIXES)]
        tables = {}
        for name in self.tables[split]:
            tables[name] = [path for path in readable if PurePosixPath(path).parent.name == name]
            if not tables[name]:
                kinds = ", ".join(SUFFIXES)
                raise UserError(f"{source.name}: has no folder {name} with a file of a supported type ({kinds})")
        return Originals([], tables=tables, responses=(RESPONSES, RATINGS) if split == self.rated else ())


class SharedContexts(OnHub):
    """Tables of questions on the hub, one per size, each with a file of shared histories; `questions` is by size."""

    def originals(self, source: Source, split: str) -> Originals:
        """Find both files, also in subfolders; UserError unless one folder has both, so that their releases match."""
        names = (f"questions_{split}.csv", f"shared_contexts_{split}.jsonl")
        folders = [{PurePosixPath(path).parent for path in source.sizes if PurePosixPath(path).name == name}
                   for name in names]  # fmt: skip
        if not (both := folders[0] & folders[1]):
            raise UserError(
                f"{source.name}: none of its folders has both {names[0]} and {names[1]}\n"
                f"  pass a folder with the files of {self.name} as published on the hub, {self.at}"
            )
        folder = min(both, key=lambda path: (len(path.parts), str(path)))
        questions, contexts = (str(folder / name) for name in names)
        return Originals([questions], contexts=contexts)


class OnServer(Published):
    """A folder on a web server, with a file of questions and a file of right answers per split.

    The answers of test sets are not published, but a local folder may have those of emails, which are from the corpus.
    """

    def originals(self, source: Source | Server, split: str) -> Originals:
        """Return a split's paths at the source; in a local folder, files may also be in a parent folder."""
        begin = "dev" if split == "val" else split  # LongLaMP's builder of emails uses LaMP's name
        folder = PurePosixPath(self.folder)
        places = [place for above in (folder, *folder.parents) for place in (above / begin, above)]
        if source.is_folder:
            places = [place for place in places if str(place / f"{begin}_questions.json") in source.sizes]
        if not places:
            raise UserError(
                f"{source.name}: has no file {self.folder}/{begin}/{begin}_questions.json, "
                "nor one in a parent folder\n"
                f"  pass a folder with the published files of {self.name}"
            )
        questions, outputs = (str(places[0] / f"{begin}_{kind}.json") for kind in ("questions", "outputs"))
        is_missing = source.is_folder and outputs not in source.sizes
        if split == "test" and (is_missing or not source.is_folder):
            return Originals([questions])
        if is_missing:
            raise UserError(f"{source.name}: has no file {outputs}, the answers to {questions}")
        return Originals([questions], outputs)


def by_setting(
    kind: type[OnHub] | type[OnServer],
    name: str,
    at: str | None,
    folders: Mapping[str, str],
    splits: Sequence[str],
    questions: Mapping[str, Sequence[int]],
    said_by: str,
) -> dict[str, list[OnHub | OnServer]]:
    """Return `Files.published` for a task with one folder per setting.

    Args:
        folders: the folders by setting.
        questions: the number of questions in each split, by folder, if known.
    """
    unknown = [None] * len(splits)
    counts = {folder: dict(zip(splits, questions.get(folder, unknown), strict=True)) for folder in folders.values()}
    return {
        setting: [kind(at, folder, f"{name}_{setting}", {"task": name, "setting": setting}, counts[folder], said_by)]
        for setting, folder in folders.items()
    }
