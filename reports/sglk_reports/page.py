"""A report as one HTML page that works offline: style, charts and plotly.js are all inside the file."""

from datetime import datetime, timezone
from importlib.resources import files

import plotly.io as pio
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from sglk import __version__
from sglk_reports.report import Report
from sglk_reports.section import Chart

_CONFIG = {"displayModeBar": False, "responsive": True}


def to_page(report: Report) -> str:
    """Return the whole page; every text in it is escaped."""
    source = files("sglk_reports").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["chart_html"] = chart_html
    charts = any(section.charts for section in report.sections)
    return environment.from_string(source).render(
        report=report,
        plotly_js=Markup(get_plotlyjs()) if charts else "",
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def chart_html(chart: Chart, number: str) -> Markup:
    """Return the chart's element and script; plotly escapes the data inside the script."""
    text = pio.to_html(
        chart.figure, config=_CONFIG, full_html=False, include_plotlyjs=False, div_id=f"chart-{number}", validate=False
    )
    return Markup(text)
