"""The numerical tests under other instruction sets: a test that passes by the order of a sum fails here.

OpenBLAS, MKL, torch and numba choose their kernels by processor, and every kernel adds in its own order. Each level
below asks all four for older or newer instructions than they would choose; levels that this processor cannot run are
left out, and named. Run ``make test-dispatch``, or ``python tests/dispatch.py --quick`` for the rooms and levels that
take a few minutes; further arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOMS = ("svm", "geometry", "attention", "dynamics", "theory", "optim")
QUICK_ROOMS = ("svm", "geometry", "attention")
QUICK_LEVELS = ("sse3", "avx512")

# What a level needs of the processor, and what it asks of the libraries.
LEVELS: dict[str, tuple[set[str], dict[str, str]]] = {
    "sse3": (
        {"pni"},
        {
            "OPENBLAS_CORETYPE": "Prescott",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "ATEN_CPU_CAPABILITY": "default",
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CPU_FEATURES": "",
        },
    ),
    "avx": (
        {"avx"},
        {
            "OPENBLAS_CORETYPE": "Sandybridge",
            "MKL_ENABLE_INSTRUCTIONS": "AVX",
            "ATEN_CPU_CAPABILITY": "default",
            "NUMBA_CPU_NAME": "sandybridge",
            "NUMBA_CPU_FEATURES": "",
        },
    ),
    "avx2": (
        {"avx2", "fma"},
        {
            "OPENBLAS_CORETYPE": "Haswell",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": "",
        },
    ),
    "zen": ({"avx2", "fma"}, {"OPENBLAS_CORETYPE": "Zen", "ATEN_CPU_CAPABILITY": "avx2"}),
    "avx512": (
        {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
        {
            "OPENBLAS_CORETYPE": "SkylakeX",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512",
            "ATEN_CPU_CAPABILITY": "avx512",
            "NUMBA_CPU_NAME": "skylake-avx512",
            "NUMBA_CPU_FEATURES": "",
        },
    ),
}


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The instruction sets this processor has, as Linux names them; empty elsewhere."""
    if not path.exists():
        return set()
    lines = path.read_text().splitlines()
    return set(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())


def available(flags: set[str]) -> list[str]:
    """The levels a processor with these flags can run."""
    return [name for name, (needed, _) in LEVELS.items() if needed <= flags]


def main(arguments: list[str] | None = None) -> int:
    """Run the tests once per level; 1 if any level failed."""
    parser = argparse.ArgumentParser(description="run the numerical tests under other instruction sets")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK_ROOMS)}, at the two ends")
    parser.add_argument("--level", action="append", choices=[*LEVELS], help="only this level (may be repeated)")
    args, rest = parser.parse_known_args(arguments)
    possible = available(processor_flags())
    wanted = args.level or (QUICK_LEVELS if args.quick else LEVELS)
    left_out = [name for name in wanted if name not in possible]
    if left_out:
        print(f"this processor cannot run {', '.join(left_out)}: left out", flush=True)
    root = Path(__file__).parent
    rooms = [str(root / room) for room in (QUICK_ROOMS if args.quick else ROOMS)]
    # torch's compiler writes its own kernels, and cannot do so for the oldest of these levels.
    rooms += ["--ignore", str(root / "optim" / "test_compiled.py")]
    failed = []
    for name in (name for name in wanted if name in possible):
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rooms, *rest]
        code = subprocess.run(command, env={**os.environ, **LEVELS[name][1]}, cwd=root.parent, check=False).returncode
        print(f"{name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
        if code:
            failed.append(name)
    if failed:
        print(f"failed at {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
