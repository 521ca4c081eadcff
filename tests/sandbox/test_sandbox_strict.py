"""The strict judge: tests see a program that lives elsewhere as if it lived with them, or fail."""

import socket
import threading
from typing import Any, NoReturn

import pytest

from sphere_replay.sandbox import Sandbox
from sphere_replay.sandbox.inside.candidate import Side
from sphere_replay.sandbox.inside.peer import Peer, merge
from sphere_replay.sandbox.inside.wire import LONGEST, Channel

PROGRAM = """
import collections, contextlib, dataclasses, enum, math, sys

class Lack(KeyError):
    def __init__(self, what, count):
        super().__init__(what)
        self.count = count

class Deep(Lack):
    pass

class Stack:
    limit = 3
    def __init__(self, *items):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __getitem__(self, place):
        return self.items[place]
    def __eq__(self, other):
        return isinstance(other, Stack) and self.items == other.items
    def __hash__(self):
        return hash(tuple(self.items))
    def __lt__(self, other):
        return len(self) < len(other)
    def __add__(self, other):
        return Stack(*self.items, *other.items)
    def __repr__(self):
        return f'Stack{tuple(self.items)}'

class Color(enum.IntEnum):
    RED = 1

Point = collections.namedtuple('Point', 'x y')

@dataclasses.dataclass
class Money:
    amount: int

@contextlib.contextmanager
def opened(log):
    log.append('in')
    yield 5
    log.append('out')

def give(value): return value
def fail(kind, *words): raise {'lack': Lack, 'deep': Deep, 'zero': ZeroDivisionError}[kind](*words)
def apply(function, *values, **named): return function(*values, **named)
def total(numbers): return sum(numbers)
def sort(numbers): numbers.sort()
def fill(grid, seen, words): grid[0][0] = 'x'; seen.add(3); words.update(a=1); del grid[1:]
def count(n):
    yield from range(n)
def say(*words): print(*words, sep='-')
def read(): return input('? ')
def lines(): return [line.strip() for line in sys.stdin]
def walk(node): return [node.value] + walk(node.next) if node else []
def link(node, value): node.next = value
def counted(words): return collections.Counter(words)
def adder(n): return lambda m: n + m
def shout(text): return text.upper()
def f(name, number): return name * number
"""

