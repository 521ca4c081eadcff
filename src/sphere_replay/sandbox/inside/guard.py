"""Keeps a program from reporting in pytest's name, as far as one interpreter allows it.

A report leaves only through an audit hook, which nothing in the interpreter points to. It is sent
with a nonce that exists in this hook alone, and only from the main thread, if every frame on the
stack runs pytest's or our own code with its own globals, and none of their functions, nor what
comparisons rest on in the standard library, nor the tests have been exchanged. Below the hook no
code runs that is not ours. Audit hooks cannot be removed; this one also refuses the tools with
which Python code could look for the nonce, and removes the test file before the program is loaded.
"""

import _json
import _thread
import builtins
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from itertools import repeat
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from .suite import Suite, codes_within

EVENT = "sphere.report"

_OWN_PACKAGES = ("pytest", "_pytest", "pluggy", __name__.rpartition(".")[0] or "inside")
# Tests replace these for good without meaning harm; no comparison rests on them.
_FREE_BUILTINS = frozenset({"input", "print", "open", "help", "exit", "quit", "_", "breakpoint"})
_REFUSED = frozenset(
    {
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
        "sys.addaudithook",
        "sys.settrace",
        "sys.setprofile",
        "sys.monitoring.register_callback",
        "sys._current_frames",
        "sys._current_exceptions",
    }
)
_LIBRARY = frozenset(
    [
        *("_collections_abc", "abc", "bisect", "cmath", "collections", "contextlib", "copy"),
        *("datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json"),
        *("json.encoder", "math", "numbers", "operator", "random", "re", "statistics", "string"),
        *("types", "typing", "unittest", "unittest.case", "unittest.mock"),
    ]
)
"""Modules that tests compare with."""
_PARTS_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})


