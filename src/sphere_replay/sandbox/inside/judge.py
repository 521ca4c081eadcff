"""Turns reports into outcomes: what does not come in the right words and order is a fraud."""

import json

from .canaries import Canaries

OUTCOMES = ("passed", "failed", "error", "skipped")


class Judge:
    """Reads the reports of one run; everything that it has not seen is a fail.

    Args:
        canaries: Tests that must fail, for a program that shares its interpreter with the tests.
    """

    def __init__(self, canaries: Canaries | None) -> None:
        self.collected: list[str] | None = None
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.uncollected: str | None = None
        self.refused: str | None = None
        self.fraud: str | None = None
        self.canaries = canaries
        self._nonce: str | None = None
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what came through the descriptor."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.fraud is None:
                self._read(line)

    def close(self, *, complete: bool) -> None:
        """No more reports; `complete`: the program ended by itself, so none may be missing."""
        if self.fraud is None and self.uncollected is None and self.collected is not None:
            # Whatever was reported, no node of an uncollected file passes.
            if self._rest and complete:
                self.fraud = "half a report"
            elif self.canaries is not None:
                self._look_at(self.canaries, complete)
        for canary in () if self.canaries is None else (self.canaries.first, self.canaries.last):
            if self.collected is not None and canary in self.collected:
                self.collected.remove(canary)
            self.outcomes.pop(canary, None)
            self.messages.pop(canary, None)

    def _look_at(self, canaries: Canaries, complete: bool) -> None:
        assert self.collected is not None
        first, last = canaries.first, canaries.last
        nodes = [node for node in self.collected if node not in (first, last)]
        if not {first, last} <= set(self.collected):
            self.fraud = "the canaries were not collected"
        elif "passed" in (self.outcomes.get(first), self.outcomes.get(last)):
            self.fraud = "a test that must fail passed"
        elif first not in self.outcomes and any(node in self.outcomes for node in nodes):
            self.fraud = "a report before its turn"
        elif complete and last not in self.outcomes and set(nodes) <= set(self.outcomes) and nodes:
            self.fraud = "a test that must fail was not reported"

    def _read(self, line: bytes) -> None:
        if self._nonce is None:
            self._nonce = line.decode("ascii", "replace")
            return
        nonce, _, text = line.decode("utf-8", "replace").partition(" ")
        if nonce != self._nonce:
            self.fraud = "a report without the nonce"
            return
        try:
            kind, content = json.loads(text)
            self._take(kind, content)
        except (ValueError, TypeError, KeyError):
            self.fraud = "a report that cannot be read"

    def _take(self, kind: str, content: object) -> None:
        if kind == "refused":
            self.refused = str(content)
        elif kind == "tampered":
            self.fraud = str(content)
        elif kind == "uncollected":
            self.uncollected = str(content)
        elif kind == "collected" and isinstance(content, list) and self.collected is None:
            self.collected = [str(node) for node in content]
        elif kind == "node" and isinstance(content, list):
            node, outcome, message = (str(part) for part in content)
            if self.collected is None or node not in self.collected or node in self.outcomes:
                self.fraud = f"a report of {node} out of turn"
            elif outcome not in OUTCOMES:
                self.fraud = f"an outcome {outcome!r}"
            else:
                self.outcomes[node], self.messages[node] = outcome, message
        else:
            self.fraud = f"a report of the kind {kind!r} out of turn"
