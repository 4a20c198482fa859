"""The Hugging Face hub: whether it can be reached, requests, errors, and the cache. Imports no torch, to be fast."""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from utils.base.errors import PassingError, UserError, setting_up_client
from utils.base.progress import announce
from utils.base.web_files import LONGEST_WAIT, read_retry_after

CONFIGS = ("config.json", "adapter_config.json")  # of a whole model, and of a LoRA adapter
# Names of API models; no model on the hub has such a name without an owner.
API_NAMES = re.compile(r"(gpt-|chatgpt-|claude-|gemini-|o\d+(-|$))")
CONNECT_SECONDS, ANSWER_SECONDS = 5, 10  # timeouts for reaching the hub; a slow answer counts as reached
TRIES = 6  # tries of a request while the hub fails; the hub's client also makes six

T = TypeVar("T")


class MissingError(UserError):
    """A model or dataset does not exist, here or on the hub, or cannot be fetched now."""


class UnreachableError(MissingError):
    """The hub does not answer, and the cache lacks the requested files."""


class HubFailedError(PassingError):
    """The hub fails, or limits the rate of requests."""


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set or the hub cannot be reached (refused, no such host, no route).

    A hub that is slow or fails counts as reached. This function tries once, and sets HF_HUB_OFFLINE for this process if
    the hub cannot be reached. Without that, the hub's client would retry each missing file for 23 s or more.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError

    if not constants.HF_HUB_OFFLINE:
        with setting_up_client():
            try:  # timeouts to connect, to read, to write, and for a free connection
                get_session().head(constants.ENDPOINT, timeout=(CONNECT_SECONDS, *[ANSWER_SECONDS] * 3))
            except HTTPError as error:  # by name, because the client may use any HTTP library
                constants.HF_HUB_OFFLINE = type(error).__name__ in ("ConnectError", "ConnectTimeout")
    return constants.HF_HUB_OFFLINE


def ask_hub(call: Callable[..., T], *args: Any, **more: Any) -> T:
    """Call a function of the hub's client, and retry it while the hub fails (5xx) or limits the request rate (429).

    Each pause is as long as the hub asks, or 1, 2, 4, 8 and 16 s. `hf_hub_download` does not need this: it retries
    failed requests itself.
    """
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import parse_ratelimit_headers

    for tries in range(1, TRIES + 1):
        try:
            return call(*args, **more)
        except (HfHubHTTPError, OSError) as error:  # `snapshot_download` wraps the hub's error
            response = getattr(error if isinstance(error, HfHubHTTPError) else error.__cause__, "response", None)
            if response is None or not (response.status_code == 429 or response.status_code >= 500) or tries == TRIES:
                raise
            limits = parse_ratelimit_headers(response.headers)
            reset = limits.reset_in_seconds if limits and not limits.remaining else 0
            pause = read_retry_after(response.headers) or (reset if reset <= LONGEST_WAIT else 0) or 2 ** (tries - 1)
            announce(f"the hub returned status {response.status_code}; retrying in {pause:.0f} s")
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


@contextmanager
def hub_errors(name: str, cache_dir: str | None, kind: str = "model", revision: str | None = None) -> Iterator[None]:
    """Turn errors of the hub's client into UserErrors without the errors' texts, which may contain the token.

    The client's own messages are turned off, and unless stderr is a terminal, its progress bars too.

    Raises:
        MissingError: the hub has no such model or dataset (`kind`).
        UnreachableError: the files cannot be fetched now; the same command may succeed later or elsewhere.
        HubFailedError: the hub fails, or limits the rate of requests.
        UserError: the hub refuses.
        OSError: the cache cannot be written.
    """
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it shows addresses, which may hold secrets
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    except errors.GatedRepoError:
        raise UserError(f"{name}: a gated {kind}; ask for access on its page, then `hf auth login`") from None
    except errors.RepositoryNotFoundError as error:
        _check_token(name, error)
        problem = f"no such folder, and no such {kind} on the hub, or a private one (`hf auth login`)"
        raise MissingError(f"{name}: {problem}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: has no branch, tag or commit {revision} on the hub") from None
    except errors.HFValidationError:
        raise UserError(f"{name!r}: neither a folder nor a valid name on the hub") from None
    except UnicodeError:  # a token in the environment that is not valid in a header
        with setting_up_client():
            raise
    except (errors.HTTPError, errors.CachedRepoTreeNotFoundError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk
            error.filename = error.filename or cache_dir
            raise
        if constants.HF_HUB_OFFLINE:
            problem = "no such folder, missing or incomplete in the cache"
            problem += ", and the hub cannot be reached or HF_HUB_OFFLINE is set"
            raise UnreachableError(f"{name}: {problem}\n  {how_to_fetch(name, cache_dir, kind)}") from None
        cause = (isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__) or error
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else None
        _check_token(name, cause)
        if status == 429:
            problem = "the hub limits the rate of requests (status 429)"
            remedy = "wait, log in with `hf auth login`, or fetch the files once (utils/slurm/prefetch.sh)"
            raise HubFailedError(f"{name}: {problem}\n  {remedy} and set HF_HUB_OFFLINE=1") from None
        if status is not None and status < 500:
            problem = f"the hub returned status {status}; check the token with `hf auth whoami`"
            raise UserError(f"{name}: cannot be downloaded: {problem}") from None
        problem = f"the hub returned status {status}" if status else f"the connection failed ({type(cause).__name__})"
        if "Consistency check" in str(error):
            problem = "the size of a file differs from the size that the hub reports"
        remedy = "run the same command again to resume, or copy its folder here and pass that "
        remedy += "as --dataset_name" if kind == "dataset" else "instead of the name"
        kind_of_error = HubFailedError if status else UnreachableError
        raise kind_of_error(f"{name}: cannot be downloaded: {problem}\n  {remedy}") from None


def _check_token(name: str, error: Exception) -> None:
    """Raise UserError if the hub refused a token (401); if no token was sent, 401 means that there is no such model."""
    response = getattr(error, "response", None)
    if response is not None and response.status_code == 401 and "authorization" in response.request.headers:
        problem = "the hub does not accept the token (from HF_TOKEN or `hf auth login`): it has expired or was revoked"
        raise UserError(f"{name}: {problem}\n  log in again with `hf auth login`, or remove the token") from None


def cached_folder(name: str, cache_dir: str | None = None) -> Path | None:
    """Return a model's folder; for a hub model, the cached folder of its main commit, or None if it is not cached."""
    if is_folder(name):
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import validate_repo_id

    with hub_errors(name, cache_dir):
        validate_repo_id(name)
    paths = (try_to_load_from_cache(name, config, cache_dir=cache_dir) for config in CONFIGS)
    return next((Path(path).parent for path in paths if isinstance(path, str)), None)


def check_cache_dir(cache_dir: str | None) -> None:
    """Raise UserError if --cache_dir exists and is not a folder."""
    if cache_dir is not None and Path(cache_dir).exists() and not Path(cache_dir).is_dir():
        raise UserError(f"--cache_dir {cache_dir}: not a folder")


def is_folder(name: str) -> bool:
    """Return whether a name is a folder, not a hub name: it exists, begins like a path, or has two slashes or more."""
    return Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1


def how_to_fetch(name: str, cache_dir: str | None, kind: str = "model") -> str:
    from huggingface_hub import constants

    place = cache_dir or constants.HF_HUB_CACHE
    return f"on a node with internet, run: hf download {name} --repo-type {kind} --cache-dir {place}"
