"""Variables of the environment that HTTP clients read: a wrong one ends a command without showing its value."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import serve

from utils.base import cli
from utils.base.errors import UserError
from utils.base.web_files import Server
from utils.data.downloads import find_source
from utils.generation.api_engine import APIEngine
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
FLAGS = Namespace(base_url="http://127.0.0.1:9", max_retries=0, max_concurrency=1, request_timeout=1, seed=0)
CLIENTS = {
    "API": lambda folder: APIEngine(FLAGS, "any"),
    "hub": lambda folder: ModelFolder("owner/model", str(folder)).checked(),
    "web": lambda folder: Server("http://127.0.0.1:9", str(folder)).fetch("a.json"),
    "datasets": lambda folder: find_source("owner/data", None, str(folder)),
}
WRONG = [
    ("SSL_CERT_FILE", "/nowhere/secret.pem"), ("SSL_CERT_FILE", __file__), ("SSLKEYLOGFILE", "/nowhere/secret"),
    ("all_proxy", "socks4://me:secret@127.0.0.1:1"), ("https_proxy", "socks5h://me:secret@127.0.0.1:1"),
    ("HTTP_PROXY", "http://me:secret@127.0.0.1:abc"), ("HTTP_PROXY", "http://me:secret#1@127.0.0.1:1"),
]  # fmt: skip
OF_API = [("OPENAI_ORG_ID", "secret-ü"), ("OPENAI_CUSTOM_HEADERS", "A: b\nC: secret-é")]
OF_HUB = [
    ("HF_TOKEN", "hf_secret\u2013x"), ("HF_TOKEN", "hf_secret\n\nA: b"), ("HF_ENDPOINT", "secret.example"),
    ("HF_ENDPOINT", "http://hub.example:secret"), ("HF_HUB_ETAG_TIMEOUT", "secret"),
]  # fmt: skip
FETCH = {
    "hub": "from utils.models.model_folder import ModelFolder; ModelFolder('owner/model', folder).checked()",
    "datasets": "from utils.data.downloads import find_source; find_source('owner/data', None, folder)",
}


@pytest.mark.parametrize(
    ("client", "name", "value"),
    [*((client, *wrong) for client in CLIENTS for wrong in WRONG), *(("API", *wrong) for wrong in OF_API)],
)
def test_a_wrong_variable_ends_every_client_without_being_shown(client, name, value, monkeypatch, tmp_path):
    for proxy in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(proxy)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    monkeypatch.setenv(name, value)
    huggingface_hub.close_session()
    with pytest.raises(UserError, match=r"cannot be set up \(\w+\)\n  correct or unset .*_PROXY, SSL_CERT") as refused:
        CLIENTS[client](tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("client", FETCH)
@pytest.mark.parametrize(("name", "value"), OF_HUB)
def test_a_wrong_variable_of_the_hub_is_not_shown(client, name, value, tmp_path):
    code = "import sys; from utils.base import cli; folder = sys.argv[1]\ndef main():\n"
    code = f"{code}    {FETCH[client]}\ncli.run_script(main)"
    with serve({"config.json": b"{}"}) as hub:
        own = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, name: value}
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], cwd=ROOT, env=os.environ | own, capture_output=True, text=True
        )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") <= 3
    assert "secret" not in done.stderr


def test_the_apis_address_is_named(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_BASE_URL", "api.example")
    parser = cli.make_parser("")
    cli.add_engine_arguments(parser, "--model_addr", "")
    with pytest.raises(SystemExit):
        parser.parse_args(["--model_addr", "m"])
    assert "OPENAI_BASE_URL in the environment: not an address" in capsys.readouterr().err
