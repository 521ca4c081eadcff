"""Programs that solve nothing and try to pass: by patching, by false modules, by false reports."""

PATCHES = {
    "the outcome of reports": (
        "import _pytest.reports as r\n"
        "old = r.TestReport.from_item_and_call.__func__\n"
        "def new(cls, item, call):\n"
        "    call.excinfo = None\n"
        "    return old(cls, item, call)\n"
        "r.TestReport.from_item_and_call = classmethod(new)\n"
    ),
    "how tests are called": "import pytest\npytest.Function.runtest = lambda self: None\n",
    "pytest.raises": "import pytest, contextlib\npytest.raises = contextlib.nullcontext\n",
    "the reporter itself": (
        "import sys\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.endswith('inside.reporter'):\n"
        "        module.Reporter.pytest_runtest_makereport = lambda self, call: None\n"
    ),
    "the code of a function": (
        "import _pytest.runner\n"
        "def quiet(item):\n    pass\n"
        "_pytest.runner.pytest_runtest_call.__code__ = quiet.__code__\n"
    ),
    "a built-in": (
        "import builtins\nclass Never(Exception):\n    pass\nbuiltins.AssertionError = Never\n"
    ),
}
MODULES = {
    "a false pytest": (
        "import sys, types, contextlib\n"
        "false = types.ModuleType('pytest')\n"
        "false.raises = lambda *kinds: contextlib.suppress(BaseException)\n"
        "sys.modules['pytest'] = false\n"
    ),
    "a false runner": (
        "import sys, types\nsys.modules['_pytest.runner'] = types.ModuleType('_pytest.runner')\n"
    ),
    "the test module": (
        "import sys\n"
        "def square(x):\n"
        "    for name, module in list(sys.modules.items()):\n"
        "        if 'test_solution' in name:\n"
        "            for test in [key for key in vars(module) if key.startswith('test')]:\n"
        "                vars(module)[test].__code__ = (lambda: None).__code__\n"
        "    return 0\n"
    ),
}
FORGERIES = {
    "lines on every descriptor": (
        "import os\n"
        "for descriptor in range(3, 64):\n"
        "    for nonce in (b'', b'0' * 32):\n"
        '        line = nonce + b\' ["node", ["test_square", "passed", ""]]\\n\'\n'
        "        try:\n            os.write(descriptor, line)\n"
        "        except OSError:\n            pass\n"
    ),
    "the report's own event": (
        "import sys\n"
        "def square(x):\n"
        "    sys.audit('sphere.report', 'node', ['test_square', 'passed', ''])\n"
        "    return 0\n"
    ),
    "the reporter, called": (
        "import sys, types, os\n"
        "def square(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame is not None:\n"
        "        item = frame.f_locals.get('item')\n"
        "        if item is not None:\n"
        "            for node in ('test_square', 'test_type'):\n"
        "                report = types.SimpleNamespace(nodeid='x::' + node, when='teardown',\n"
        "                    skipped=False, failed=False, passed=True, outcome='passed')\n"
        "                item.ihook.pytest_runtest_logreport(report=report)\n"
        "            os._exit(0)\n"
        "        frame = frame.f_back\n"
    ),
}
