"""Figures: the charts of our runs, and the description of what one sees in them."""

import pytest

from aag.pages.plots import LineChart
from aag.paper import PAPER as PARTS
from aag.paper import Figure, Results
from aag.paper.findings import FigureResult, find_figure
from synthetic import PAPER, curves, record, settings_of, write, write_projection

NT = PAPER.replace(loss="nt-xent")


def found(folder, name: str) -> FigureResult:
    figure = PARTS[name]
    assert isinstance(figure, Figure)
    return find_figure(figure, Results(folder))


def lines_of(one: FigureResult) -> list:
    return [line for chart in one.charts if isinstance(chart, LineChart) for line in chart.lines]


def test_the_sweep_by_batch_size(folder):
    one = found(folder, "figure3")
    assert one.findings[0] == (
        "kNN: 85.00 at 32, 87.90 at 64, 88.87 (88.70–89.00, n = 3) at 128, 88.00 at 256, 86.10 at 512."
    )
    assert one.findings[1] == (
        "The best batch size by kNN is 128 (88.87), of 5 tried; 512, the largest, is lower by 2.77. "
        "It falls from 128 to 256, from 256 to 512. All lie within 3.87."
    )
    assert one.findings[2] == "kNN, 20 of 200 epochs: 61.00 at 1024."
    assert [line.hollow for line in lines_of(one)] == [False, True]  # a short version is no point of the line
    assert one.missing == ("batch size 1024: run only in a short version",)


def test_the_sweep_by_epochs(folder):
    one = found(folder, "figure2")
    assert (
        "The best number of epochs by kNN is 1000 (91.30), of 5 tried, the largest. It never falls. "
        "All lie within 2.43." in one.findings
    )
    assert "Linear evaluation is above kNN at 5 of 5 points." in one.findings
    assert "kNN, other lengths: 86.80 at 100." in one.findings
    assert not one.missing
    assert len(one.results) == 8


def test_gradients_that_are_constant_or_fall(folder):
    positive, negative, similarity, _ = found(folder, "figure4").findings
    assert positive == (
        "|∇s⁺|: NT-Xent falls from 10 to 0.193; GNT-Xent is constant at 10 (it varies by 0.0 %); "
        "GNT-Xent is above NT-Xent at 79 of 80 points of training."
    )
    assert "GNT-Xent is constant" in negative
    assert "GNT-Xent is above NT-Xent at 80 of 80 points" in similarity


@pytest.mark.parametrize("broken", [None, [], {"step": [1, 2]}, {"positive_gradient": [1]}])
def test_records_without_curves_say_so(tmp_path, broken):
    write(tmp_path, record(PAPER, curves=broken))
    write(tmp_path, record(NT))
    one = found(tmp_path, "figure4")
    assert all(chart.is_empty and chart.empty == "no such curve in the records" for chart in one.charts)
    assert one.missing == ("|∇s⁺|, |∇s⁻|, s⁺, s⁻: not in the record of NT-Xent and GNT-Xent",)
    assert not one.results


def test_accuracy_and_loss_of_both_losses(folder):
    knn, loss = found(folder, "figure5").findings
    assert knn.startswith("kNN: NT-Xent ends at 86.50; GNT-Xent ends at 88.90; ")
    assert knn.endswith("GNT-Xent is above NT-Xent at 20 of 20 points of training.")
    assert "NT-Xent falls from 14.4 to 3 and never goes below zero" in loss
    assert "GNT-Xent falls from 6.4 to −5 and is below zero from epoch 120 on" in loss


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3, -1, 2, -1, -2], "and is below zero from epoch 4 on."),
        ([-1, -2], "and is below zero from epoch 1 on."),
        ([3, -1, 2], "and is below zero at 1 of 3 points, not at the last."),
        ([3, 0], "and never goes below zero."),
    ],
)
def test_a_loss_that_rises_above_zero_again_is_not_below_it(tmp_path, losses, said):
    write(tmp_path, record(PAPER, loss_by_epoch=[[epoch, loss] for epoch, loss in enumerate(losses, 1)]))
    assert found(tmp_path, "figure5").findings[1].endswith(said)


def test_runs_of_different_length_are_not_compared(tmp_path):
    write(tmp_path, record(PAPER, curves=curves(falling=False)))
    write(tmp_path, record(PAPER.replace(loss="nt-xent", epochs=20), 60.0, curves=curves(falling=True, points=20)))
    for figure in ("figure4", "figure5"):
        one = found(tmp_path, figure)
        assert len(one.findings) == len(one.charts)
        assert not any("above" in words for words in one.findings)
        assert [line.hollow for line in lines_of(one)] == [True, False] * len(one.charts)
        assert lines_of(one)[0].name == "NT-Xent (20 of 200 epochs)"
        assert one.missing == ("NT-Xent: run only in a short version, 20 of 200 epochs",)


def test_missing_points_of_a_sweep_are_explained(tmp_path):
    for size in (32, 64, 128):
        run = PAPER.replace(batch_size=size, epochs=20 if size == 64 else 200)
        write(tmp_path, record(run, settings=settings_of(run, momentum=0.5 if size == 32 else 0.9)))
    assert found(tmp_path, "figure3").missing == (
        "batch size 32: not run yet (a record is stale: momentum 0.5, now 0.9)",
        "batch size 64: run only in a short version",
        "batch size 256, 512, 1024: not run yet",
    )
    write(tmp_path, record(PAPER.replace(epochs=400), linear=None))
    assert found(tmp_path, "figure2").missing == (
        "epochs 600, 800, 1000: not run yet",
        "epochs 400: recorded without linear",
    )


@pytest.mark.parametrize(
    ("values", "description"),
    [
        ([0.5, -0.5] * 40, "falls from 0.5 to −0.5"),
        ([1.0, 9.0] + [0.5] * 78, "falls from 1 to 0.5, with a maximum of 9 in between"),
        ([-0.5] * 80, "is constant at −0.5"),
        ([0.0] * 80, "is constant at 0 (it varies by 0.0 %)"),
    ],
)
def test_the_course_of_a_curve_is_described(tmp_path, values, description):
    write(tmp_path, record(PAPER, curves=curves(falling=False) | {"negative_similarity": values}))
    assert description in found(tmp_path, "figure4").findings[3]


def test_very_short_runs_are_left_out(tmp_path):
    for epochs, knn in ((1, 30.0), (99, 86.0), (100, 86.8), (200, 88.9)):
        write(tmp_path, record(PAPER.replace(epochs=epochs), knn))
    assert found(tmp_path, "figure2").findings[:2] == ("kNN: 88.90 at 200.", "kNN, other lengths: 86.80 at 100.")


def test_projections_are_drawn(folder):
    one = found(folder, "figure6")
    assert [chart.title for chart in one.charts] == ["NT-Xent", "GNT-Xent"]
    assert [path.stem for path in one.projections] == [NT.name, PAPER.name]
    assert one.findings[1] == "GNT-Xent: for 100.0 % of 600 images, the nearest in the picture has the same class."


def test_large_projections_are_thinned(tmp_path):
    write(tmp_path, record(PAPER))
    write_projection(tmp_path, PAPER, points=4500)
    one = found(tmp_path, "figure6")
    assert [len(chart.points) for chart in one.charts] == [0, 1500]
    assert one.findings[0].endswith("3,000 more are not drawn.")
