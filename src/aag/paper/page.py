"""The reproduction page: every table and figure, our numbers next to the paper's. Also single figures as files."""

from collections.abc import Iterable
from pathlib import Path

from aag.errors import AAGError
from aag.pages import (
    Bullets,
    Charts,
    Columns,
    Document,
    Heading,
    Image,
    Link,
    Paragraph,
    Section,
    Styled,
    Text,
    render_html,
    render_markdown,
    write_texts,
)
from aag.pages import Cell as PageCell
from aag.pages import Table as PageTable
from aag.pages.document import Block
from aag.pages.plots import encode_png, save
from aag.paper.cells import CLOSE, ELSEWHERE, QUOTED, CellResult, TableResult, label, signed
from aag.paper.experiments import Figure, Part
from aag.paper.findings import FigureResult, find_figure
from aag.paper.plan import Reproduce, find_parts
from aag.paper.protocol import describe_origin
from aag.paper.results import Result, Results
from aag.paper.summary import Point, Summary
from aag.paper.views import draw_views

TITLE = "AAG: the paper's tables and figures, reproduced"


def write_pages(results: Path, out: Path, markdown: Path | None = None) -> list[str]:
    """Write the page as HTML and, if asked, as Markdown: both, or neither where one cannot be written.

    Return what is wrong with the records, one line each.
    """
    summary = Summary(results)
    document = make_document(summary)
    texts = {out: render_html(document, out)}
    if markdown == out:
        raise AAGError(f"cannot write two pages to {out}; give two names")
    if markdown:
        texts[markdown] = render_markdown(document, markdown)
    write_texts(texts)
    return summary.warnings


def save_figure(options: Reproduce) -> str:
    """Draw one figure from the records into a file, and say so."""
    assert options.save is not None
    parts = find_parts(options.what)
    if len(parts) != 1 or not isinstance(parts[0], Figure):
        raise AAGError(f"--save draws one figure, such as figure4, not {' '.join(options.what)}")
    found = find_figure(parts[0], Results(options.results))
    charts = (draw_views(),) if found.figure.kind == "views" else found.charts
    if all(chart.is_empty for chart in charts):
        raise AAGError(f"{options.results} has no record for {parts[0].id}; run aag reproduce {parts[0].id} first")
    save(charts, options.save)
    missing = f" (missing: {'; '.join(found.missing)})" if found.missing else ""
    return f"{label(parts[0])} written to {options.save}{missing}"


def make_document(summary: Summary) -> Document:
    return Document(
        TITLE,
        [
            Paragraph(
                "Every table and figure of “AAG: Self-Supervised Representation Learning by Auxiliary Augmentation "
                "with GNT-Xent Loss” (Tu, Feng, Yang; 2021), with our number next to the paper's. Accuracy in percent.",
                "lead",
            ),
            Paragraph([Styled(summary.headline, "strong")], "sum"),
        ],
        [
            _summary_section(summary),
            *map(_table_section, summary.tables),
            *map(_figure_section, summary.figures),
            _records_section(summary),
        ],
        [
            "Written by ", Styled("aag reproduce page", "code"),
            " from the records that it links to. No number of ours is typed by hand.",
        ],
    )  # fmt: skip


# --- the summary ------------------------------------------------------------------------------------------------------


def _summary_section(summary: Summary) -> Section:
    lists: list[list[Block]] = [
        [Heading(head), Bullets(list(map(_point, points)))] for head, points in summary.lists().items() if points
    ]
    reading: list[Block] = [
        Heading("How to read a cell"),
        Paragraph(
            [
                "First our number, and its difference from the paper's: ",
                Styled("▲ above or equal", "diff up"), ", ",
                Styled(f"▽ below by at most {CLOSE}", "diff near"), ", ",
                Styled("▼ below by more", "diff down"),
                ". Then the paper's number. One seed, unless the cell gives a range over n seeds; then our number is "
                f"their mean. {QUOTED}: the paper took the number from earlier work. {ELSEWHERE}: shown for "
                "comparison, not run here.",
            ]
        ),
        Paragraph(
            "Short versions have fewer epochs than the cell asks for; they are not compared. Stale records have other "
            "settings than the cell; their numbers are not shown."
        ),
    ]  # fmt: skip
    return Section("state", "What is reproduced, and what is not", [Columns(lists), *reading])


def _point(point: Point) -> Text:
    text: list[str | Link | Styled] = []
    for part in point.parts:
        text += [", "] * bool(text) + [_anchor(part)]
    text.append(f", {point.name}: " if point.name else ": ")
    if not point.cell:
        return [*text, point.text]
    cell = point.cell
    return [*text, f"{cell.ours}, paper {cell.paper} ", _difference(cell), " ", *_record_links(cell)]


# --- a table ----------------------------------------------------------------------------------------------------------


def _table_section(found: TableResult) -> Section:
    table = found.table
    rows = []
    for row in found.rows:
        first = row[0].cell
        tags = {"quoted": first.quoted, f"not ours {ELSEWHERE}": bool(first.elsewhere), "added by us": first.added}
        head: list[Text] = [first.row, *([Styled(tag, "tag")] for tag, shown in tags.items() if shown)]
        rows.append([PageCell(head), *map(_cell, row)])
    missing = bool(found.describe_open())
    return Section(
        table.id,
        table.title,
        [
            Paragraph(table.shows),
            PageTable(label(table), ["", *table.columns], rows, f"{label(table)}: {found.tally}."),
            *(Paragraph(text) for text in (found.gains, found.order) if text),
            *_notes(table.notes),
            *_small([*found.sources, *found.protocols]),
            *_missing_command(table, missing),
        ],
        label(table),
    )


