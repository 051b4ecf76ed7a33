"""What is chosen of a table, in which parts, and the commands for it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from aag import AAGError
from aag.cli import main
from aag.cli.bench import Bench
from aag.cli.parsing import parse
from aag.cli.reproduce import Reproduce
from aag.cli.train import parse_train
from aag.methods import methods
from aag.paper import PAPER, Experiment, Results, make_experiment
from aag.paper.plan import (
    TSNE,
    PlannedRun,
    RecordStatus,
    ReproduceOptions,
    command,
    estimate_work,
    missing_needs,
    record_status,
    select_runs,
)
from aag.training import Execution, RunSettings
from aag.training.commands import train_options
from aag.training.recipes import check_unused
from run_queue import read_commands, split_command
from run_tables import ROOT
from synthetic import record, settings_of, write


def runs(*what: str, **options: Any) -> list[PlannedRun]:
    return select_runs(ReproduceOptions(what, **options))


def names(*what: str, **options: Any) -> list[str]:
    return [run.name for run in runs(*what, **options)]


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_a_selection_holds_each_run_once():
    for part in PAPER.values():
        assert names(part.id) == [each.name for each in part.experiments]
    every = names("all")
    assert len(every) == len(set(every))
    assert set(every) == {each.name for part in PAPER.values() for each in part.experiments}
    assert names("table4", "all") == names("table4") + [name for name in every if name not in names("table4")]


def test_one_cell_one_row_one_column():
    assert names("table1", dataset="cifar10", network="resnet18", row="AAG") == ["cifar10-resnet18-paper-seed0"]
    assert names("table1", column="CIFAR-10, ResNet-18", row="aag") == ["cifar10-resnet18-paper-seed0"]
    assert len(names("table1", row="AAG")) == 6
    assert len(names("table1", column="SVHN, AlexNet")) == 7
    assert len(names("table1", dataset="svhn")) == 14  # one is empty in the paper


def test_exact_names_match_before_parts_of_names():
    assert names("table4", row="NT-Xent", column="lr 0.3") == ["cifar10-resnet18-paper-seed0-lr=0.3-loss=nt-xent"]
    assert len(names("table4", row="Xent")) == 4
    assert {run.experiment.options["data"] for run in runs("table1", dataset="cifar10")} == {"cifar10"}
    assert {run.experiment.options["data"] for run in runs("table1", dataset="cifar")} == {"cifar10", "cifar100"}
    # In each table by itself: AAG is a row of table 1 and a part of two of table 2.
    assert len(names("table1", "table2", row="AAG", column="CIFAR-10, ResNet-18")) == 2


def test_a_branch_that_a_method_adds_is_no_other_network():
    assert names("table2", network="resnet18", dataset="cifar10") == [
        "cifar10-resnet18+sobel-super-and-seed0", "cifar10-resnet18-paper-seed0-epochs=1000"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (("table8",), {}, "unknown table or figure 'table8'; did you mean table"),
        (("al",), {}, "unknown table or figure 'al'; did you mean all"),
        (("table1",), {"row": "Instnace"}, "unknown row 'Instnace'; did you mean Instance?"),
        (("table1",), {"dataset": "cifar11"}, "unknown dataset 'cifar11'; did you mean cifar10"),
        (("table1",), {"network": "resnet17"}, "unknown network 'resnet17'; did you mean resnet18"),
        (("table1",), {"column": "SVHN, ResNet-19"}, "unknown column 'SVHN, ResNet-19'; did you mean SVHN, ResNet-18"),
        (("figure6",), {"column": "x"}, "--column x: nothing selected has a column"),
        (
            ("table1",),
            {"row": "DeepCluster", "column": "SVHN, ResNet-18"},
            "no run matches --row DeepCluster, --column",
        ),
        (("table2",), {"row": "tuned"}, "no run matches --row tuned"),
        (("table1",), {"row": ""}, "an empty name matches everything"),
        (("table1",), {"seeds": 0}, "--seeds must be at least 1, not 0"),
        (("table3",), {"knn_every": 7}, "--knn-every 7 skips epoch 200, which table3 shows"),
        (("table3",), {"knn_every": 0}, "--knn-every 0 skips epoch 200"),
        *((("table1",), {"shard": shard}, "--shard takes") for shard in ("0/2", "3/2", "2", "a/b", "-1/2", "1/0")),
    ],
)
def test_unknown_names_are_reported(what, options, message):
    with pytest.raises(AAGError) as error:
        runs(*what, **options)
    assert message in str(error.value)


def test_seeds_come_after_the_first_of_every_cell():
    first, both = names("table4"), names("table4", seeds=2)
    assert both[:4] == first
    assert both[4:] == [name.replace("seed0", "seed1") for name in first]
    assert [run.experiment.options["seed"] for run in runs("table4", seeds=2)] == [0] * 4 + [1] * 4


def test_a_short_version_is_another_run_and_says_so():
    (run,) = runs("table4", row="NT-Xent", column="lr 0.03", epochs_scale=0.1)
    assert (run.experiment.options["epochs"], run.full_epochs) == (20, 200)
    assert run.name == "cifar10-resnet18-paper-seed0-epochs=20-loss=nt-xent"
    assert run.label == f"{run.name} (table4; short version, 20 of 200 epochs)"


@pytest.mark.parametrize(("what", "scale"), [("table3", 0.01), ("table3", 0.02), ("table2", 0.01), ("table3", 0.1)])
def test_short_versions_are_evaluated_at_the_epochs_that_tables_show(what, scale):
    (run,) = runs(what, row="AAG", dataset="cifar10", network="resnet18", epochs_scale=scale)
    epochs, every = run.experiment.options["epochs"], run.execution.knn_every
    assert epochs == 1000 * scale
    assert all((epochs * point // 5) % every == 0 for point in range(1, 6))
    assert all(run.execution.knn_every == 5 for run in runs("table3", "table7"))
    with pytest.raises(AAGError, match="--knn-every 7 skips epoch 20, which table3 shows"):
        runs("table3", epochs_scale=0.1, knn_every=7)


def test_what_tables_and_figures_need_of_a_record():
    needs = {run.name: run.needs for run in runs("figure4", "figure6", "table7", seeds=2)}
    shared = needs["cifar10-resnet18-paper-seed0"]
    assert TSNE in shared
    assert "positive_gradient" in shared
    assert needs["cifar10-resnet18-paper-seed1"] == needs["cifar10-resnet18-paper-seed0-schedule=step"] == {"knn"}
    assert all(run.needs == {"knn", "linear"} for run in runs("figure2"))
    points = frozenset(f"knn@{epoch}" for epoch in (200, 400, 600, 800, 1000))
    assert [run.needs for run in runs("table3", row="AAG", seeds=2)] == [points, points]


def test_records_without_a_needed_measure_are_incomplete(tmp_path):
    (run,) = runs("table3", row="AAG")
    write(tmp_path, record(run.experiment, knn_by_epoch=[[200, 84.0], [1000, 91.0]]))
    assert missing_needs(run, Results(tmp_path)) == {"knn@400", "knn@600", "knn@800"}
    (run,) = runs("table6", row="AAG")
    write(tmp_path, record(run.experiment, evaluation=[]))
    assert missing_needs(run, Results(tmp_path)) == {"linear"}
    assert record_status(run, Results(tmp_path)) is RecordStatus.INCOMPLETE


def test_runs_of_figure_6_are_projected_for_any_table():
    shown = {run.name for run in runs("table4", "table7") if run.needs_projection}
    assert shown == set(names("figure6"))
    for run in runs("table4"):
        assert command(run, Path("results")).endswith(" --tsne") is run.needs_projection


# --- shards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "count"), [("all", 8), ("table1", 3), ("table2", 2)])
def test_shards_are_disjoint_and_similar_in_work(what, count):
    shards = [runs(what, shard=f"{part}/{count}") for part in range(1, count + 1)]
    assert sorted(run.name for shard in shards for run in shard) == sorted(names(what))
    loads = [sum(estimate_work(run.experiment) for run in shard) for shard in shards]
    assert max(loads) < 1.15 * sum(loads) / count


def test_each_shard_has_every_network():
    networks = [{run.experiment.options["network"] for run in runs("table1", shard=f"{part}/2")} for part in (1, 2)]
    assert networks == [{"resnet18", "alexnet"}] * 2


# --- how a run stands -------------------------------------------------------------------------------------------------


def test_a_run_folder_with_other_settings_is_not_started(tmp_path):
    (run,) = runs("table6", row="AAG", runs=tmp_path)
    results = Results(tmp_path / "none")
    assert record_status(run, results) is RecordStatus.MISSING
    run.run.folder.mkdir()
    run.run.start(settings_of(run.experiment, seed=7))
    run.run.checkpoint.write_bytes(b"")
    assert record_status(run, results) is RecordStatus.MISSING
    run.run.config_file.unlink()
    run.run.checkpoint.unlink()
    run.run.start(settings_of(run.experiment))
    assert record_status(run, results) is RecordStatus.MISSING
    run.run.checkpoint.write_bytes(b"")
    assert record_status(run, results) is RecordStatus.STARTED
    run.run.config_file.write_text("{")
    assert record_status(run, results) is RecordStatus.MISSING


# --- commands ---------------------------------------------------------------------------------------------------------

OTHERS = [
    (make_experiment("sample"), Execution()),
    (make_experiment("sample", width=4, schedule="step", decay_at=(0.5,), flip=False, seed=3), Execution(knn_every=2)),
    (make_experiment("cifar10", method="moco", warmup_epochs=None, symmetric=True, precision="fp32"), Execution()),
    (make_experiment("my photos [old]/a'b.npz", image_size=64), Execution(out=Path("a b"), data_root=Path("c d"))),
    (
        make_experiment(
            "cifar10", "demo", "and", lr=1e-05, weight_decay=0.0, decay_at=(0.25, 0.5, 0.75), warmup_epochs=0
        ),
        Execution(device="cuda:1"),
    ),
    (make_experiment("cifar10", network="vit_tiny_patch16_224"), Execution(checkpoint_minutes=0.5)),
    *((make_experiment("cifar10", method=name), Execution()) for name in methods()),
    *((make_experiment("svhn", recipe, method, bn_group_size=0), Execution())
      for recipe in ("simclr", "moco", "demo") for method in ("aag", "simclr")),
]  # fmt: skip


def check_round_trip(experiment: Experiment, execution: Execution, words: list[str]) -> None:
    request = parse_train(words)
    assert (request.settings, request.recipe, request.execution) == (experiment.settings, experiment.recipe, execution)


@pytest.mark.parametrize(("experiment", "execution"), OTHERS)
def test_any_run_is_written_as_options_and_read_back(experiment, execution):
    check_round_trip(experiment, execution, train_options(experiment.settings, experiment.recipe, execution))


def test_the_commands_of_every_run_give_exactly_that_run():
    options = {"device": "cuda:1", "data_root": Path("/my data"), "knn_every": 1, "runs": Path("my runs")}
    for run in runs("all")[::4] + runs("all", seeds=2, epochs_scale=0.013, **options)[::9]:
        train, evaluate = command(run, Path("my results")).split(" && ")
        words = shlex.split(train)
        assert words[:2] == ["aag", "train"]
        check_round_trip(run.experiment, run.execution, words[2:])
        words = shlex.split(evaluate)
        assert words[:5] == ["aag", "evaluate", str(run.run.folder), "--record", "my results"]
        assert ("--tsne" in words) == (TSNE in run.needs)
        assert ("cuda:1" in words) == (run.execution.device == "cuda:1")
        assert ("/my data" in words) == (run.execution.data_root is not None)


# --- the queue --------------------------------------------------------------------------------------------------------

QUEUE = [split_command(command)[1][2:] for command in read_commands()]


@pytest.mark.parametrize("words", [words for words in QUEUE if words[0] == "aag"], ids=shlex.join)
def test_every_command_of_the_queue_can_be_run_and_is_not_done(words, tmp_path, capsys):
    _, program, *arguments = words
    if program == "reproduce":
        results = Results(ROOT / "results")
        statuses = [record_status(run, results) for run in select_runs(parse(Reproduce, "reproduce", arguments))]
        assert any(status is not RecordStatus.RECORDED for status in statuses)
    elif program == "sweep":
        assert main([program, *arguments, "--list", "--json", "--out", str(tmp_path)]) == 0
        assert {row["status"] for row in json.loads(capsys.readouterr().out)} == {"to do"}  # and none is invalid
    elif program == "bench":
        parse(Bench, program, arguments)
    else:
        assert program == "train"
        request = parse_train(arguments)
        settings = request.settings.resolve()
        check_unused(settings, request.recipe)
        assert RunSettings.from_json(settings.to_json()) == settings


def test_the_queue_is_read():
    assert len(QUEUE) > 10
