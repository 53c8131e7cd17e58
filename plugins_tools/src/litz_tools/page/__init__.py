"""The HTML pages of reports. In: a report, or the summaries of a run's graphs. Out: text that needs nothing else.

`html` is the page of one graph, `index` the page over all graphs of a folder. A page carries its data as JSON; what is
seen at once is HTML that needs no script, and page.js makes the rest when a reader comes to it.
"""

from .data import More
from .html import render_html
from .index import render_index, summary_of

__all__ = ["More", "render_html", "render_index", "summary_of"]
