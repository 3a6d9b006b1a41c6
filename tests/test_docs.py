"""Every snippet of the documentation is run, and prints what stands under it.

A block of `python` runs after the earlier ones of its page; a block of `text` after it is what it prints. A comment
`<!--python ... -->` runs too, unseen. A block of `console` is typed into a shell, line by line after `$` (and `>`), and
shows what each line prints. `...` stands for anything. Blocks of `bash` are run by test_docs_shell.py.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:```|<!--)(\w*)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)
# Separates what blocks print.
MARK = "\x1e"


def blocks(page):
    return [
        (m.group(1), m.group(2), page.read_text()[: m.start()].count("\n") + 1)
        for m in BLOCK.finditer(page.read_text())
    ]


def matches(pattern, text):
    """True if the text is the pattern, in which `...` stands for anything and spaces at line ends do not count."""
    parts = ["\n".join(map(str.rstrip, p.split("\n"))) for p in pattern.strip().split("...")]
    text = "\n".join(map(str.rstrip, text.strip().split("\n")))
    return re.fullmatch(".*".join(re.escape(p.strip(" ")) for p in parts), text, re.DOTALL) is not None


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
    return {**env, "PATH": f"{pathlib.Path(sys.executable).parent}:{env['PATH']}"}


@pytest.mark.local_only
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks(page, tmp_path, start_system):
    found = blocks(page)
    script, expected = [], []
    for i, (kind, body, line) in enumerate(found):
        if kind == "python":
            # The block's own line numbers, for errors and explanations.
            script.append(f"print({MARK!r})\nexec(compile({body!r}, '{page.name}', 'exec'))")
            after = found[i + 1] if i + 1 < len(found) else None
            expected.append((line, after[1] if after and after[0] == "text" else None))
    if not script:
        return
    text = "\n".join(script)
    if "12345" in text:
        # The server that the page speaks of.
        text = text.replace("localhost:12345", start_system(2).address)
    (tmp_path / "page.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(f"{MARK}\n")[1:]
    for (line, wanted), text in zip(expected, printed):
        assert wanted is None or matches(wanted, text), f"{page.name}:{line} prints\n{text}\ninstead of\n{wanted}"


def commands(body):
    """(command, what it prints) of a console block; what runs in the background prints nothing here."""
    out = []
    for line in body.splitlines():
        if line.startswith("$ "):
            out.append([line[2:], ""])
        elif line.startswith("> ") or line == ">":
            out[-1][0] += "\n" + line[2:]
        else:
            out[-1][1] += line + "\n"
    return out


@pytest.mark.local_only
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_console_blocks(page, tmp_path):
    for kind, body, line in blocks(page):
        if kind != "console":
            continue
        script = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
        for command, _ in commands(body):
            quiet = re.sub(r"&$", "> /dev/null 2>&1 &", command)
            script.append(f"printf '{MARK}\\n'\n{quiet}")
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(script)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed = done.stdout.split(f"{MARK}\n")[1:]
        for (command, wanted), text in zip(commands(body), printed):
            message = f"{page.name}:{line}: {command}\nprints\n{text}\ninstead of\n{wanted}\n{done.stderr}"
            assert matches(wanted, text), message


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", BLOCK.sub("", page.read_text())):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} refers to {target}, which is not there"


def test_the_api_page_has_every_name(tmp_path):
    """`make docs` writes it anew."""
    tool = [sys.executable, str(ROOT / "tools" / "api.py"), str(tmp_path / "api.md")]
    made = subprocess.run(tool, capture_output=True, text=True, timeout=100)
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "api.md").read_text()
    for name in ("gt.randn(", "t.backward(", "gt.nn.Linear(", "F.softmax(", "gt.optim.AdamW(", "gt.debug.explain("):
        assert name in page, name
    assert "=Ellipsis" not in page and "(self" not in page


def test_every_variable_is_documented():
    read = set()
    for source in [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/gt/**/*.py")]:
        read |= set(re.findall(r'"(GT_[A-Z_]+)"', source.read_text()))
    internal = {"GT_TOKEN", "GT_SIM_SEED", "GT_SIM_SECONDS", "GT_RANDOM_SECONDS", "GT_DEBUG_", "GT_BLESS"}
    missing = read - internal - set(re.findall(r"GT_[A-Z_]+", (ROOT / "docs" / "variables.md").read_text()))
    assert not missing, f"not in docs/variables.md: {sorted(missing)}"


@pytest.mark.local_only
@pytest.mark.skipif(shutil.which("mkdocs") is None, reason="MkDocs is not installed")
def test_the_site_is_built_without_warnings(tmp_path):
    command = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert not re.search(r'(?:src|href)="https?://(?!ui\.perfetto|rustup)[^"]+\.(?:js|css|woff2?)', page)
