"""Count the malformed lines of one file and stop at the first one too many."""

from __future__ import annotations

from feature_extract.errors import BadLineError

EXAMPLES = 3  # malformed lines that are quoted in the summary


class BadLines:
    """Malformed lines of one pass over a file.

    Args:
        file: its name, for messages.
        allowed: how many may be skipped; one more is an error.
    """

    def __init__(self, file: str, allowed: int = 0) -> None:
        self.file, self.allowed = file, allowed
        self.count = 0
        self.examples: list[str] = []

    def add(self, line: int, problem: str) -> None:
        """Skip a line.

        Raises:
            BadLineError: it is one too many; the text names the line.
        """
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{self.file}:{line}: {problem}")
        if self.count > self.allowed:
            before = f" after {self.allowed} that were skipped" if self.allowed else ""
            raise BadLineError(
                self.file,
                line,
                f"{problem}{before}; a larger --max-bad skips and counts such lines",
            )
