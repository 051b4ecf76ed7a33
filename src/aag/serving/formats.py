"""One function per export format: it writes the files, loads them again and compares the outputs."""

import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aag import __version__, nets, tensor_files
from aag.errors import AAGError
from aag.files import write_bytes, write_json
from aag.nets import NETWORKS, Encoder
from aag.nets.files import SETTINGS, SPEC
from aag.nets.spec import SOBEL
from aag.runs import Run
from aag.serving.card import model_card
from aag.serving.export_check import check_outputs, export_error, load_source, silence
from aag.serving.standalone import loader_source

WriteResult = tuple[dict[str, float], str]  # the largest differences by output, and Python code that loads PATH
LOADER = "load_encoder.py"
LOADER_USAGE = """\
from load_encoder import load_encoder, read_image  # needs torch, safetensors and Pillow, not aag

encoder = load_encoder()
features, embeddings = encoder(read_image("photo.jpg", encoder)[None])"""
ONNX_LIMIT = 2**31  # bytes of one protobuf file


class ExportedEncoder(nn.Module):
    """uint8 images [N, C, S, S] → features [N, F] and unit embeddings [N, D]: what exported files compute."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, raw = self.encoder(images)
        return features, normalize(raw, dim=1)


def write_onnx(encoder: Encoder, path: Path, run: Run | None) -> WriteResult:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise AAGError(f"--format onnx needs {package}; install it with: pip install onnx onnxruntime onnxscript")
    if 4 * nets.parameter_count(encoder) > ONNX_LIMIT:
        raise AAGError("this network exceeds the 2 GB of one ONNX file; use --format torchscript")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal errors only
    try:
        with silence():
            program = torch.onnx.export(
                ExportedEncoder(encoder).eval(),
                (_example(encoder),),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=["features", "embedding"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            )
            assert program is not None
            program.model.metadata_props.update(_metadata(encoder))
            program.save(path, external_data=False)
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except OSError:
        raise
    except Exception as error:  # the exporter and the runtime raise anything
        raise export_error(encoder, "onnx", error) from error

    def outputs(images: Tensor) -> tuple[Tensor, ...]:
        found = session.run(["features", "embedding"], {"images": images.numpy()})
        return tuple(map(torch.from_numpy, found))

    usage = (
        "import onnxruntime\n\n"
        'session = onnxruntime.InferenceSession("PATH")\n'
        f'features, embedding = session.run(None, {{"images": images}})  # NumPy, uint8 {_shape(encoder)}'
    )
    return check_outputs(encoder, outputs, "onnx"), usage


def write_torchscript(encoder: Encoder, path: Path, run: Run | None) -> WriteResult:
    try:
        with silence(), torch.no_grad():
            traced = torch.jit.trace(ExportedEncoder(encoder).eval(), _example(encoder), check_trace=False)
            content = io.BytesIO()  # torch's own writer ends the process where the disk is full
            torch.jit.save(traced, content, _extra_files={"aag.json": json.dumps(_metadata(encoder))})
            path.write_bytes(content.getvalue())
            loaded = torch.jit.load(path)
    except OSError:
        raise
    except Exception as error:  # the tracer raises anything
        raise export_error(encoder, "torchscript", error) from error
    usage = (
        "import torch\n\n"
        'model = torch.jit.load("PATH")\n'
        f"features, embedding = model(images)  # uint8 {_shape(encoder)}"
    )
    return check_outputs(encoder, loaded, "torchscript"), usage


def write_timm(encoder: Encoder, path: Path, run: Run | None) -> WriteResult:
    if not _is_timm(encoder):
        raise AAGError(
            f"{encoder.spec.network} is not one of timm's networks; use --format safetensors, onnx or torchscript"
        )
    if path.suffix != ".safetensors":
        raise AAGError(f"timm reads {path.name} as a pickle; give an --out that ends in .safetensors")
    name, settings = _timm_name(encoder), _timm_settings(encoder)
    _save_tensors(path, encoder.backbone, _metadata(encoder))
    import timm

    with silence():
        backbone = timm.create_model(name, checkpoint_path=str(path), num_classes=0, **settings).eval()
    arguments = "".join(f", {key}={value}" for key, value in settings.items())
    mean, std = ([round(value, 5) for value in values] for values in (encoder.spec.mean, encoder.spec.std))
    usage = (
        "import timm\n\n"
        f'model = timm.create_model("{name}", checkpoint_path="PATH", num_classes=0{arguments}).eval()\n'
        f"features = model(images)  # float {_shape(encoder)}: from [0, 1], minus {mean}, divided by {std}"
    )
    return check_outputs(encoder, _with_head(encoder, backbone), "timm"), usage


def write_safetensors(encoder: Encoder, path: Path, run: Run | None) -> WriteResult:
    source = loader_source(encoder.spec, path.name)
    nets.save(encoder, path, _metadata(encoder))
    loader = path.with_name(LOADER)
    write_bytes(loader, source.encode())
    return check_outputs(encoder, load_source(loader), "safetensors"), LOADER_USAGE


def write_hub(encoder: Encoder, path: Path, run: Run | None) -> WriteResult:
    path.mkdir()
    weights, loader = path / "model.safetensors", path / LOADER
    if _is_timm(encoder):  # in timm's layout: the backbone's weights under its own names, the head apart
        head = "head.safetensors" if encoder.spec.head != "none" else ""
        _save_tensors(weights, encoder.backbone, _metadata(encoder))
        if head:
            _save_tensors(path / head, encoder.head, {})
        write_bytes(loader, loader_source(encoder.spec, weights.name, head).encode())
        write_json(path / "config.json", _timm_config(encoder))
        usage = 'import timm\n\nmodel = timm.create_model("local-dir:PATH", pretrained=True).eval()'
        import timm

        with silence():
            backbone = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
        check_outputs(encoder, _with_head(encoder, backbone), "hub")
    else:
        nets.save(encoder, weights, _metadata(encoder))
        write_bytes(loader, loader_source(encoder.spec, weights.name).encode())
        write_json(path / "config.json", {"library_name": "aag", **json.loads(encoder.spec.to_json())})
        usage = LOADER_USAGE
    card = model_card(encoder, run, LOADER_USAGE, _is_timm(encoder))
    write_bytes(path / "README.md", card.encode(errors="replace"))
    return check_outputs(encoder, load_source(loader), "hub"), usage


WRITERS: dict[str, Callable[[Encoder, Path, Run | None], WriteResult]] = {
    "onnx": write_onnx, "torchscript": write_torchscript, "timm": write_timm, "safetensors": write_safetensors,
    "hub": write_hub,
}  # fmt: skip


# --- timm -------------------------------------------------------------------------------------------------------------


def _is_timm(encoder: Encoder) -> bool:
    """Return whether timm can build the whole backbone."""
    spec = encoder.spec
    is_single = not spec.sees_edges and not spec.network.endswith(SOBEL)
    return is_single and not spec.is_custom and spec.network not in NETWORKS


def _timm_name(encoder: Encoder) -> str:
    """Return the architecture, without a tag of pretrained weights."""
    return encoder.spec.network.removeprefix("timm/").partition(".")[0]


def _timm_settings(encoder: Encoder) -> dict[str, Any]:
    """Return the arguments of create_model besides the name."""
    spec = encoder.spec
    settings = {"img_size": spec.image_size} if encoder.fixed_size else {}
    return settings | ({"in_chans": spec.channels} if spec.channels != 3 else {})


def _timm_config(encoder: Encoder) -> dict[str, Any]:
    """Return config.json as timm reads it from the Hub."""
    spec, settings = encoder.spec, _timm_settings(encoder)
    preprocessing = {
        "input_size": [spec.channels, spec.image_size, spec.image_size], "fixed_input_size": encoder.fixed_size,
        "interpolation": "bicubic", "crop_pct": spec.image_size / spec.source_size, "crop_mode": "center",
        "mean": list(spec.mean), "std": list(spec.std), "num_classes": 0, "first_conv": None, "classifier": None,
    }  # fmt: skip
    config = {"architecture": _timm_name(encoder), "num_classes": 0, "num_features": encoder.feature_dim}
    return {**config, **({"model_args": settings} if settings else {}), "pretrained_cfg": preprocessing}


def _with_head(encoder: Encoder, backbone: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function from images to the features of `backbone` and, through our own head, embeddings."""

    def outputs(images: Tensor) -> tuple[Tensor, Tensor]:
        features = backbone(encoder.normalise(images))
        return features, normalize(encoder.head(features), dim=1)

    return outputs


# --- small parts ------------------------------------------------------------------------------------------------------


def _example(encoder: Encoder) -> Tensor:
    """Return a batch of two images: exporters treat a batch size of 1 as a constant."""
    size = encoder.spec.image_size
    return torch.zeros(2, encoder.spec.channels, size, size, dtype=torch.uint8)


def _shape(encoder: Encoder) -> str:
    return f"[N, {encoder.spec.channels}, {encoder.spec.image_size}, {encoder.spec.image_size}]"


def _metadata(encoder: Encoder) -> dict[str, str]:
    """Return the metadata of an exported file. The settings stay out: they may name folders of this machine."""
    made = {"aag": __version__, "feature_dim": str(encoder.feature_dim), "embedding_dim": str(encoder.embedding_dim)}
    extra = {name: text for name, text in encoder.extra.items() if name != SETTINGS}
    return {**extra, **made, SPEC: encoder.spec.to_json()}


def _save_tensors(path: Path, module: nn.Module, metadata: dict[str, str]) -> None:
    tensors = tensor_files.to_row_major(module.state_dict())
    tensor_files.write(path, tensors, {"format": "pt", **metadata})
