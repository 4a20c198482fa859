"""How tests share the machine: `make test` uses one process per core, and one more (pytest-xdist).

The tests of a file run in one of these processes, so that they share its fixtures. Those with a language model form one
group, so that they run one at a time. The longest groups start first.
"""

import gc
import os
import re
import signal
import zlib
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import PurePath

import pytest
from zygote import Zygote

from utils.base import manifest

# Every process has its own core, and so do the processes it starts: more threads would only wait for each other. Set
# before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB: else a quarter of the free memory
# The tests' servers use plain HTTP on loopback. Reading all certificate authorities takes longer than most requests, so
# clients get a folder without any.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)

# More processes would finish long before the longest group.
MOST_PROCESSES = 16
# Files with tests that load a language model into an engine. Whole files, because the scheduler knows only names.
ENGINE = {
    "test_engines",
    "test_thinking_engine",
    "test_likelihood",
    "test_learnt_planner",
    "test_model_cache",
    "test_benchmarks",
    "test_prepare_demo_models",
    "test_plain_commands",
    "test_one_row",
    "test_rounds_of_studies",
    "test_embed_responses",
}
# Files whose tests take seconds each, or start many processes: not for `make test-fast`.
SLOW = {
    "test_api_engine", "test_batch", "test_benchmarks", "test_build_dataset", "test_build_personamem",
    "test_derived_files",
    "test_download_datasets", "test_download_originals", "test_gpu_checks", "test_learning", "test_long_texts",
    "test_memory", "test_methods", "test_models", "test_nothing_made_up", "test_own_categories", "test_paid_once",
    "test_planner_training", "test_ranker", "test_refusals", "test_reward_models", "test_search", "test_secrets",
    "test_setup", "test_slurm", "test_studies", "test_train_generator", "test_training_memory", "test_unfinished",
    "test_wordings",
}  # fmt: skip
# Files that would finish last, with the part of test names that splits them into groups.
CASES = "baselines|evaluate_responses|planpers|rank_dataset bm25|rank_dataset"
SPLIT = {"test_crashes": CASES, "test_damage": CASES}
# Imports of the scripts that load a small model, except vllm.
WARM = (
    "openai.resources.chat", "anyio._backends._asyncio", "transformers.models.auto", "transformers.models.bert",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.bert.modeling_bert", "jinja2.sandbox",
    "retrieval.rank_dataset", "retrieval.encoder", "retrieval.rankers",
    "utils.train_generator", "utils.training.trainers", "transformers.models.t5.modeling_t5",
    "utils.training.trainer", "train_planner", "baselines", "planpers", "evaluate_responses",
)  # fmt: skip
API = ("openai.resources.chat", "anyio._backends._asyncio", "baselines", "planpers", "evaluate_responses")
VLLM = (
    "vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor", "vllm.lora.request",
    "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.llama", "vllm.model_executor.models.qwen2", "xgrammar",
)  # fmt: skip


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A process with the slow imports done; its forks run the scripts, offline and without a cache."""
    with start_zygote(tmp_path_factory.mktemp("warm"), *WARM) as zygote:
        yield zygote


@pytest.fixture(scope="session")
def warm_api(tmp_path_factory):
    """The same, with only the imports of a script that uses an API; its forks are the fastest."""
    with start_zygote(tmp_path_factory.mktemp("warm_api"), *API) as zygote:
        yield zygote


@pytest.fixture(scope="session")
def warm_engine(tmp_path_factory):
    """Like `warm`, with vllm imported too: a script and its engine start in 3 seconds."""
    with start_zygote(tmp_path_factory.mktemp("warm_engine"), *WARM, *VLLM) as zygote:
        yield zygote


@pytest.fixture(scope="session", autouse=True)
def looked_up_once():
    """Look up git and package metadata for manifests only once, because that takes longer than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("versions", "_git_commit"):
            patch.setattr(manifest, name, cache(getattr(manifest, name)))
        yield


@contextmanager
def start_zygote(folder, *modules):
    places = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    zygote = Zygote(folder, *modules, **places, HF_HUB_OFFLINE="1")
    yield zygote
    zygote.close()


def pytest_configure(config):
    if config.getoption("device", None) != "cuda":  # a flag of tests/gpu; all other tests are for the CPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # A shell makes its background jobs ignore Ctrl-C, which processes inherit. Tests send that signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # half of the time to import and collect the tests would go into it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One per core that this process may use (maybe not all), and one more, because many tests wait."""
    return min(len(os.sched_getaffinity(0)) + 1, MOST_PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    # Its --dist loadgroup appends a group to a test's name, where pytest 9.2 no longer looks.
    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    config.option.loadscopereorder = False  # in the given order, not by the number of tests
    return GroupScheduling(config, log)


def vllm_is_for_gpus():
    """Return whether vllm is the GPU build; its CPU build is the package vllm-cpu."""
    try:
        return "cpu" not in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return False


def pytest_addoption(parser):
    what = "run each case of tests that are marked `alike`, and tests that are marked `long`"
    parser.addoption("--all_cases", action="store_true", help=what)


def leave_out_alike(config, items):
    """Leave out tests marked `long`; of cases that differ only in the parameters of `alike`, keep one.

    It is chosen by a hash of the others.
    """
    groups = {}
    for item in items:
        if marker := item.get_closest_marker("alike"):
            rest = [(name, value) for name, value in item.callspec.params.items() if name not in marker.args]
            same = re.sub(
                " at 0x[0-9a-f]+", "", repr(sorted(rest, key=lambda its: its[0]))
            )  # an address differs between processes
            groups.setdefault(f"{item.function.__qualname__} {same}", []).append(item)
    kept = {its[zlib.crc32(key.encode()) % len(its)] for key, its in groups.items()}
    left_out = {item for its in groups.values() for item in its if item not in kept}
    left_out |= {item for item in items if item.get_closest_marker("long")}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")
    if not config.getoption("all_cases"):
        leave_out_alike(config, items)
    engine = [item for item in items if item.get_closest_marker("engine")]
    if engine and vllm_is_for_gpus():
        reason = f"{len(engine)} tests of an engine; this vllm is the build for GPUs, on which make test-gpu runs it"
        engine[0].add_marker(pytest.mark.skip(reason=reason))  # one line for all of them
        items[:] = [item for item in items if item is engine[0] or not item.get_closest_marker("engine")]
    if hasattr(config, "workerinput"):  # this is one of several processes
        items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("engine", "slow")])


def pytest_collection_finish():
    gc.freeze()  # else every garbage collection scans thousands of tests and torch
    gc.enable()


def group_of(nodeid):
    file, _, test = nodeid.partition("::")
    name = PurePath(file).stem
    if name in ENGINE:
        return "engine"
    found = re.search(SPLIT[name], test) if name in SPLIT else None
    return f"{name} {found[0]}" if found else name