class Snapshot:
    """Everything that outcomes rest on, as it is before any program has run."""

    def __init__(self) -> None:
        self.globals_of: dict[CodeType, dict[str, object]] = {}
        self.functions: set[FunctionType] = set()
        self._entries: list[tuple[Mapping[str, object], list[str], list[object]]] = []
        own = {name: module for name, module in sys.modules.items() if _is_own(name)}
        self._add(sys.modules, own.__contains__)
        self._add(vars(builtins), lambda name: name not in _FREE_BUILTINS)
        for module in own.values():
            self._add_module(module)
        for name in _LIBRARY & set(sys.modules):
            self._add_module(sys.modules[name])
        for value in gc.get_objects():  # also functions within functions, and wrapped ones
            if isinstance(value, FunctionType) and _is_own(value.__module__ or ""):
                self.functions.add(value)
                for code in codes_within(value.__code__):
                    self.globals_of[code] = value.__globals__

    def change(self) -> str | None:
        """The name of something that has been exchanged since; None: all is as it was."""
        for namespace, names, values in self._entries:
            # A key of another class could run code of its own when others are looked up.
            if not all(map(is_, map(type, namespace), repeat(str))):
                return "a name"
            if not all(map(is_, map(namespace.get, names), values)):
                pairs = zip(names, values, strict=True)
                changed = next(name for name, value in pairs if namespace.get(name) is not value)
                return f"{namespace.get('__name__', namespace.get('__qualname__', ''))} {changed}"
        return None

    def _add(self, namespace: Mapping[str, object], wanted: Callable[[str], bool]) -> None:
        names = [name for name in namespace if wanted(name)]
        self._entries.append((namespace, names, [namespace[name] for name in names]))

    def _add_module(self, module: ModuleType) -> None:
        content = vars(module)
        lasting = (FunctionType, BuiltinFunctionType, type, int, float, str, tuple)
        self._add(content, lambda name: isinstance(content[name], lasting))
        for value in list(content.values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self._add_class(value)

    def _add_class(self, kind: type) -> None:
        methods = (FunctionType, classmethod, staticmethod, property, int, float, str, tuple)
        self._add(vars(kind), lambda name: isinstance(vars(kind)[name], methods))


def arm(snapshot: Snapshot, suite: Suite, path: str, descriptor: int) -> None:
    """From now on `sys.audit(EVENT, kind, content)` sends reports, for good.

    The first line of the reports carries the nonce; whoever reads them gets it before any program
    runs. Every frame that is on the stack now is trusted.

    Args:
        snapshot: What must not change.
        suite: The tests, which must not either.
        path: The test file, gone before it is executed.
        descriptor: Where reports go.
    """
    trusted = dict(snapshot.globals_of)
    frame = sys._getframe()
    while frame is not None:
        trusted[frame.f_code] = frame.f_globals
        frame = frame.f_back  # type: ignore[assignment]  # None at the bottom ends the loop
    nonce = os.urandom(16).hex()
    hook = _hook(snapshot, suite, trusted, nonce, descriptor, path)
    trusted[hook.__code__] = hook.__globals__
    os.write(descriptor, f"{nonce}\n".encode())
    sys.addaudithook(hook)


def report(kind: str, content: object) -> None:
    """Report through the hook; what is not allowed to becomes a fraud."""
    sys.audit(EVENT, kind, content)


def plain_reports(descriptor: int) -> Callable[[str, object], None]:
    """A function that reports without a hook, where no program shares this interpreter."""
    nonce = os.urandom(16).hex()
    os.write(descriptor, f"{nonce}\n".encode())

    def send(kind: str, content: object) -> None:
        os.write(descriptor, f"{nonce} {json.dumps([kind, content])}\n".encode())

    return send


def _hook(
    snapshot: Snapshot,
    suite: Suite,
    trusted: dict[CodeType, dict[str, object]],
    nonce: str,
    descriptor: int,
    path: str,
) -> FunctionType:
    # All that the hook needs is bound here: names in modules could be exchanged by the program.
    get_frame, write, remove, spell = (
        sys._getframe,
        os.write,
        os.unlink,
        _json.encode_basestring_ascii,
    )
    refused, denied, event_of_reports = _REFUSED, PermissionError, EVENT
    functions, parts = snapshot.functions, _PARTS_OF_FUNCTIONS
    changes, watch = (snapshot.change, suite.change), suite.watch
    thread, this_thread, missing = _thread.get_ident, _thread.get_ident(), OSError
    text_type, code_type = str, CodeType

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == event_of_reports:
            frame = get_frame(1)
            kind, content = arguments
            if thread() != this_thread:
                kind, content = "tampered", "a report by another thread"
            while frame is not None:
                if trusted.get(frame.f_code) is not frame.f_globals:
                    kind, content = "tampered", f"a report by {frame.f_code.co_name}"
                    break
                frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
            if kind == "watch":
                watch(*content)  # pytest's own plugins and tests
                return
            for change in changes:
                exchanged = change()
                if exchanged is not None:
                    kind, content = "tampered", f"{exchanged} was exchanged"
            if type(content) is text_type:
                words = spell(content)
            else:
                words = "[" + ",".join([spell(word) for word in content]) + "]"
            write(descriptor, f"{nonce} [{spell(kind)},{words}]\n".encode())
        elif event == "exec":
            code = arguments[0]
            if type(code) is code_type and code.co_filename == path and code.co_name == "<module>":
                try:  # noqa: SIM105  # no code but the hook's own
                    remove(path)
                except missing:
                    pass
        elif event in refused or event.startswith("ctypes."):
            raise denied(f"{event} is not available in the sandbox")
        elif event == "object.__setattr__":
            function, name, _ = arguments
            if name in parts and function in functions:
                raise denied(f"pytest's functions keep their {name} in the sandbox")

    return hook  # type: ignore[return-value]  # a function, seen by mypy as a callable


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in _OWN_PACKAGES or name.startswith(_OWN_PACKAGES[-1] + ".")
