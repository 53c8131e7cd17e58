"""Planned memory as a picture. In: the memory of a graph, or of a forward and its backward (`held`). Out: HTML: the
bytes that are alive at each step, eager's planned peak and the budget as lines, and the tensors at the peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from litz.logs.units import size_text

WIDTH, HEIGHT = 1000, 160
Memory = Mapping[str, Any]


def memory_part(graphs: Sequence[Memory]) -> str:
    """Returns the picture and the tensors at the peak of all graphs; '' where nothing runs."""
    if not any(graph["steps"] for graph in graphs):
        return ""
    peak = max(graphs, key=lambda graph: graph["peak_bytes"])
    lines = _lines(graphs)
    most = max(peak["peak_bytes"], *(nbytes for _, _, nbytes in lines), 1)
    legend = [f"planned peak: {size_text(peak['peak_bytes'])}, at step {peak['peak_step'] + 1} of {peak['name']}"]
    legend += [f"{text}: {size_text(nbytes)}" for _, text, nbytes in lines]
    keys = "".join(
        f'<span class="key {color}">{escape(text)}</span>'
        for color, text in zip(("kernel", *(color for color, _, _ in lines)), legend, strict=True)
    )
    names = ", then ".join(f"{graph['name']} ({len(graph['steps'])} steps)" for graph in graphs)
    return (
        f'<p class="soft">{keys}</p><div class="plot">{_picture(graphs, peak, lines, most)}</div>'
        f'<p class="soft">Bytes that are alive at each step: {escape(names)}. The dark part stands all the while: '
        f"inputs, results and constants.</p>{_tensors(peak)}"
    )


def _lines(graphs: Sequence[Memory]) -> list[tuple[str, str, int]]:
    """Returns (colour, words, bytes) of each line across the picture."""
    known = (
        ("call", "eager\N{RIGHT SINGLE QUOTATION MARK}s planned peak", "eager_bytes"),
        ("stall", "the budget", "budget_bytes"),
    )
    found = (
        (color, text, next((graph[key] for graph in graphs if graph[key] is not None), None))
        for color, text, key in known
    )
    return [(color, text, nbytes) for color, text, nbytes in found if nbytes is not None]


def _picture(graphs: Sequence[Memory], peak: Memory, lines: Sequence[tuple[str, str, int]], most: int) -> str:
    """The picture, which stretches with its column: each step is as wide as every other."""
    step = WIDTH / sum(len(graph["steps"]) for graph in graphs)

    def y(nbytes: int) -> str:
        return f"{HEIGHT - (HEIGHT - 8) * nbytes / most:.1f}"

    shapes, begin = [], 0.0
    for graph in graphs:
        end = begin + step * len(graph["steps"])
        places = [(begin + step * at, each["bytes"]) for at, each in enumerate(graph["steps"])]
        path = "".join(f"L{x:.2f} {y(nbytes)}H{x + step:.2f}" for x, nbytes in places)
        shapes.append(f'<path class="held" d="M{begin:.2f} {HEIGHT}{path}V{HEIGHT}Z"/>')
        top = y(graph["standing_bytes"])
        shapes.append(f'<path class="held" d="M{begin:.2f} {HEIGHT}V{top}H{end:.2f}V{HEIGHT}Z"/>')
        if graph is peak:
            at = begin + step * (graph["peak_step"] + 0.5)
            shapes.append(f'<line class="at" x1="{at:.2f}" y1="0" x2="{at:.2f}" y2="{HEIGHT}"/>')
        if begin:
            shapes.append(f'<line x1="{begin:.2f}" y1="0" x2="{begin:.2f}" y2="{HEIGHT}"/>')
        begin = end
    for color, text, nbytes in lines:
        words = f"<title>{escape(text)}: {escape(size_text(nbytes))}</title>"
        shapes.append(f'<rect class="{color}" x="0" y="{y(nbytes)}" width="{WIDTH}" height="1.5">{words}</rect>')
    label = f"bytes that are alive at each step, at most {size_text(peak['peak_bytes'])}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" height="{HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(shapes)}</svg>'
    )


def _tensors(graph: Memory) -> str:
    """The tensors that are alive at the peak, the largest first."""
    rows = "".join(
        f'<tr><td class="n">{escape(size_text(each["bytes"]))}</td><td class="name">{escape(each["name"])}</td>'
        f"<td>{'saved for the backward' if each['saved'] else ''}</td><td>{escape(each['op'])}</td>"
        f"<td>{escape(each['origin'])}</td></tr>"
        for each in graph["tensors"]
    )
    heads = "".join(f"<th>{head}</th>" for head in ("alive at the peak", "name", "", "made by", "module and line"))
    note = "" if graph["known"] else '<p class="soft">The graph came from the graph cache, which has no tensors.</p>'
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}'


__all__ = ["memory_part"]
