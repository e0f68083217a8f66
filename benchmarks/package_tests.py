"""The packages' own tests before and after their fixes, on MLX's CPU device and without a network.

    python benchmarks/package_tests.py CACHE --python VENV/bin/python [--only mlx-lm] [--timeout 900]

CACHE is that of corpus.py, which has to have run. The tests come with the wheel or the source distribution; those of
mflux and mlx-vlm are in neither: `git clone` their repositories to CACHE/mflux-0.24.0-source and
CACHE/mlx_vlm-0.7.10-source. `--python` needs MLX, pytest and what the packages import. A test that passes before has
to pass after: exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

SOURCES = {
    "mlx-lm==0.32.2": "1af8a92f6a141c3e2bf5b0369ac4464203a8e2189c47b9e40d3e921e5b3a1fe9",
    "mlx-audio==0.6.2": "ac43270632ce86370d17c54236e906e50ba19f0e6412b1f5e43646f3680ae8a5",
}
"""The source distributions by what pip calls them, each with its sha256."""

TESTS = {
    "mlx-lm==0.32.2": (
        "tests/test_models.py", "tests/test_losses.py", "tests/test_gated_delta.py tests/test_kernels.py",
        "tests/test_deepseek_v41.py", "tests/test_muse_spark.py", "tests/test_awq.py tests/test_gptq.py",
        "tests/test_finetune.py tests/test_tuner_utils.py", "tests/test_sample_utils.py", "tests/test_prompt_cache.py",
    ),
    "mflux==0.24.0": ("tests/test_*.py tests/*/test_*.py tests/*/*/test_*.py",),
    "mlx-vlm==0.7.10": ("mlx_vlm/tests/test_models.py", "mlx_vlm/tests/test_*.py"),
    "mlx-audio==0.6.2": (
        "mlx_audio/codec/tests/test_*.py", "mlx_audio/tests/test_dsp.py mlx_audio/tests/test_lm_ssm.py",
        "mlx_audio/music/tests/test_minimax_music3.py", "mlx_audio/vad/tests/test_*.py",
        "mlx_audio/sts/tests/test_deepfilternet.py mlx_audio/sts/tests/test_lfm_audio.py "
        "mlx_audio/sts/tests/test_moshi.py mlx_audio/sts/tests/test_mossformer2_se.py "
        "mlx_audio/sts/tests/test_sam_audio.py",
        "mlx_audio/stt/tests/test_fireredasr2.py mlx_audio/stt/tests/test_fun_asr_nano.py "
        "mlx_audio/stt/tests/test_granite_speech5.py mlx_audio/stt/tests/test_lasr_ctc.py "
        "mlx_audio/stt/tests/test_models.py mlx_audio/stt/tests/test_sensevoice.py",
        "mlx_audio/tts/tests/test_models.py mlx_audio/tts/tests/test_arktts.py mlx_audio/tts/tests/test_echo_tts.py "
        "mlx_audio/tts/tests/test_fish_*.py mlx_audio/tts/tests/test_qwen3_tts.py mlx_audio/tts/tests/test_vo*.py "
        "mlx_audio/tts/tests/test_pocket_tts.py mlx_audio/tts/tests/test_dia_cache.py",
    ),
}  # fmt: skip
"""Files of tests that read what was fixed; a row each, without the files of the rows before it."""

SLOW = "not slow and not high_memory_requirement"
"""What mflux calls its other tests: these download models."""

STARTS = ("test_smoke.py", "test_cli.py", "test_server")
"""Of mlx-vlm: tests that start servers and command lines, and end pytest with them."""


def source(cache: Path, package: str) -> Path:
    """The folder of an unpacked source distribution, or of a clone."""
    name, version = package.split("==")
    folder = cache / f"{name.replace('-', '_')}-{version}-source"
    if folder.is_dir():
        return folder
    if package not in SOURCES:
        raise SystemExit(f"{folder}: clone the repository of {name} there, its tests come with no package")
    archives = list(cache.glob(f"{name.replace('-', '_')}-{version}.tar.gz"))
    if not archives:
        what = ["--no-deps", "--no-binary", ":all:", "--dest", str(cache), package]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *what], check=True)
        archives = list(cache.glob(f"{name.replace('-', '_')}-{version}.tar.gz"))
    (archive,) = archives
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SOURCES[package]:
        raise SystemExit(f"{archive}: not the file that was pinned")
    part = folder.with_suffix(".part")
    with tarfile.open(archive) as files:
        files.extractall(part, filter="data")
    (inner,) = part.iterdir()
    inner.rename(folder)
    part.rmdir()
    return folder


def assembled(to: Path, code: Path, tests: Path | None) -> Path:
    """A copy of a package, with the tests of another folder where they belong."""
    shutil.copytree(code, to, ignore=shutil.ignore_patterns("__pycache__"))
    for inner in ("tests", *(f"{package.name}/tests" for package in code.iterdir())):
        if tests and (tests / inner).is_dir() and not (to / inner).exists():
            shutil.copytree(tests / inner, to / inner)
    return to


def outcomes(python: str, code: Path, tests: Path | None, files: Files, timeout: float) -> dict[str, str]:
    """Each test of the files with how it ended. tests: a folder that holds those that `code` comes without."""
    with tempfile.TemporaryDirectory() as temporary:
        root, report = assembled(Path(temporary) / "root", code, tests), Path(temporary) / "report.xml"
        chosen = [str(path) for path in files(root)]
        path = os.pathsep.join([str(root), *sorted({str(Path(file).parent) for file in chosen})])  # tests import others
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--rootdir={root}"]
        options += ["--import-mode=importlib", "-m", SLOW]
        command = [python, "-m", "pytest", *options, f"--junitxml={report}", *chosen]
        try:
            subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"": "took too long"}
        if not report.exists():
            return {"": "pytest itself ended"}
        return {_name(case): _ended(case) for case in ElementTree.parse(report).iter("testcase")}


Files = Callable[[Path], list[Path]]


def _files(patterns: str, done: Sequence[str]) -> Files:
    """The files of some patterns without those of others that ran before."""

    def files(root: Path) -> list[Path]:
        before = {path for pattern in done for part in pattern.split() for path in root.glob(part)}
        found = {path for part in patterns.split() for path in root.glob(part)} - before
        return sorted(path for path in found if not path.name.startswith(STARTS))

    return files


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def _ended(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return "skipped" if kind == "skipped" else "failed"
    return "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", nargs="+", default=[""], help="packages that begin so")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for a file of tests")
    options = parser.parse_args()
    cache = options.cache.absolute()
    print("| package | tests | passed: before | after | failed: before | after | no longer passes |")
    print("|---|---|---|---|---|---|---|", flush=True)
    worse = False
    for package, names in TESTS.items():
        if not package.startswith(tuple(options.only)):
            continue
        folder = f"{package.split('==')[0].replace('-', '_')}-{package.split('==')[1]}"
        versions = (cache / folder, cache / "fixed" / "all" / folder)
        for number, name in enumerate(names):
            tests = None if any(versions[0].glob(name.split()[0])) else source(cache, package)
            files = _files(name, names[:number])
            before, after = (outcomes(options.python, code, tests, files, options.timeout) for code in versions)
            counts = [Counter(ran.values()) for ran in (before, after)]
            lost = [test for test, ended in before.items() if ended == "passed" and after.get(test) != "passed"]
            numbers = [n[kind] for kind in ("passed", "failed") for n in counts]
            said = "; ".join(lost) or before.get("") or ""
            label = f"{Path(name.split()[0]).parent}/ ({len(name.split())} patterns)" if " " in name else name
            print(f"| {package} | {label} | {' | '.join(map(str, numbers))} | {said} |", flush=True)
            worse |= bool(lost)
    return worse


if __name__ == "__main__":
    raise SystemExit(main())
