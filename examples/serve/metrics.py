"""What a server counts, and the text that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

LIMITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds: upper limits of the counts of first tokens."""


@dataclass
class Metrics:
    """Counts since the start. ended: requests by reason. steps: of batches."""

    tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    firsts: list[int] = field(default_factory=lambda: [0] * (len(LIMITS) + 1))

    def first_token(self, seconds: float) -> None:
        """Counts a request's first token, after so many seconds."""
        self.seconds += seconds
        self.firsts[next((at for at, limit in enumerate(LIMITS) if seconds <= limit), len(LIMITS))] += 1

    def text(self, waiting: int, running: int) -> str:
        """Returns the metrics in Prometheus' format."""
        name, sums = "serve_first_token_seconds", [sum(self.firsts[: at + 1]) for at in range(len(self.firsts))]
        lines = [
            *_row("serve_tokens_total", "counter", {"": self.tokens}),
            *_row("serve_prompt_tokens_total", "counter", {"": self.prompt_tokens}),
            *_row("serve_steps_total", "counter", {"": self.steps}),
            *_row("serve_requests_total", "counter", {f'{{end="{why}"}}': n for why, n in sorted(self.ended.items())}),
            *_row("serve_queue", "gauge", {"": waiting}),
            *_row("serve_running", "gauge", {"": running}),
            f"# TYPE {name} histogram",
            *(f'{name}_bucket{{le="{limit}"}} {n}' for limit, n in zip((*LIMITS, "+Inf"), sums, strict=True)),
            f"{name}_sum {self.seconds}",
            f"{name}_count {sums[-1]}",
        ]
        return "\n".join(lines) + "\n"


def _row(name: str, kind: str, values: dict[str, int]) -> list[str]:
    return [f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in values.items())]