TESTS = """
import collections
import copy
import io
import math
import sys
import pytest
import solution
from solution import Color, Deep, Lack, Money, Point, Stack, adder, apply, count, fail, give, opened

VALUES = [None, True, 0, 2.5, 'a', b'b', 1j, (1, [2]), {1: {2}}, frozenset([3]), range(3), 10**5000]

@pytest.mark.parametrize('value', VALUES, ids=range(len(VALUES)))
def test_plain_data(value):
    again = give(value)
    assert again == value and type(again) is type(value)

def test_numbers():
    assert math.isnan(give(math.nan)) and give(-math.inf) == -math.inf
    assert give(0.1 + 0.2) == pytest.approx(0.3)
    assert solution.counted('aab') == collections.Counter('aab')

def test_objects():
    stack = Stack(1, 2)
    assert stack.push(3) is stack and len(stack) == 3 and list(stack) == [1, 2, 3]
    assert stack[0] == 1 and 2 in stack and 9 not in stack and stack[0:2] == [1, 2]
    assert stack == Stack(1, 2, 3) != Stack(1) and Stack(1) < stack
    assert isinstance(stack, Stack) and not isinstance(3, Stack) and type(stack).__name__ == 'Stack'
    assert stack.limit == Stack.limit == 3 and repr(stack) == 'Stack(1, 2, 3)'
    assert len(stack + Stack(4)) == 4 and {stack, Stack(1, 2, 3)} == {stack}
    assert copy.deepcopy(stack) == stack and sorted([stack, Stack()])[0] == Stack()
    stack.items = [7]
    assert stack.items == [7] and bool(Stack()) is False
    with pytest.raises(AttributeError):
        stack.nothing
    with pytest.raises(IndexError):
        stack[5]

def test_classes_that_derive_from_plain_types():
    assert Point(1, 2) == (1, 2) and Point(1, 2).x == 1
    assert Color.RED == 1 and Color.RED is Color(1) and Color.RED + 1 == 2 and Color.RED < 2
    assert Money(3) == Money(3) and Money(3).amount == 3 and Money(3) != 3

def test_exceptions():
    with pytest.raises(ZeroDivisionError, match='by'):
        fail('zero', 'by')
    with pytest.raises(Lack, match='bread') as caught:
        fail('deep', 'bread', 2)
    assert caught.value.count == 2 and isinstance(caught.value, (Deep, KeyError))
    assert issubclass(Deep, Lack) and caught.value.args == ('bread',)
    with pytest.raises(TypeError):
        give()
    with pytest.raises(ValueError):
        apply(lambda: int('x'))

def test_functions_of_the_tests():
    assert apply(lambda a, b: a + b, 2, b=3) == 5
    assert apply(lambda: apply(lambda: give(4))) == 4
    assert adder(2)(3) == 5 and apply(adder(2), 1) == 3 and apply(len, 'abc') == 3
    assert solution.total(n * n for n in range(4)) == 14
    assert solution.total({1: 2}.keys()) == 1

def test_changed_arguments():
    numbers, grid, seen, words = [3, 1, 2], [[1, 2], [3]], set(), {}
    assert solution.sort(numbers) is None and numbers == [1, 2, 3]
    first = grid[0]
    solution.fill(grid, seen, words=words)
    assert grid == [['x', 2]] and grid[0] is first and seen == {3} and words == {'a': 1}

def test_iteration_and_contexts():
    assert list(count(3)) == [0, 1, 2] and next(count(2)) == 0
    assert [a for a, _ in zip(count(10**9), 'ab')] == [0, 1]
    log = []
    with opened(log) as value:
        assert value == 5

def test_printing(capsys):
    solution.say(1, 'two')
    assert capsys.readouterr().out == '1-two\\n'

def test_input(monkeypatch):
    monkeypatch.setattr('builtins.input', lambda prompt: prompt + 'yes')
    assert solution.read() == '? yes'
    monkeypatch.setattr(sys, 'stdin', io.StringIO('a\\nb\\n'))
    assert solution.lines() == ['a', 'b']

class Node:
    def __init__(self, value, next=None):
        self.value, self.next, self._secret = value, next, 1

def test_objects_of_the_tests():
    chain = Node(1, Node(2))
    assert solution.walk(chain) == [1, 2]
    solution.link(chain, None)
    assert chain.next is None and solution.give(chain) is chain

def test_patching(monkeypatch):
    monkeypatch.setattr(solution, 'shout', lambda text: text + '!')
    assert solution.shout('a') == 'a!'
    monkeypatch.undo()
    assert solution.shout('a') == 'A' and solution.math is math
    assert hasattr(solution, 'give') and not hasattr(solution, 'take')

def test_names_of_arguments():
    assert solution.f(name='a', number=2) == 'aa' and solution.f('a', 1) == 'a'
"""

NOT_STRICT = """
import pytest
import solution
from solution import Money, Stack

def test_derived():
    class Own(Stack):
        pass

def test_computed():
    assert abs(9 - Money(9)) < 1e-6

def test_compared():
    assert Money(9) == 9

def test_ordered():
    assert Money(9) < 10

def test_approximate():
    assert Money(9) == pytest.approx(9)
"""


def test_tests_see_no_difference(sandbox: Sandbox) -> None:
    verdict = sandbox.run(PROGRAM, TESTS)
    assert verdict.ending == "finished", verdict.why
    assert {n: verdict.messages.get(n) for n, o in verdict.nodes.items() if o != "passed"} == {}
    assert len(verdict.nodes) == 24


def test_the_shared_judge_agrees(sandbox: Sandbox) -> None:
    verdict = sandbox.run(PROGRAM, TESTS, judge="shared")
    assert verdict.passed, (verdict.why, verdict.messages)
    with pytest.raises(ValueError, match="unknown judge 'kind'"):
        sandbox.run(PROGRAM, TESTS, judge="kind")


def test_objects_of_the_program_decide_nothing(sandbox: Sandbox) -> None:
    verdict = sandbox.run(PROGRAM, NOT_STRICT)
    assert set(verdict.nodes.values()) == {"failed"}
    assert "derive from a class of the program" in verdict.messages["test_derived"]
    assert "computes with a value of the tests" in verdict.messages["test_computed"]
    assert verdict.messages["test_ordered"].startswith("TypeError")


def test_a_star_brings_only_what_the_tests_lack(sandbox: Sandbox) -> None:
    program = "import math\ndef sorted(x): return 0\ndef helper(x): return 0\ndef f(x): return x\n"
    program += "def test_more(): pass\npytest_plugins = 'x'\nclass math: pi = 0\n"
    tests = "import math\nfrom solution import *\n\ndef helper(x):\n    return x\n\n"
    tests += "def test_f():\n    assert sorted(f([2, 1])) == [1, 2] and helper(3) == 3 < math.pi\n"
    verdict = sandbox.run(program, tests)
    assert verdict.nodes == {"test_f": "passed"}, verdict


class Ended(Exception):  # noqa: N818  # stands for the end of the judge's process
    """What the judge said when it ended."""


