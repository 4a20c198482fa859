"""Drive pages in headless Chromium over the DevTools protocol, for the tests of pages."""

import contextlib
import json
import os
import shutil
import subprocess
import threading

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt install chromium)")

CHIPS = """
[...document.querySelectorAll('.verdicts summary')].map((line) => [line.querySelector('.title').textContent,
  ...[...line.querySelectorAll('.chip')].map((chip) => chip.textContent + '|' + chip.ariaLabel)])
"""  # by aspect


class Browser:
    """Headless Chromium, driven over a pipe with the DevTools protocol; `pages` are by session."""

    def __init__(self, folder):
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        flags += [f"--user-data-dir={folder}", "about:blank"]
        pipes = f'exec "$@" 3</proc/self/fd/{to_browser} 4>/proc/self/fd/{from_browser}'  # Chromium's folder
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = ["sh", "-c", pipes, "sh", CHROMIUM, *flags]
        self.process = subprocess.Popen(command, pass_fds=(to_browser, from_browser), **silent)
        os.close(to_browser)
        os.close(from_browser)
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.number, self.pages = 0, {}

    def send(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (answer := self.read()).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def read(self):
        """Return the next message, and store events with their page."""
        letters = bytearray()
        while (letter := self.answers.read(1)) not in (b"\0", b""):
            letters += letter
        assert letter, "the browser is gone"
        message = json.loads(letters)
        if "method" in message and message.get("sessionId") in self.pages:
            self.pages[message["sessionId"]].events.append(message)
        return message

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.commands.write(b'{"id":0,"method":"Browser.close"}\0')
            self.commands.close()
        self.process.wait(timeout=600)
        self.answers.close()


class Page:
    """A page, with its own browser profile unless another page's is given."""

    def __init__(self, browser, path, width=1280, height=900, place="", profile=None):
        self.browser, self.events = browser, []
        self.watchdog = threading.Timer(
            600, browser.process.kill
        )  # seconds, after which a hanging browser fails the test
        self.watchdog.daemon = True
        self.watchdog.start()
        self.is_own = profile is None
        self.profile = profile or browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=self.profile)["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=path.as_uri() + place)
        self.wait_for_load()

    def wait_for_load(self, after=0):
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[after:]):
            self.browser.read()

    def reload(self):
        before = len(self.events)
        self.send("Page.reload")
        self.wait_for_load(before)

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def run(self, code):
        """Return the value of an expression, or of its promise."""
        result = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def texts(self, selector, inside="document"):
        """Return the visible text of each matching element, in one line each."""
        found = f"[...{inside}.querySelectorAll({json.dumps(selector)})]"
        return self.run(f"{found}.map((element) => element.innerText.replace(/\\s+/g, ' ').trim())")

    def go(self, place):
        self.run(
            f"new Promise((go) => {{ addEventListener('hashchange', go, {{once: true}}); location.hash = '{place}' }})"
        )

    def set(self, field, value):
        """Enter a value into a field, like a user."""
        event = "new Event('input', {bubbles: true})"
        self.run(f"$('{field}').value = {json.dumps(value)}; $('{field}').dispatchEvent({event})")

    def listed(self):
        """Return the ids of the questions in the list."""
        return self.run("passing.map((place) => questions[place].id)")

    def press(self, key):
        moved = "new Promise((go) => addEventListener('hashchange', go, {once: true}))"
        event = f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
        self.run(f"{{ const moved = {moved}; {event}; moved }}")

    def complaints(self):
        """Return the page's log messages, blocked requests and exceptions."""
        names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event["params"] for event in self.events if event["method"] in names]

    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def close(self):
        self.watchdog.cancel()
        if self.is_own:
            self.browser.send("Target.disposeBrowserContext", browserContextId=self.profile)
        del self.browser.pages[self.session]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser):
    with contextlib.ExitStack() as pages:

        def open_one(*arguments, **more):
            page = Page(browser, *arguments, **more)
            pages.callback(page.close)
            return page

        yield open_one