def _cell(one: CellResult) -> PageCell:
    """Our number, the paper's, and links to the records, one line each."""
    if one.state == "empty":
        return PageCell(["–"], "empty")
    lines: list[Text] = []
    if one.values:
        lines.append([Styled(f"{one.mean:.2f}", "strong"), " ", _difference(one)])
        lines += [one.range] if one.range else []
    state = {"short": f"short: {one.note}", "unmeasured": one.note, "missing": "not run yet"}.get(one.state)
    if state:
        lines.append([Styled(state, "state")])
    lines.append(one.paper if one.state == "elsewhere" else f"paper {one.paper}")
    if one.results:
        lines.append(_record_links(one))
    for stale in one.stale:
        lines.append([Styled("stale ", "stale"), _record_link(stale.result, "record", one.name), f": {stale}"])
    return PageCell(lines, one.state)


def _difference(one: CellResult) -> Styled:
    if one.difference is None:
        return Styled("", "")
    if one.cell.incomparable:
        return Styled(f"({signed(one.difference)}, not comparable)", "soft")
    kind, mark = ("up", "▲") if one.difference >= 0 else (("near", "▽") if one.difference >= -CLOSE else ("down", "▼"))
    return Styled(f"{mark} {signed(one.difference)}", f"diff {kind}")


def _record_links(one: CellResult) -> list[str | Link]:
    if len(one.results) == 1:
        return [_record_link(one.results[0], "record", one.name)]
    links: list[str | Link] = ["records of seed"]
    for result in one.results:
        links += [" ", _record_link(result, str(result.seed), f"{one.name}, seed {result.seed}")]
    return links


def _record_link(result: Result, text: str, about: str = "") -> Link:
    return Link(text, result.path, f"record of {about}" if about else "")


# --- a figure ---------------------------------------------------------------------------------------------------------


def _figure_section(found: FigureResult) -> Section:
    figure = found.figure
    ours: list[Block] = []
    if figure.kind != "views":
        findings = Bullets(found.findings) if found.findings else Paragraph("Nothing to compare yet.")
        ours = [Heading("Ours"), findings]
        ours += [Heading("Missing"), Bullets(found.missing)] if found.missing else []
    links: list[str | Link] = []
    for name, path in found.files.items():
        links += [", " if links else "Drawn from ", Link(name, path)]
    seeds = "" if figure.kind == "sweep" else " (the lowest seed of each run)"
    paper: list[Block] = [Heading("The paper"), Paragraph(figure.behaviour)]
    drawn = _view_table() if figure.kind == "views" else Charts(found.charts)
    # A single chart leaves room next to it.
    body: list[Block] = (
        [Columns([[drawn], [*paper, *ours]])] if len(found.charts) == 1 else [drawn, Columns([paper, ours])]
    )
    return Section(
        figure.id,
        figure.title,
        [
            Paragraph(figure.shows),
            *body,
            *_notes(figure.notes),
            *_small(found.protocols),
            *([Paragraph([*links, f"{seeds}."], "protocol")] if links else []),
            *_missing_command(figure, bool(found.missing)),
        ],
        label(figure),
    )


def _view_table() -> PageTable:
    chart = draw_views()
    rows = [
        [
            PageCell([name]),
            *(
                PageCell([[Image(encode_png(pixels), f"{name}, {column}")]])
                for column, pixels in zip(chart.columns, images, strict=True)
            ),
        ]
        for name, images in zip(chart.names, chart.grid, strict=True)
    ]
    caption = "Photographs of the bundled sample of CIFAR-10, and their views in the first epoch with seed 0."
    return PageTable(chart.title, ["", *chart.columns], rows, caption, "views")


# --- records and shared parts -----------------------------------------------------------------------------------------


def _records_section(summary: Summary) -> Section:
    blocks: list[Block] = [Paragraph("None yet.")]
    if summary.used:
        rows = [
            [PageCell([[_record_link(one, one.name)]]), *(PageCell([text]) for text in describe_origin(one).values())]
            for one in summary.used
        ]
        columns = ["record", *describe_origin(summary.used[0])]
        caption = f"The {len(rows)} records that this page shows."
        blocks = [PageTable("Records", columns, rows, caption, "list")]
    if summary.damaged:
        blocks += [Heading("Skipped files"), Bullets([f"{path.name}: {why}" for path, why in summary.damaged])]
    return Section("records", "Where the numbers come from", blocks, "Records")


def _anchor(part: Part) -> Link:
    return Link(label(part), part.id)


def _notes(notes: Iterable[str]) -> list[Block]:
    return [Heading("Our notes"), Bullets(list(notes))] if notes else []


def _small(texts: Iterable[str]) -> list[Block]:
    return [Paragraph(text, "protocol") for text in texts]


def _missing_command(part: Part, is_missing: bool) -> list[Block]:
    command: Text = ["To run what is missing: ", Styled(f"aag reproduce {part.id}", "code")]
    return [Paragraph(command, "protocol")] if is_missing else []