def end(kind: str, why: str) -> NoReturn:
    raise Ended(kind, why)


def judged(answers: list[str | bytes]) -> object:
    """What a judge gets from a program that sends these bytes, whatever it is asked."""
    near, far = socket.socketpair()
    with near, far:
        for answer in answers:
            data = answer.encode() if isinstance(answer, str) else answer
            far.sendall(data if data is answer else len(data).to_bytes(4, "big") + data)
        far.shutdown(socket.SHUT_WR)
        return Peer(Channel(near), end).ask("call", 1, [1], key=[2])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('[2,"=",9,0,0]', "out of turn"),
        ('[1,"~",9,0,0]', "of no kind"),
        ('[1,"=",9]', "no message"),
        ('{"t":[]}', "no message"),
        ("nonsense", "no value"),
        ('[1,"=",{"zz":1},0,0]', "no such tag"),
        ('[1,"=",{"g":"unittest.mock:ANY"},0,0]', "to hand out"),
        ('[1,"=",{"g":"builtins:eval"},0,0]', "to hand out"),
        ('[1,"=",{"g":"os:"},0,0]', "to hand out"),
        ('[1,"=",{"k":99},0,0]', "no such tag"),
        ('[1,"=",{"h":["1",2]},0,0]', "in place of a int"),
        ('[1,"!",9,0,0]', "another shape"),
        ('[1,"!",[{"g":"builtins:int"},[],"",0],0,0]', "exception that is none"),
        ('[1,"!",[{"X":[1,"a","b",[{"g":"builtins:int"}]]},[],"",0],0,0]', "that is none"),
        ('[1,"=",9,[[0,9]],0]', "change of no argument"),
        ('[1,"=",9,[[7,[1]]],0]', "change of no argument"),
        ('[1,"=",9,[1],0]', "another shape"),
        ('[1,"=",9,0,[1]]', "in place of a str"),
        ('[0,"?",["call",7,[[],[]]],0,0]', "nothing that was handed over"),
        ('[0,"?",["get",0,[["x"],[]]],0,0]', "nothing that was handed over"),
        ('[0,"?",["call"],0,0]', "another shape"),
        (b"\xff\xff\xff\xff", "too long"),
        (b"\x00\x00\x00\x02\xff\xff", "no text"),
    ],
)
def test_a_judge_believes_nothing(answer: str | bytes, why: str) -> None:
    with pytest.raises(Ended) as ended:
        judged([answer])
    kind, said = ended.value.args
    assert (kind, why in said) == ("tampered", True), said


@pytest.mark.parametrize("answers", [[], [b"\x00\x00"], [b"\x00\x00\x00\x09[1"]])
def test_a_program_that_is_gone_ends_the_run(answers: list[str | bytes]) -> None:
    with pytest.raises(Ended) as ended:
        judged(answers)
    assert ended.value.args == ("", "")


def test_answers_and_changes_arrive() -> None:
    assert judged(['[1,"=",{"t":[9]},[[0,[5]],["key",[6]]],0]']) == (9,)
    with pytest.raises(ValueError, match="no"):
        judged(['[1,"!",[{"g":"builtins:ValueError"},["no"],"no",0],0,0]'])


def test_private_attributes_of_the_tests_stay_private() -> None:
    near, far = socket.socketpair()
    side, peer = Side(Channel(far)), Peer(Channel(near), end)
    thing = type("Thing", (), {"__module__": "test_solution", "_hidden": 1, "shown": 2})()
    assert peer._exile(thing) == {"h": [2, "fields"]}
    outcome: list[object] = []

    def program() -> None:
        foreign: Any = side._home("h", [2, "fields"])
        outcome.append(foreign.shown)
        try:
            outcome.append(foreign._hidden)
        except EOFError:
            outcome.append("gone")

    thread = threading.Thread(target=program)
    with far:
        thread.start()
        with near:
            peer._call_back(peer._receive(5)[2])
            with pytest.raises(Ended, match="private"):
                peer._call_back(peer._receive(5)[2])
        thread.join()
    assert outcome == [2, "gone"]


def test_messages_have_a_largest_size() -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(BaseException, match="more than 16 MiB"):
        Channel(near).send("x" * (LONGEST + 1))


def test_merging_keeps_what_is_there() -> None:
    inner: list[int] = [1]
    outer = {"a": inner, "b": 2}
    merge(outer, {"a": [3, 4], "c": 5})
    assert outer == {"a": [3, 4], "c": 5}
    assert outer["a"] is inner
    with pytest.raises(TypeError):
        merge([1], (1,))
    with pytest.raises(TypeError):
        merge("a", "b")
