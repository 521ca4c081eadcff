"""Texts between two processes over a pair of stream sockets, each after its length."""

import socket

from .codec import UnplainError, WireError

LONGEST = 16 << 20
"""Bytes of a message."""
_CHUNK = 1 << 16


class Channel:
    """One end of the pair; EOFError once the other is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""

    def send(self, text: str) -> None:
        """Send ASCII; UnplainError, and nothing is sent, if it is too long."""
        data = text.encode("ascii")
        if len(data) > LONGEST:
            raise UnplainError(f"a value of more than {LONGEST >> 20} MiB")
        try:
            self._end.sendall(len(data).to_bytes(4, "big") + data)
        except OSError:
            raise EOFError from None

    def receive(self) -> str:
        """The next text; WireError if it is none."""
        length = int.from_bytes(self._take(4), "big")
        if length > LONGEST:
            raise WireError("a message that is too long")
        try:
            return self._take(length).decode("ascii")
        except UnicodeDecodeError:
            raise WireError("a message that is no text") from None

    def _take(self, size: int) -> bytes:
        if len(self._rest) < size:
            pieces, have = [self._rest], len(self._rest)
            while have < size:
                try:
                    piece = self._end.recv(_CHUNK if size < _CHUNK else size)
                except OSError:
                    piece = b""
                if not piece:
                    raise EOFError
                pieces.append(piece)
                have += len(piece)
            self._rest = b"".join(pieces)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken
