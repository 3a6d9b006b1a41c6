"""A headless Chromium driven over its debugging port, with nothing but the standard library."""

import base64
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Socket:
    """As much of a WebSocket as the debugging protocol needs."""

    def __init__(self, url, timeout=30):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = b"\x81" + (struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BQ", 0x80 | 127, size))
        self.socket.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self):
        parts = []
        while True:
            first, second = self.stream.read(2)
            size = second & 127
            if size == 126:
                (size,) = struct.unpack("!H", self.stream.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self.stream.read(8))
            parts.append(self.stream.read(size))
            if first & 128:
                return b"".join(parts).decode()


class Page:
    """One page: evaluate expressions, wait for them, take pictures."""

    def __init__(self, url):
        self.socket, self.number = Socket(url), 0

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["text"])
        return result["result"].get("value")

    def wait_for(self, expression, timeout=30):
        """The expression's value once it is true. Until then it may fail as well: a page begins without a body."""
        deadline, failed = time.monotonic() + timeout, None
        while time.monotonic() < deadline:
            try:
                if value := self.evaluate(expression):
                    return value
            except RuntimeError as error:
                failed = error
            time.sleep(0.1)
        raise TimeoutError(f"the page never came to: {expression}") from failed

    def screenshot(self, path, full=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=full)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def open_page(url, width=1400, height=1000):
    """A page that shows `url`, in a browser of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            find(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
        ]
        command += [f"--user-data-dir={folder}", f"--window-size={width},{height}", url]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Page(_page_address(folder, url))
        finally:
            browser.terminate()
            browser.wait(10)


def _page_address(folder, url, timeout=30):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            with open(os.path.join(folder, "DevToolsActivePort")) as file:
                port = int(file.readline())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                pages = json.load(answer)
            return next(p["webSocketDebuggerUrl"] for p in pages if p["url"].startswith(url[:20]))
        time.sleep(0.1)
    raise TimeoutError("the browser did not start")
