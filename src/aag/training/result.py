"""What came of a run, read from its metrics."""

from dataclasses import dataclass

from aag.training.run import Run


@dataclass(frozen=True)
class Result:
    run: Run
    complete: bool  # False: stopped on request, and saved
    knn_untrained: float | None
    knn_last: float | None  # the number to report
    knn_best: float | None  # chosen on the test set: logged, not reported
    knn_best_epoch: int | None
    seconds: float  # of training, without evaluation
    views_per_second: float | None  # the median epoch's


def summarise(run: Run, complete: bool = True) -> Result:
    rows = run.metrics()
    knn = {row["epoch"]: row["knn"] for row in rows if row["kind"] == "knn"}
    epochs = [row for row in rows if row["kind"] == "epoch"]
    trained = {epoch: accuracy for epoch, accuracy in knn.items() if epoch > 0}
    best = max(trained, key=trained.__getitem__, default=None)
    speeds = sorted(row["views_per_second"] for row in epochs)
    return Result(
        run,
        complete,
        knn_untrained=knn.get(0),
        knn_last=trained[max(trained)] if trained else None,
        knn_best=None if best is None else trained[best],
        knn_best_epoch=best,
        seconds=epochs[-1]["seconds"] if epochs else 0.0,
        views_per_second=speeds[len(speeds) // 2] if speeds else None,
    )
