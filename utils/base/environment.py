"""Environment variables that HTTP clients read: Python itself, httpx, OpenAI's library, and the hub's client."""

import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from utils.base.cli import address_problem
from utils.base.errors import UserError

PROXIES = [name for scheme in ("http", "https", "all") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")]
READERS: dict[str, Callable[[str], object]] = {  # variable with a path -> reads it as Python and HTTP clients do
    "SSL_CERT_FILE": lambda path: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path),
    "SSL_CERT_DIR": lambda paths: any(map(os.path.isdir, paths.split(os.pathsep))) or os.listdir(paths),
    "SSLKEYLOGFILE": lambda path: open(path, "a").close(),
}
OF_API = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")
OF_HUB = ("HF_TOKEN", "HF_HUB_USER_AGENT_ORIGIN")


def check_environment(names: Sequence[str] = ()) -> None:
    """Raise UserError for an environment variable with which HTTP clients would fail.

    `names` are further variables, `OF_API` or `OF_HUB`, which only one client reads and sends in headers.
    """
    for name, address in _proxies().items():
        scheme, _, rest = (address if "://" in address else f"http://{address}").partition("://")
        is_socks = scheme in ("socks5", "socks5h")
        if is_socks and find_spec("socksio") is None:
            raise wrong(name, "a SOCKS proxy needs the package socksio (pip install socksio)")
        if problem := address_problem(f"{'http' if is_socks else scheme}://{rest}"):
            raise wrong(name, problem)
    for name in ("no_proxy", "NO_PROXY"):
        for host in os.environ.get(name, "").split(","):
            try:
                urlsplit(host if "://" in host else f"//{host}")
            except ValueError:
                raise wrong(name, f"{host.strip()} is not a valid address") from None
    for name, read in READERS.items():
        if value := os.environ.get(name):
            try:
                read(value)
            except OSError as error:  # also what ssl raises
                raise wrong(name, f"{value} cannot be used: {error.strerror or error}") from None
    for name in names:
        value = os.environ.get(name, "")
        value = value.strip() if name == "HF_TOKEN" else value  # as the hub's client does
        lines = value.split("\n") if name.endswith("_HEADERS") else [value]  # each is `name: value`
        if not all(line.isascii() and line.isprintable() and line == line.strip() for line in lines):
            raise wrong(name, "it is sent as an HTTP header; use printable ASCII without leading or trailing spaces")


def check_before_hub() -> None:
    """Raise UserError if the hub's client cannot be imported because of an environment variable."""
    if (address := os.environ.get("HF_ENDPOINT")) and (problem := address_problem(address)):
        raise wrong("HF_ENDPOINT", problem)
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        if not os.environ.get(name, "0").isdigit():
            raise wrong(name, "not a number of seconds")


def proxy_before(url: str) -> str | None:
    """Return the name of the variable with the proxy to a server on this machine or in its network, or None."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    with suppress(ValueError):  # the host is a name, not an IP address
        if not ip_address(host).is_private:
            return None
    if ("." in host and not host.replace(".", "").isdigit()) or proxy_bypass(f"{host}:{parts.port or ''}"):
        return None
    return next((name for name in _proxies() if name.lower() in (f"{parts.scheme}_proxy", "all_proxy")), None)


def _proxies() -> dict[str, str]:
    return {name: value for name in PROXIES if (value := os.environ.get(name))}


def wrong(name: str, problem: str) -> UserError:
    """Return the error for a problem with an environment variable."""
    return UserError(f"{name} in the environment: {problem}; correct or unset it")
