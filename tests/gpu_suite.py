"""The Python suite on a GPU, a process for each file and several at a time: most of a test is waiting for a start.

    GT_BACKEND=cuda python tests/gpu_suite.py [--jobs N] [FILE ...]

One line for each file as it ends, then all that failed files printed. The status says whether any failed.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# A file that takes longer hangs.
LONGEST = 900


def run(path):
    """The status of one file's tests, what they printed, and how long they took."""
    start = time.perf_counter()
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(path)]
    try:
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LONGEST, cwd=HERE
        )
        # A file whose tests were all left out has nothing to fail.
        status, text = 0 if done.returncode == 5 else done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, text = 124, (error.stdout or b"").decode(errors="replace") + f"\nended after {LONGEST} s"
    return status, text, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2)), help="files at a time")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="all files of tests if absent")
    args = parser.parse_args()
    # The longest first, by the best guess there is.
    files = args.files or sorted(HERE.glob("test_*.py"), key=lambda f: -f.stat().st_size)
    failed = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        waiting = {pool.submit(run, path.resolve()): path for path in files}
        for done in concurrent.futures.as_completed(waiting):
            (status, text, seconds), name = done.result(), waiting[done].name
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            print(f"{'passed' if status == 0 else f'FAILED ({status})'} {name} in {seconds:.0f} s: {last}", flush=True)
            if status:
                failed.append((name, text))
    for name, text in failed:
        print(f"\n--- {name} ---\n{text}")
    print(f"{len(files) - len(failed)} of {len(files)} files passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
