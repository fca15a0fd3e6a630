"""A report in the terminal."""

from rich.table import Table
from rich.text import Text

from sglk.commands.terminal import console
from sglk_reports.report import Report
from sglk_reports.section import Section
from sglk_reports.tables import Mark, TextTable

_STYLES: dict[Mark, str] = {"": "", "best": "bold green", "default": "yellow", "failed": "red"}


def show(report: Report) -> None:
    """Print every ranking, then the chips side by side."""
    screen = console()
    for section in report.sections:
        screen.print()
        screen.print(_heading(section))
        screen.print(_rich(section.table))
        for line in [section.headline, *section.remarks]:
            screen.print(Text(line))
        for line in section.warnings:
            screen.print(Text(f"warning: {line}", style="yellow"))
    if report.chip_table.rows:
        screen.print()
        screen.print(Text(report.chip_table.title, style="bold"))
        screen.print(_rich(report.chip_table))
    for note in report.chips.notes:
        screen.print(Text(f"not compared: {note}", style="dim"))


def _heading(section: Section) -> Text:
    style = "green" if section.kind == "measured" else "yellow"
    return Text.assemble((section.name, "bold"), "  ", (section.kind, style))


def _rich(table: TextTable) -> Table:
    # Text objects: what users named must not be read as markup.
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column, header in enumerate(table.headers):
        # Tables have more columns than terminals have room for names.
        name = Text(header.replace("_", "_\n") if len(header) > 12 else header)
        shown.add_column(name, justify="right" if column in table.numeric else "left", overflow="fold")
    for row, mark in zip(table.rows, table.marks, strict=True):
        shown.add_row(*map(Text, row), style=_STYLES[mark])
    return shown
