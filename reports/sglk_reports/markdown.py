"""A report as Markdown, for an issue or a repository."""

import re

from sglk_reports.report import Report
from sglk_reports.section import Section
from sglk_reports.tables import TextTable


def to_markdown(report: Report) -> str:
    """Return the whole report without its charts."""
    parts = ["# sglk report", escape(report.subtitle)]
    for section in report.sections:
        parts += _section(section)
    if report.chip_table.rows:
        parts += ["## Chips", _table(report.chip_table)]
    parts += _bullets([f"not compared: {note}" for note in report.chips.notes])
    parts += _bullets([f"skipped: {line}" for line in report.skipped])
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return `text` so that Markdown shows it as it is: no markup, no HTML, no line breaks, no table cells."""
    # An underscore inside a word is plain text, and most names of parameters have one.
    escaped = re.sub(r"[\\`*\[\]#|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _section(section: Section) -> list[str]:
    parts = [f"## {escape(section.name)} ({escape(section.kind)})", f"**{escape(section.headline)}**"]
    parts += [escape(line) for line in section.remarks]
    parts.append(_table(section.table))
    parts.append(f"Order: {escape(section.rule)}.")
    parts += _bullets([f"warning: {line}" for line in section.warnings])
    for table in section.effects:
        parts += [f"### {escape(table.title)}", _table(table)]
    parts.append("\n".join(f"- {escape(label)}: {escape(text)}" for label, text in section.provenance))
    return parts


def _bullets(lines: list[str]) -> list[str]:
    return ["\n".join(f"- {escape(line)}" for line in lines)] if lines else []


def _table(table: TextTable) -> str:
    rules = ["---:" if column in table.numeric else ":---" for column in range(len(table.headers))]
    lines = [map(escape, table.headers), rules, *(map(escape, row) for row in table.rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
