"""Turn a benchmark's published files into one file of records, with a manifest of their origin.

The hub's client fetches the files: it caches finished files, resumes after a lost connection, and compares sizes."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from utils.base.errors import UserError, count_noun, quote, setting_up_client
from utils.base.made import Made, State, say_finished
from utils.base.manifest import file_hash, publish, publishing, read_manifest
from utils.base.progress import announce, announce_file
from utils.base.web_files import Server
from utils.base.writing import delete_leftovers, open_whole, real_path, replacing, write_array
from utils.benchmarks.checks import Record, check_field, check_id
from utils.benchmarks.personamem.contexts import ContextsFile, refer, write_contexts
from utils.benchmarks.published import CARD, RATINGS, RESPONSES, OnHub, OnServer, Originals, Source
from utils.benchmarks.task import Task
from utils.data.datasets import check_record, read_questions
from utils.data.originals import read_originals, rows_of
from utils.data.responses import question_hash
from utils.data.tables import table_rows
from utils.models.hub import HubFailedError, UnreachableError, ask_hub, hub_errors, is_folder


def find_source(name: str, revision: str | None, cache_dir: str) -> Source:
    """Return the dataset in a folder or on the hub; if the hub does not answer, the dataset at the cached commit.

    UserError if there is no such dataset or it cannot be fetched; UnreachableError if the hub does not answer and the
    cache lacks the dataset.
    """
    if is_folder(name):
        return find_folder(name, "--dataset_name", revision)
    with setting_up_client():
        from huggingface_hub import HfApi, constants, get_cached_repo_tree, get_session, snapshot_download
        from huggingface_hub.utils import disable_progress_bars

        get_session()
    where, unreachable = {"repo_id": name, "repo_type": "dataset", "cache_dir": cache_dir}, None
    try:  # snapshot_download would wait without a limit, and silently use the cached commit
        with hub_errors(name, cache_dir, "dataset", revision):
            ask_hub(HfApi().dataset_info, name, revision=revision, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    except (UnreachableError, HubFailedError) as error:
        unreachable = error
    card = {"allow_patterns": CARD, "local_files_only": unreachable is not None}
    try:
        with hub_errors(name, cache_dir, "dataset", revision), disable_progress_bars():
            folder = Path(ask_hub(snapshot_download, **where, revision=revision, **card))
            tree = get_cached_repo_tree(**where, revision=folder.name)
    except (UnreachableError, HubFailedError) as error:
        raise unreachable or error from None
    if unreachable is not None and not constants.HF_HUB_OFFLINE:
        announce(f"note: {str(unreachable).splitlines()[0]}")
        announce(f"  continuing with the commit in --cache_dir {cache_dir}")
    sizes = {entry.path: entry.size for entry in tree}
    return Source(name, folder.name, folder, sizes, partial(_fetch, name, folder, sizes, cache_dir))


def _fetch(name: str, folder: Path, sizes: dict[str, int], cache_dir: str, path: str) -> Path:
    """Return the local path of a hub dataset's file, fetched if the cache lacks it; UserError if it cannot be fetched.

    `snapshot_download` is not used, because its threads continue to download gigabytes after a Ctrl-C.
    """
    from huggingface_hub import hf_hub_download

    if not (folder / path).exists():
        announce_file("fetching", path, sizes[path])
    where = {"repo_id": name, "repo_type": "dataset", "cache_dir": cache_dir}
    with hub_errors(name, cache_dir, "dataset", folder.name):
        return Path(hf_hub_download(**where, revision=folder.name, filename=path))


def find_folder(name: str, flag: str, revision: str | None = None) -> Source:
    """Return the dataset in a folder that `flag` names; UserError if it is not a folder, or a revision is given."""
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"{flag} {name}: {'not a folder' if folder.exists() else 'no such folder'}")
    if revision is not None:
        raise UserError(f"--revision {revision}: {name} is a folder, so it has no revisions")
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return Source(name, None, folder, sizes, folder.joinpath)


def make_file(
    task: Task,
    published: OnHub | OnServer,
    split: str,
    source: Source | Server,
    path: Path,
    overwrite: bool,
    run: dict[str, Any],
    skip_invalid: bool = False,
) -> None:
    """Write one dataset file and its manifest, which has the fields of `run`, and print a summary.

    Files beside the dataset are written first: one with the histories that questions share, and one for each column of
    responses. With `skip_invalid`, questions whose end lies outside their history are left out.
    """
    originals = published.originals(source, split)
    originals = originals._replace(linked=find_linked(source, originals)) if originals.link else originals
    names = [*originals.questions, *filter(None, [originals.outputs, originals.contexts]), *originals.linked.values()]
    names += chain.from_iterable(originals.tables.values())
    stem = real_path(path).with_suffix("")  # of the file that is written: a link's target
    has_contexts = originals.contexts or originals.link
    contexts_path = stem.with_name(f"{stem.name}_contexts.jsonl") if has_contexts else None
    name = "a folder" if source.is_folder else source.name  # a folder is identified by its content alone
    settings: dict[str, Any] = {"dataset_name": name, "commit": source.commit, **published.identity, "split": split}
    settings |= {"skip_invalid": True} if skip_invalid else {}
    if source.is_folder:
        settings["sha256"] = [file_hash(source.fetch(name)) for name in names]
    responses = {
        stem.with_name(f"{stem.name}_{column}.json"): settings | {"response": column} for column in originals.responses
    }
    states = [Made(made, wanted, overwrite).check() for made, wanted in {path: settings, **responses}.items()]
    if {*states} == {State.CURRENT} and (
        contexts_path is None
        or (contexts_path.is_file() and file_hash(contexts_path) == read_manifest(path).get("contexts_sha256"))
    ):
        say_finished(path)
        return
    started = time.monotonic()
    files = {name: source.fetch(name) for name in names}
    hashes = {name: file_hash(file) for name, file in files.items()}
    manifest = {**run, "settings": settings}
    with telling_how_again(source, files), publishing(path, manifest) as staged:
        if contexts_path is None:
            announce_file("writing", path, sum(file.stat().st_size for file in files.values()))
            write = write_joined if originals.tables else write_questions
            number, texts, counts = write(task, split, originals, files, staged)
            figures: dict[str, Any] = {"questions": number, **({"counts": counts} if counts else {})}
            for response_path, wanted in responses.items():
                content = texts[column := wanted["response"]]
                if column == RATINGS:  # ratings refer to the responses, which are written by now
                    content = {"verdicts": content, "responses": file_hash(next(iter(responses)))}
                publish(response_path, content, {**run, "settings": wanted})
        else:
            figures = write_with_contexts(task, originals, files, staged, contexts_path, overwrite, skip_invalid)
        expected = published.questions[split]
        if expected is not None:
            figures["published_questions"] = {"number": expected, "source": published.said_by}
        note = describe_figures(figures)
        figures |= {"source_sha256": hashes, "wall_seconds": round(time.monotonic() - started, 3)}
        manifest |= figures
    at = f" of commit {source.commit[:12]}" if source.commit else ""
    print(f"{path}: {count_noun(figures['questions'], 'question')}{at}{note}", flush=True)


def describe_figures(figures: dict[str, Any]) -> str:
    """Describe skipped questions, identical options, and a difference from the published number of questions."""
    notes, published = [], figures.get("published_questions", {"number": figures["questions"]})
    if figures.get("skipped"):
        notes.append(f"{figures['skipped']} skipped, because the history ends at a message that does not exist")
    notes += [f"{number} {what}" for what, number in figures.get("counts", {}).items()]
    if figures.get("identical_options"):
        right = f"in {figures['identical_to_right']} of these, the right option is one of the two"
        notes.append(f"{figures['identical_options']} with two identical options; {right}")
    if published["number"] != figures["questions"]:
        notes.append(f"{published['source']} says {published['number']}")
    return "".join(f"; {note}" for note in notes)


def find_linked(source: Source, originals: Originals) -> dict[str, str]:
    """Return, by link, the path of each linked history at the source; UserError if the source lacks the file.

    A link ends with a path relative to the table's folder or a parent of it; an address or folders may come first.
    """
    [table] = originals.questions
    folder, paths_by_link = PurePosixPath(table).parent, {}
    for where, row in table_rows(source.fetch(table)):
        link = row.get(originals.link) or ""
        parts = PurePosixPath(link.partition("?")[0]).parts[-20:]  # deeper nesting would take seconds per link
        ends = (PurePosixPath(*parts[first:]) for first in range(len(parts)))
        paths = (str(above / end) for end in ends for above in (folder, *folder.parents))
        paths_by_link[link] = paths_by_link.get(link) or next((path for path in paths if path in source.sizes), None)
        if paths_by_link[link] is None:
            row_number = where.rpartition(": ")[2]
            raise UserError(
                f"{source.name}: {table}: {row_number}: {originals.link}: no file {quote(link)}\n"
                "  use the complete dataset: the published table and the files that it links to"
            )
    return paths_by_link


@contextmanager
def telling_how_again(source: Source | Server, files: dict[str, Path]) -> Iterator[None]:
    """Add to a one-line UserError what to do about the damaged files."""
    try:
        yield
    except UserError as error:
        if "\n" in str(error):
            raise
        named = [file for file in files.values() if str(file) in str(error)] or files.values()
        # Delete the target of a link in the hub's cache, or the client would find it there.
        blobs = [file.parent / file.readlink() if file.is_symlink() else file for file in named]
        again = f"delete {' '.join(map(os.path.normpath, blobs))} to download it again"
        raise UserError(f"{error}\n  {'copy it again' if source.is_folder else again}") from None


def write_joined(
    task: Task, split: str, originals: Originals, files: dict[str, Path], path: Path
) -> tuple[int, dict[str, dict[str, Any]], dict[str, int]]:
    """Write the records that a benchmark joins from tables; return their number, other files, and `join`'s counts."""
    rows = lambda paths: chain.from_iterable(rows_of(files[file]) for file in paths)  # noqa: E731
    placed, texts, counts = task.files.join(split, {name: rows(paths) for name, paths in originals.tables.items()})
    if not placed:
        raise UserError(f"{path.parent}: the tables have no questions of the part {split}")
    records = [record for _, record in placed]
    for where, record in placed:
        check_record(record, where, [name for name in task.fields if name in record])
    for record in records:
        for response in texts.get(RESPONSES, {}).get(record["id"], ()):
            response["question_hash"] = question_hash(record)
    return write_array(path, records, indent=4), texts, counts


