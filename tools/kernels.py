"""Compiles CUDA kernels by NVRTC, which needs no GPU.

`kernels.py build DIR` compiles the plain kernels into cubins and PTX, and the usual kernels of attention into cubins,
which `gt-kernels` embeds. `kernels.py check DIR` compiles every kernel text in DIR (written by `cargo run -p gt-kernels
--example texts`) for the real architectures.
"""

import argparse
import ctypes
import glob
import hashlib
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(ROOT, "crates", "gt-kernels", "src")
ARCHS = ["sm_80", "sm_90", "sm_100"]
# Each instruction rounds on its own (C7), so products and sums are never contracted.
OPTIONS = ["--std=c++17", "--fmad=false"]


def library():
    """NVRTC from the `nvidia-cuda-nvrtc` package."""
    import nvidia  # a namespace package of all NVIDIA wheels

    for folder in nvidia.__path__:
        for path in glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.*")):
            # Its part with the built-in functions lies beside it, where the loader does not look by itself.
            for part in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*")):
                ctypes.CDLL(part, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(path)
    raise SystemExit("kernels.py: libnvrtc not found: pip install -r requirements-dev.txt")


class Nvrtc:
    def __init__(self):
        self.lib = library()

    def compile(self, source, arch, ptx=False):
        """A cubin (or PTX), or an error with the compiler's log."""
        lib, program = self.lib, ctypes.c_void_p()
        name = b"kernels.cu"
        self.ok(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, None, None))
        options = [*OPTIONS, f"--gpu-architecture={arch}"]
        given = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        result = lib.nvrtcCompileProgram(program, len(options), given)
        if result != 0:
            size = ctypes.c_size_t()
            self.ok(lib.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            self.ok(lib.nvrtcGetProgramLog(program, log))
            lib.nvrtcDestroyProgram(ctypes.byref(program))
            raise RuntimeError(log.value.decode(errors="replace"))
        size = ctypes.c_size_t()
        what = "PTX" if ptx else "CUBIN"
        self.ok(getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        out = ctypes.create_string_buffer(size.value)
        self.ok(getattr(lib, f"nvrtcGet{what}")(program, out))
        lib.nvrtcDestroyProgram(ctypes.byref(program))
        return out.raw

    def ok(self, result):
        if result != 0:
            raise RuntimeError(f"NVRTC error {result}")


def constant(name):
    """The text of a constant of `lib.rs` that is put together from files."""
    with open(os.path.join(SOURCES, "lib.rs")) as f:
        found = re.search(rf"pub const {name}: &str\s*=\s*concat!\((.*?)\);", f.read(), re.S)
    text = ""
    for path in re.findall(r'include_str!\("([^"]+)"\)', found.group(1)):
        with open(os.path.join(SOURCES, path)) as f:
            text += f.read()
    return text


def attention_groups():
    """The kernels of attention that ship: (group, architecture, source), and all they are made from."""
    texts = {}
    for part in ("parts", "wgmma", "half", "hopper", "full", "shipped"):
        with open(os.path.join(SOURCES, f"attention_{part}.cu")) as f:
            texts[part] = f.read()
    entries = {}
    for kernel in texts["shipped"].split("//# ")[1:]:
        head, entry = kernel.split("\n", 1)
        group, *archs = head.split()
        for arch in archs:
            entries.setdefault((group, arch), []).append(entry)
    half = texts["parts"] + texts["wgmma"] + texts["half"] + texts["hopper"]
    full = texts["parts"] + texts["full"]
    groups = [(g, a, (full if g.startswith("f32") else half) + "".join(e)) for (g, a), e in sorted(entries.items())]
    return groups, "".join(texts.values())


def build(folder):
    os.makedirs(folder, exist_ok=True)
    source = constant("PLAIN")
    jobs = [(source, arch, f"{folder}/plain_{arch}.cubin", False) for arch in ARCHS]
    jobs.append((source, "compute_80", f"{folder}/plain_compute_80.ptx", True))
    build_set(folder, "plain", source, jobs)
    groups, source = attention_groups()
    jobs = [(text, arch, f"{folder}/attention_{group}_{arch}.cubin", False) for group, arch, text in groups]
    build_set(folder, "attention", source, jobs)


def build_set(folder, name, source, jobs):
    """Compiles images that belong together, unless they are there."""
    stamp = hashlib.sha256(source.encode() + repr((OPTIONS, ARCHS)).encode()).hexdigest()
    mark = os.path.join(folder, f"{name}.stamp")
    if os.path.exists(mark) and open(mark).read() == stamp:
        return
    for old in glob.glob(os.path.join(folder, f"{name}*")):
        os.remove(old)
    start, size = time.time(), 0
    with ProcessPoolExecutor() as pool:
        for path, bytes in pool.map(build_one, jobs):
            print(f"{path}: {bytes} bytes", flush=True)
            size += bytes
    # What the images were made from: the build takes them only if it is the same.
    with open(os.path.join(folder, f"{name}.cu"), "w") as f:
        f.write(source)
    with open(mark, "w") as f:
        f.write(stamp)
    print(f"{name} kernels compiled in {time.time() - start:.1f} s, {size} bytes")


def build_one(job):
    source, arch, path, ptx = job
    image = Nvrtc().compile(source, arch, ptx)
    with open(path + ".new", "wb") as f:
        f.write(image)
    os.replace(path + ".new", path)
    return path, len(image)


def check_one(job):
    path, arch = job
    try:
        with open(path) as f:
            Nvrtc().compile(f.read(), arch)
        return None
    except RuntimeError as error:
        return f"{path} for {arch}:\n{error}"


def check(folder, seconds):
    """Compiles files until time is up; says how many of them it was."""
    jobs = [(path, arch) for path in sorted(glob.glob(os.path.join(folder, "*.cu"))) for arch in ARCHS]
    if not jobs:
        raise SystemExit(f"kernels.py: no kernel texts in {folder}")
    start, done, errors = time.time(), 0, []
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        for at in range(0, len(jobs), workers * 2):
            if seconds and time.time() - start > seconds:
                break
            batch = jobs[at : at + workers * 2]
            errors += [e for e in pool.map(check_one, batch) if e]
            done += len(batch)
    for error in errors[:10]:
        print(error, file=sys.stderr)
    print(f"{done} of {len(jobs)} sources compiled in {time.time() - start:.1f} s, {len(errors)} refused")
    return 1 if errors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "check"])
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=0, help="stop `check` after this long; 0: never")
    args = parser.parse_args()
    if args.what == "build":
        return build(args.folder)
    return check(args.folder, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
