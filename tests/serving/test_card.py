"""Model cards: what made the encoder, its numbers with their protocol, and nothing that breaks the page."""

import json
import re

import pytest
import yaml

from aag.nets import EncoderSpec, build
from aag.runs import Run
from aag.serving.card import model_card

HOSTILE = '<script>alert(1)</script>|"x"\n---`*'


@pytest.fixture
def run(tmp_path) -> Run:
    settings = {
        "name": HOSTILE,
        "data": {"source": f"/home/someone/{HOSTILE}", "image_size": 32},
        "encoder": {"network": "resnet18", "width": 4},
        "method": {"name": "aag", "temperature": 0.1},
        "train": {"epochs": 9, "lr": 0.12, "start_from": None, "freeze": []},
    }
    run = Run(tmp_path)
    run.config_file.write_text(json.dumps(settings))
    position = {"epoch": 9, "step": 90}
    run.log([
        {"kind": "start", "epoch": 0, "step": 0, "images": 1234, "commit": "abc", "torch": "2.15", "cpu": "2 cores"},
        {"kind": "epoch", **position, "loss": 4.5, "seconds": 61.0, "views_per_second": 900.0},
        {"kind": "knn", **position, "knn": 45.678},
        {"kind": "health", **position, "rank": 17.25, "dimensions": 128, "alignment": 0.5, "uniformity": -2.0,
         "agreement": 0.75, "images": 1000},
    ])  # fmt: skip
    return run


@pytest.fixture
def encoder():
    return build(EncoderSpec("resnet18", width=4))


def test_numbers_come_with_their_protocol(run, encoder):
    result = {"name": "kNN (embedding)", "accuracy": 51.239, "protocol": {"k": 200, "data": "photos", "test": 100}}
    run.evaluation_file.write_text(json.dumps({"results": [result]}))
    card = model_card(encoder, run)
    assert "| kNN (embedding) | 51.24 % | photos | k 200, test 100 |" in card
    assert "17.2 of 128" in card
    assert "| two views of an image find each other | 75 % |" in card
    assert "45.68" not in card  # the evaluation's number replaces that of training


def test_numbers_on_held_out_images_say_so(run, encoder):
    settings = run.settings()
    settings["data"]["holdout"] = 0.1
    run.config_file.write_text(json.dumps(settings))
    assert "| 45.68 % | test split, held-out 10 % of the labelled images |" in model_card(encoder, run)
    result = {"name": "kNN (embedding)", "accuracy": 51.239, "protocol": {"data": "cifar10"}}
    run.evaluation_file.write_text(json.dumps({"results": [result]}))
    assert "| 51.24 % | cifar10, held-out 10 % of the labelled images |" in model_card(encoder, run)


def test_without_an_evaluation_the_last_knn_of_training_is_shown(run, encoder):
    assert "| kNN (embedding) | 45.68 % |" in model_card(encoder, run)


def test_a_card_tells_the_data_settings_and_provenance(run, encoder):
    card = model_card(encoder, run)
    for text in ("1,234", "| temperature | 0.1 |", "| commit | abc |", "1 min 01 s", "| freeze | none |"):
        assert text in card
    settings = run.settings()
    settings["method"]["name"] = "/home/someone/vicreg.py:VICReg"
    settings["train"] |= {"start_from": "/home/someone/runs/first", "pretrained": "/home/someone/weights.pth"}
    run.config_file.write_text(json.dumps(settings))
    card = model_card(encoder, run)
    for text in ("by the method vicreg.py:VICReg", "| method | vicreg.py:VICReg |", "| first |", "| weights.pth |"):
        assert text in card
    assert "/home/someone" not in card  # a card is published


def test_names_cannot_break_the_page(run, encoder):
    card = model_card(encoder, run)
    assert "<script" not in card.replace("\\<", "")
    front, title = re.fullmatch(r"---\n(.*?)\n---\n\n(# .*?)\n\n.*", card, re.DOTALL).groups()  # type: ignore[union-attr]
    assert yaml.safe_load(front)["pipeline_tag"] == "image-feature-extraction"
    assert "\n" not in title
    rows = [line for line in card.splitlines() if line.startswith("| source |")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 3


def test_the_hub_accepts_the_front_matter(run):
    hub = pytest.importorskip("huggingface_hub")
    encoder = build(EncoderSpec("test_vit", image_size=64))
    data = hub.ModelCard(model_card(encoder, run, uses_timm=True)).data
    assert data.library_name == "timm"
    assert "self-supervised-learning" in data.tags


def test_an_encoder_without_a_run_has_a_card(encoder):
    card = model_card(encoder)
    assert "32×32 px" in card
    assert "settings" not in card
