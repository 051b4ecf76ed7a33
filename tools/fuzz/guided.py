"""Fuzz with atheris, which prefers inputs that reach new lines of Python. It is optional: `pip install atheris`."""

import subprocess
import sys
from pathlib import Path

from fuzz.target import read_input

MEGABYTES = 2000  # of memory, at most


def main(names: list[str], inputs: int, seed: int, out: Path, seconds: float) -> int:
    """Run each target in a process of its own; return 1 if one of them found something."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed: pip install atheris, or use --engine mutate", file=sys.stderr)
        return 2
    failed = []
    for name in names:
        corpus = out / "corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fuzz.guided", name, str(corpus), f"-runs={inputs}", f"-seed={seed + 1}"]
        command += [f"-timeout={seconds:.0f}", f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={out}/{name}-"]
        if subprocess.run([*command, "-max_len=65536", "-print_final_stats=1"]).returncode:
            failed.append(name)
    print(f"{len(names)} targets with {inputs:,} inputs each; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _run(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(
        include=["aag.data", "aag.serving", "aag.runs", "PIL", "zipfile", "tarfile", "pickle"]
    ):
        from fuzz.targets import TARGETS
    target, corpus = TARGETS[name], Path(arguments[0])
    for number, content in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
    path = corpus.parent / f"{name}{target.suffix}"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_input(target, path)

    atheris.Setup([sys.argv[0], *arguments], read)
    atheris.Fuzz()


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
