"""Follows the five-minute tour as a newcomer would: in an environment where nothing is installed but Python.

    python tools/tour.py dist/gt-*.whl

Makes an empty folder with a new virtual environment, installs the wheel there, forgets every variable of this shell,
types the page's Python line by line into the interpreter and its console blocks into a shell, and compares what they
print.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from test_docs import MARK, blocks, commands, matches  # noqa: E402


def run(command, folder, text=None):
    path = f"{folder}/venv/bin:/usr/local/bin:/usr/bin:/bin"
    env = {"PATH": path, "HOME": str(folder), "TERM": "xterm", "LANG": "C.UTF-8"}
    return subprocess.run(command, cwd=folder, env=env, input=text, capture_output=True, text=True, timeout=300)


def typed(found, folder):
    """(line, what is to be printed, what was) of the Python blocks, typed into one interpreter."""
    lines, wanted = [], []
    for i, (kind, body, line) in enumerate(found):
        if kind == "python":
            lines.append(f"print({MARK!r})\n\n{body}\n")
            after = found[i + 1] if i + 1 < len(found) else None
            wanted.append((line, after[1] if after and after[0] == "text" else ""))
    done = run(["python", "-iq"], folder, "\n".join(lines) + "\nexit()\n")
    printed = done.stdout.split(f"{MARK}\n")[1:]
    if len(printed) != len(wanted) or "Error" in done.stderr:
        raise SystemExit(f"the interpreter ended early:\n{done.stdout}\n{done.stderr}")
    return [(line, want, text) for (line, want), text in zip(wanted, printed)]


def shell(found, folder):
    """The same of the console blocks."""
    out = []
    for kind, body, line in found:
        if kind == "console":
            script = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
            for command, _ in commands(body):
                quiet = command[:-1] + "> /dev/null 2>&1 &" if command.endswith("&") else command
                script.append(f"printf '{MARK}\\n'\n{quiet}")
            done = run(["bash", "-e", "-c", "\n".join(script)], folder)
            if done.returncode:
                raise SystemExit(
                    f"tour.md:{line}: the shell ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
                )
            printed = done.stdout.split(f"{MARK}\n")[1:]
            out += [(line, want, text) for (_, want), text in zip(commands(body), printed)]
    return out


def main():
    wheel = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gt-tour-"))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    # The package index of this shell's settings is the one thing that an install needs of it.
    subprocess.run([str(folder / "venv/bin/pip"), "install", "-q", str(wheel)], check=True)
    found = blocks(ROOT / "docs" / "tour.md")
    wrong = 0
    for line, want, text in typed(found, folder) + shell(found, folder):
        same = matches(want, text)
        wrong += not same
        print(f"tour.md:{line}:", "as printed" if same else f"prints\n{text}\ninstead of\n{want}")
    shutil.rmtree(folder)
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