def write_questions(
    task: Task, split: str, originals: Originals, files: dict[str, Path], path: Path
) -> tuple[int, dict[str, dict[str, list[dict[str, Any]]]], dict[str, int]]:
    """Write the records of these files as one JSON array, without their columns of responses.

    Return the number of records, the responses by column, and no counts; UserError if a file is damaged, or a response
    is missing.
    """
    questions = [files[name] for name in originals.questions]
    outputs = originals.outputs and files[originals.outputs]
    responses: dict[str, dict[str, list[dict[str, Any]]]] = {column: {} for column in originals.responses}

    def split_off(row: dict[str, Any], where: str) -> Record:
        for column, by_id in responses.items():
            check_field(row, where, column)
            by_id[check_id(row.get("id"), where)] = [{"output": row.pop(column), "question_hash": question_hash(row)}]
        return row

    task = replace(task, files=replace(task.files, convert=split_off)) if responses else task
    return write_array(path, read_originals(task, questions, outputs, originals.rows), indent=4), responses, {}


def compare_ids(path: Path, other: Path) -> None:
    """Print how many ids are in only one of two datasets; if `other` is missing, print how to get it."""
    if not other.exists():
        print(f"{path}: ids not compared; download the dataset with {other.name} to this folder, and run this again")
        return
    ids, others = ({record["id"] for record in read_questions(dataset, [])} for dataset in (path, other))
    only_here, only_there = len(ids - others), len(others - ids)
    print(f"{path}: {only_here} of {count_noun(len(ids), 'id')} not in {other}; {only_there} only in the latter")


