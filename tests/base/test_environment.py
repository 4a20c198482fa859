"""Variables of the environment that HTTP clients read: each client names a wrong one, instead of a traceback."""

import os
from argparse import Namespace

import pytest

from utils.base import cli
from utils.base.environment import OF_API, OF_HUB, check_environment, proxy_before
from utils.base.errors import UserError
from utils.base.web_files import Server
from utils.data.downloads import find_source
from utils.generation.api_engine import APIEngine
from utils.generation.engines import identify_model
from utils.models.hub import check_model

API = Namespace(openai=True, cached_only=False, api_key_addr=None, model_id=None)
CLIENTS = {
    "API": lambda folder: identify_model(API, "gpt"),
    "hub": lambda folder: check_model("owner/model", str(folder)),
    "web": lambda folder: Server("http://127.0.0.1:9", str(folder)).fetch("a.json"),
    "datasets": lambda folder: find_source("owner/data", None, str(folder)),
}


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody answers


WRONG = [
    ("SSL_CERT_FILE", "/nowhere/ca.pem"), ("SSL_CERT_FILE", __file__), ("SSL_CERT_DIR", "/nowhere:/nor/here"),
    ("SSLKEYLOGFILE", "/nowhere/keys"), ("ALL_PROXY", "socks5://127.0.0.1:1"), ("all_proxy", "socks4://127.0.0.1:1"),
    ("https_proxy", "socks5h://me:secret@127.0.0.1:1"), ("HTTP_PROXY", "http://me:secret@127.0.0.1:abc"),
]  # fmt: skip
WRONG_FOR_ONE = [
    ("API", "OPENAI_ORG_ID", "org-ü"), ("API", "OPENAI_PROJECT_ID", "p\n"),
    ("API", "OPENAI_CUSTOM_HEADERS", "A: b\nC: é"),
    ("hub", "HF_TOKEN", "hf_ü"), ("datasets", "HF_TOKEN", "hf_\u2013x"), ("hub", "HF_ENDPOINT", "hub.example"),
    ("datasets", "HF_ENDPOINT", "http://hub.example:port"), ("hub", "HF_HUB_ETAG_TIMEOUT", "10s"),
    ("datasets", "HF_HUB_DOWNLOAD_TIMEOUT", "long"),
    ("web", "NO_PROXY", "localhost,fd07:b51a:cc66:f0::/64"),  # the other clients' library reads it
]  # fmt: skip
NEAR = [
    ("http://localhost:8000/v1", "", "http_proxy"), ("http://127.0.0.1:8000/v1", "localhost", "http_proxy"),
    ("http://node17:8000/v1", "localhost", "http_proxy"), ("https://[::1]:8000/v1", "", "ALL_PROXY"),
    ("http://localhost:8000/v1", "127.0.0.1,localhost", None), ("http://localhost:8000/v1", "localhost:8000", None),
    ("http://127.0.0.1/v1", "*", None), ("http://api.example/v1", "", None),  # the last: where a proxy is expected
]  # fmt: skip


@pytest.mark.parametrize(
    ("client", "name", "value"), [*((client, *wrong) for client in CLIENTS for wrong in WRONG), *WRONG_FOR_ONE]
)
def test_a_wrong_variable_is_named_by_every_client_that_reads_it(client, name, value, monkeypatch, tmp_path):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=rf"^{name} in the environment: .*; correct or unset it$") as refused:
        CLIENTS[client](tmp_path)
    assert "secret" not in str(refused.value)


def test_the_apis_address_is_named(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_BASE_URL", "api.example")
    parser = cli.make_parser("")
    cli.add_engine_arguments(parser, "--model_addr", "")
    with pytest.raises(SystemExit):
        parser.parse_args(["--model_addr", "m"])
    assert "OPENAI_BASE_URL in the environment: not an address" in capsys.readouterr().err


def test_right_variables_are_accepted(monkeypatch, tmp_path):
    values = {
        "SSL_CERT_DIR": f"/nowhere:{tmp_path}",
        "SSLKEYLOGFILE": f"{tmp_path}/keys",
        "HTTP_PROXY": "proxy:3128",
        "NO_PROXY": "localhost,::1,*.example",
        "HF_TOKEN": "hf_x\n",
        "OPENAI_CUSTOM_HEADERS": "A: b\nC: d",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    check_environment(OF_API + OF_HUB)


@pytest.mark.parametrize(("url", "no_proxy", "named"), NEAR)
def test_a_proxy_before_a_near_server_is_named(url, no_proxy, named, monkeypatch):
    for name, value in {"http_proxy": "http://proxy:1", "ALL_PROXY": "http://proxy:2", "NO_PROXY": no_proxy}.items():
        monkeypatch.setenv(name, value)
    assert proxy_before(url) == named
    args = Namespace(base_url=url, max_retries=0, max_concurrency=1, request_timeout=1, seed=0)
    assert (f", through the proxy in {named} (NO_PROXY lacks " in APIEngine(args, "key").device) == (named is not None)
