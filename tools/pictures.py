"""Makes the pictures of the documentation from a system that runs: docs/pictures/*.

    python tools/pictures.py [NAME ...]

Needs tmux for `top`, Chromium for `dashboard`.
"""

import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import browser

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
LOAD = """
import sys, time, gt
import numpy as np
from gt import nn
gt.connect(sys.argv[1])
size, pause = int(sys.argv[2]), float(sys.argv[3])
model = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.LayerNorm(2 * size), nn.Linear(2 * size, size))
optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
data = np.random.randn(256, size).astype(np.float32)
while True:
    x = gt.from_numpy(data)
    loss = ((model(x).softmax(-1) - x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    time.sleep(pause)
"""


@contextlib.contextmanager
def system():
    """A server with a dashboard, two workers and two clients at work; gives its port and the dashboard's."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "load.py"
        script.write_text(LOAD)
        command = [sys.executable, "-m", "gt.server", "-p", "0", "--http", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes = [server]
        port, http = (int(re.search(r":(\d+)", server.stdout.readline()).group(1)) for _ in range(2))
        try:
            for name in ("gpu-a", "gpu-b"):
                command = [sys.executable, "-m", "gt.worker", "-p", str(port), "--name", name, "--threads", "1"]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            time.sleep(2)
            for size, pause in ((256, 0.0), (128, 0.004)):
                command = [sys.executable, str(script), f"localhost:{port}", str(size), str(pause)]
                processes.append(subprocess.Popen(command))
            time.sleep(4)
            yield port, http
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def dashboard(port, http):
    with browser.open_page(f"http://localhost:{http}/", width=1400, height=980) as page:
        page.wait_for("+document.body.dataset.shown >= 25", timeout=60)
        page.screenshot(PICTURES / "dashboard.png")


def timeline(port, http):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "gt", "trace", "-s", "0.25", "-p", str(port), "--dir", folder], check=True
        )
        (log,) = pathlib.Path(folder).iterdir()
        command = [sys.executable, "-m", "gt", "visualize", str(log), "--dpi", "110", "--width", "13"]
        subprocess.run([*command, "-o", str(PICTURES / "timeline.png")], check=True)


def top(port, http):
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/tmux"]
        run = f"{sys.executable} -m gt top -p {port}"
        subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "22", run], check=True)
        try:
            deadline, shot = time.monotonic() + 30, ""
            while "gpu-a" not in shot and time.monotonic() < deadline:
                # Bars need some seconds to become smooth.
                time.sleep(4)
                capture = [*tmux, "capture-pane", "-p", "-e"]
                shot = subprocess.run(capture, check=True, capture_output=True, text=True).stdout
        finally:
            subprocess.run([*tmux, "kill-server"])
    (PICTURES / "top.svg").write_text(terminal(shot))


NAMED = ["#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"]


def color(codes):
    """The colour of an escape sequence's rest, and what is left of it."""
    if codes[0] == 2:
        return f"#{codes[1]:02x}{codes[2]:02x}{codes[3]:02x}", codes[4:]
    n = codes[1]
    if n < 16:
        return "#7b8794" if n == 8 else NAMED[n % 8], codes[2:]
    if n < 232:
        levels = [0, 95, 135, 175, 215, 255]
        r, g, b = (n - 16) // 36, (n - 16) // 6 % 6, (n - 16) % 6
        return f"#{levels[r]:02x}{levels[g]:02x}{levels[b]:02x}", codes[2:]
    grey = 8 + (n - 232) * 10
    return f"#{grey:02x}{grey:02x}{grey:02x}", codes[2:]


def style(state, codes):
    codes = [int(c or 0) for c in codes.split(";")]
    while codes:
        code = codes.pop(0)
        if code == 0:
            state.clear()
        elif code in (1, 2, 4, 7):
            state[{1: "bold", 2: "dim", 4: "line", 7: "swap"}[code]] = True
        elif code in (38, 48):
            state["fg" if code == 38 else "bg"], codes = color(codes)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            state["fg"] = "#7b8794" if code == 90 else NAMED[code % 10]
        elif 40 <= code <= 47:
            state["bg"] = NAMED[code % 10]
        elif code in (39, 49):
            state.pop("fg" if code == 39 else "bg", None)


def terminal(text):
    """A terminal's content with its colours, as SVG."""
    lines = text.rstrip("\n").split("\n")
    wide, high = 8.4, 18
    columns = max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in lines)
    size = (columns * wide + 24, len(lines) * high + 24)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" width="{size[0]:.0f}">']
    out.append('<rect width="100%" height="100%" rx="8" fill="#1b212a"/>')
    out.append('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">')
    # Colours go on from line to line.
    state = {}
    for row, line in enumerate(lines):
        column = 0
        for token in re.finditer(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
            codes, run = token.groups()
            if run is None:
                style(state, codes or "0")
                continue
            out += cells(run, column, row, wide, high, state)
            column += len(run)
    return "\n".join([*out, "</g></svg>\n"])


def cells(run, column, row, wide, high, state):
    x, y = 12 + column * wide, 12 + row * high
    front, back = state.get("fg", "#d8dee9"), state.get("bg")
    if state.get("swap"):
        front, back = back or "#1b212a", front
    if state.get("dim"):
        front = "#8b97a6"
    if back:
        yield f'<rect x="{x:.1f}" y="{y}" width="{len(run) * wide:.1f}" height="{high}" fill="{back}"/>'
    full = {"█": 1.0, "▉": 0.875, "▊": 0.75, "▋": 0.625, "▌": 0.5, "▍": 0.375, "▎": 0.25, "▏": 0.125}
    if run.strip("".join(full)) == "":
        width = sum(full[c] for c in run) * wide
        yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high - 3}" fill="{front}"/>'
        return
    text = run.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace(" ", "\u00a0")
    weight = ' font-weight="bold"' if state.get("bold") else ""
    length = f'textLength="{len(run) * wide:.1f}" lengthAdjust="spacingAndGlyphs"'
    yield f'<text x="{x:.1f}" y="{y + 13.5}" fill="{front}"{weight} {length}>{text}</text>'


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    makers = {"top": top, "timeline": timeline, "dashboard": dashboard}
    with system() as ports:
        for name in sys.argv[1:] or makers:
            makers[name](*ports)
            print(f"made docs/pictures/{name}")