def write_with_contexts(
    task: Task,
    originals: Originals,
    files: dict[str, Path],
    path: Path,
    contexts_path: Path,
    overwrite: bool,
    skip_invalid: bool,
) -> dict[str, Any]:
    """Write the contexts (copied, or made of linked histories) and the records (to `path`), and return counts.

    UserError if a file is damaged or a question refers to a missing context; existing contexts are then kept.
    """
    announce_file("reading", files[originals.contexts or originals.questions[0]])
    delete_leftovers(contexts_path)
    with replacing(contexts_path) as copy:
        questions = [files[name] for name in originals.questions]
        records: Iterable[Record] = read_originals(task, questions, ids_repeat=originals.ids_repeat)
        if originals.link:
            records = list(records)  # so that errors in the records are reported first
            histories = {link: files[name] for link, name in originals.linked.items()}
            write_contexts(histories, originals.messages, copy)
        shared = copy if originals.link else files[originals.contexts]
        contexts = ContextsFile(shared)
        referring, skipped = refer(records, contexts, contexts_path.name, skip_invalid)
        if contexts_path.is_file() and not overwrite and file_hash(contexts_path) != contexts.sha256:
            raise UserError(f"{contexts_path}: exists, but has other contexts\n  add --overwrite to replace it")
        announce_file("writing", contexts_path, shared.stat().st_size)
        if not originals.link:
            with shared.open("rb") as whole, open_whole(copy, "wb") as file:
                shutil.copyfileobj(whole, file)
    return {
        "questions": write_array(path, referring, indent=4),
        "contexts": len(list(contexts)),
        "contexts_sha256": contexts.sha256,
        "skipped": skipped,
        **count_identical(task, referring),
    }


def count_identical(task: Task, records: list[Record]) -> dict[str, int]:
    """Count the questions with two options of the same text, and those whose right option is one of them."""
    twins = {"identical_options": 0, "identical_to_right": 0}
    for record in records:
        texts = task.options.texts(record) if task.options else {}
        twins["identical_options"] += len(set(texts.values())) < len(texts)
        twins["identical_to_right"] += [*texts.values()].count(texts.get(record.get("target"))) > 1
    return twins
