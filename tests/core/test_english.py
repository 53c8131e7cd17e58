"""The sentences that `support.english` finds grow no more: what is left is data, by file, and may only shrink."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from support.english import Fault, faults, module_faults, page_faults

LEFT = Path(__file__).with_name("english_left.json")
"""How many sentences of each file are still to be mended. `python tests/core/test_english.py` writes it anew."""


def test_no_file_has_more_than_were_left() -> None:
    left = json.loads(LEFT.read_text())
    found = faults()
    counts = Counter(fault.path for fault in found)
    more = [str(fault) for fault in found if counts[fault.path] > left.get(fault.path, 0)]
    assert not more, "name the thing in place of the pronoun, or open with `Returns`:\n" + "\n".join(more)
    fewer = {path: counts[path] for path, number in left.items() if counts[path] < number}
    assert not fewer, f"`python tests/core/test_english.py` writes the lower numbers: {fewer}"


def test_what_is_found_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# It is a heading\n\nThe pass runs. It is pure, and\nThis kernel is. This is not. They\nrun.\n\n"
        "```python\n# It is code\n```\n\n| It is | a table |\n\n"
        "- It makes one.\n  This copies none.\n\n    It is code\n"
    )
    found = [(fault.line, fault.text.split(".")[0]) for fault in page_faults(page, tmp_path)]
    assert found == [
        (1, "It is a heading"),
        (3, "It is pure, and This kernel is"),
        (3, "This is not"),
        (3, "They run"),
        (13, "It makes one"),
    ]


def test_what_is_found_in_a_module(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""What it is for."""\n\n\n'
        'def f():\n    """What f is."""\n\n\ndef g():\n    """Returns what g is. It is one."""\n\n\n'
        'def _h():\n    """Whether h."""\n\n    if True:\n        def n():\n            """Would n?"""\n\n\n'
        'class C:\n    """A class."""\n\n    def _m(self):\n        """Is it so?"""\n'
    )
    assert [fault.text for fault in module_faults(module, tmp_path)] == [
        "What f is.",
        "It is one.",
        "Whether h.",
        "Would n?",
        "Is it so?",
    ]


def counted(found: list[Fault]) -> dict[str, int]:
    return dict(sorted(Counter(fault.path for fault in found).items()))


if __name__ == "__main__":
    LEFT.write_text(json.dumps(counted(faults()), indent=1) + "\n")
