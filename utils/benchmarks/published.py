"""Where a benchmark's own files are published, how they are called there, and how many questions they hold.

utils/download_datasets.py makes of them the files that every command reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from utils.cli import UserError
from utils.files.web_files import Server
from utils.models.hub_datasets import Source, files_of

AVOCADO = "docs/lamp.md"  # how to put in the texts of a corpus that nobody may publish


class Originals(NamedTuple):
    """What one of our files is made from: files by their paths at the source."""

    questions: list[str]
    outputs: str | None = None  # the right answers, if they have their own file
    rows: str = ""  # prefix of ids for rows without ids
    contexts: str | None = None  # the histories that questions refer to, if they have their own file
    link: str | None = None  # the column that names a question's history, where each history has a file of its own
    linked: Mapping[str, str] = {}  # these files by what that column holds, once it is read
    messages: str = ""  # the key of the messages in such a file
    ids_repeat: bool = False  # two questions may have one id; an occurrence number then tells them apart


@dataclass(frozen=True)
class Published:
    """A set of files, one or several a split, that belong together."""

    at: str | None  # the hub's name for it, or an address; None for texts that only holders of a licence may have
    folder: str  # its name there
    name: str  # what our files are called, before _<split>.json
    identity: Mapping[str, str]  # what tells it from others, in the manifests of our files
    questions: Mapping[str, int | None]  # by split how many there are to be, None where nobody says
    said_by: str = ""  # who says that, in words


class OnHub(Published):
    """A config of a dataset on the hub, whose rows hold question and answer."""

    def originals(self, source: Source, split: str) -> Originals:
        """UserError where the source has none."""
        return Originals(files_of(source, self.folder, split), rows=f"{self.folder}-{split}")


class SharedContexts(OnHub):
    """On the hub a table of questions a size, and a file of the histories that they share; `questions` are by size."""

    def originals(self, source: Source, split: str) -> Originals:
        """The files, also in a folder below; UserError unless one folder has both: else they may be of two releases."""
        names = (f"questions_{split}.csv", f"shared_contexts_{split}.jsonl")
        found = [{PurePosixPath(path).parent for path in source.sizes if PurePosixPath(path).name == name}
                 for name in names]  # fmt: skip
        if not (both := found[0] & found[1]):
            raise UserError(
                f"{source.name}: no folder in it has both {names[0]} and {names[1]}\n"
                f"  it is to hold the files of {self.name} as they are on the hub, {self.at}"
            )
        folder = min(both, key=lambda path: (len(path.parts), str(path)))
        questions, contexts = (str(folder / name) for name in names)
        return Originals([questions], contexts=contexts)


class OnServer(Published):
    """A folder on a web server, with a file of questions and one of right answers per split.

    The answers to the test set are withheld; a folder may hold them, since emails' are in the corpus.
    """

    def originals(self, source: Source | Server, split: str) -> Originals:
        """The files as the server has them; in a folder also without the server's folders, as users fetch them."""
        begin = "dev" if split == "val" else split  # LongLaMP's builder of emails names it as LaMP does
        folder = PurePosixPath(self.folder)
        places = [place for above in (folder, *folder.parents) for place in (above / begin, above)]
        if source.is_folder:
            places = [place for place in places if str(place / f"{begin}_questions.json") in source.sizes]
        if not places:
            raise UserError(
                f"{source.name}: no file {self.folder}/{begin}/{begin}_questions.json in it, "
                "nor one of that name in a folder above\n"
                f"  it is to hold the files of {self.name} as they are published"
            )
        questions, outputs = (str(places[0] / f"{begin}_{kind}.json") for kind in ("questions", "outputs"))
        is_missing = source.is_folder and outputs not in source.sizes
        if split == "test" and (is_missing or not source.is_folder):
            return Originals([questions])
        if is_missing:
            raise UserError(f"{source.name}: no file {outputs} in it, the answers to {questions}")
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
    """`Task.published` of a task that has one folder a setting.

    Args:
        folders: by setting.
        questions: by folder those of each split, where somebody says how many there are.
    """
    counts = {one: dict(zip(splits, questions.get(one, [None] * len(splits)), strict=True)) for one in folders.values()}
    return {
        setting: [kind(at, one, f"{name}_{setting}", {"task": name, "setting": setting}, counts[one], said_by)]
        for setting, one in folders.items()
    }
