"""Generate load_encoder.py, which loads an encoder without aag: plain PyTorch code for one network.

`loader_source` joins the network's file with `loader.py` and leaves out the lines marked for other networks.
"""

import re
import sys
from collections.abc import Iterable
from importlib.resources import files

from aag.errors import AAGError
from aag.nets import NETWORKS, EncoderSpec
from aag.nets.spec import SOBEL

TITLE = '"""Load the encoder and embed images with plain PyTorch: `python load_encoder.py IMAGE …`."""'
MARK = re.compile(r"  # only: ([\w ]+)$")


def loader_source(spec: EncoderSpec, weights: str, head: str | None = None) -> str:
    """Return the text of load_encoder.py for the encoder in the file `weights` next to it.

    head: file of the head's weights, where `weights` has those of the backbone only; "" for an encoder without head.
    """
    if spec.is_custom:
        raise AAGError(f"aag does not have the code of your backbone {spec.network}; use --format onnx or torchscript")
    network = spec.base_network.removesuffix(SOBEL)
    kind = re.sub(r"\d+$|-ip$", "", network) if network in NETWORKS else "timm"
    pair = spec.network.endswith(SOBEL)
    marks = {"edges": spec.sees_edges, "pair": pair, "single": not pair, "split": head is not None, "head": bool(head)}
    kept = {kind, spec.head, *(mark for mark, is_kept in marks.items() if is_kept)}
    needed = {
        "sobel": pair or spec.sees_edges, "mlp": spec.head == "mlp", "timm_backbone": kind == "timm",
        kind: kind != "timm", "loader": True,
    }  # fmt: skip
    names = [name for name, is_needed in needed.items() if is_needed]
    parts = [_parse(files(__name__).joinpath(f"{name}.py").read_text(encoding="utf-8"), kept) for name in names]
    imports = _merge_imports(line for lines, _ in parts for line in lines)
    text = "\n\n\n".join([f"{TITLE}\n\n{imports}", *(body for _, body in parts)]) + "\n"
    return text.replace('"encoder.safetensors"', repr(weights)).replace('"head.safetensors"', repr(head))


def _parse(text: str, kept: set[str]) -> tuple[list[str], str]:
    """Return the imports of a part and the rest, without its docstring and the lines for other networks."""
    lines = []
    for line in text.split('"""', 2)[2].splitlines():
        mark = MARK.search(line)
        if mark is None or kept & set(mark[1].split()):
            lines.append(MARK.sub("", line))
    imports = [line for line in lines if re.match(r"(import|from) ", line)]
    body = "\n".join(line for line in lines if line not in imports)
    return [line for line in imports if not line.startswith("from aag")], body.strip("\n")


def _merge_imports(lines: Iterable[str]) -> str:
    """Return one import per module, sorted, the standard library's first."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, imported = line.partition(" import ")  # of "import x", all is the module
        names.setdefault(module, set()).update(imported.split(", "))
    found = [f"{module} import {', '.join(sorted(names[module]))}".removesuffix(" import ") for module in names]
    found.sort(key=lambda line: (line.startswith("from"), line.lower()))
    standard = [line for line in found if line.split()[1].partition(".")[0] in sys.stdlib_module_names]
    return "\n".join([*standard, "", *(line for line in found if line not in standard)])
