"""Every way a kernel can misbehave ends as one line that names the user's line, in bounded time and memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from tests.nki.running import HEADER, children, kernel_run, predict
from trnprof.errors import InputDataError, TrnprofError, UsageError
from trnprof.nki.guard import Limits, predict_guarded

QUICK = Limits(wall_s=1, cpu_s=1)

AT_IMPORT = {
    "endless loop that catches everything": (
        "x = 0\nwhile True:\n    try:\n        x += 1\n    except BaseException:\n        pass\n",
        r"line \d: still loading after 1 s",
    ),
    "endless loop that turned the alarm off": (
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass\n",
        r"line 4.*still (loading|running) after 1 s",
    ),
    "one call that takes for ever": ("x = pow(7, 10 ** 9)\n", r"line 1.*still (loading|running) after 1 s"),
    "recursion": ("def f(n):\n    return f(n + 1)\nf(0)\n", r"line 2 \(in f\): calls itself without end"),
    "100 GB": ("import numpy as np\na = np.ones(100 << 30, np.uint8)\n", "line 2: needs more than 4 GiB of memory"),
    "100 GB of bytes": ("a = bytes(100 << 30)\n", "line 1: needs more than 4 GiB of memory"),
    "socket": ("import socket\n\ns = socket.socket()\n", "line 3: opens a socket, which the guard refuses"),
    "download": (
        "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/')\n",
        "line 2: (opens|looks up) a (socket|network)",
    ),
    "process": ("import subprocess\nsubprocess.run(['true'])\n", "line 2: starts a process"),
    "system": ("import os\nos.system('true')\n", "line 2: starts a process"),
    "fork": ("import os\nos.fork()\n", "line 2: forks"),
    "multiprocessing": ("import multiprocessing as m\nm.get_context('spawn').Process(target=print).start()\n", "line 2: starts a process"),
    "native code": ("import ctypes\nctypes.CDLL(None)\n", "line 2: loads a native library"),
    "1 GB printed": ("for _ in range(1 << 20):\n    print('x' * 1024)\n", "line 2: prints more than 1024 KiB"),
    "1 GB written to the descriptor": ("import os\nwhile True:\n    os.write(1, b'x' * 65536)\n", "line 3: prints more than 1024 KiB"),
    "does not parse": ("def k(:\n", "line 1: does not parse as Python"),
    "helper does not parse": ("import helper\n", "line 2: does not parse as Python"),
    "missing import": ("import not_there\n", "line 1: cannot import: no module 'not_there'"),
    "missing name": ("from nki.language import par_dim\nfrom helper_ok import nothing\n", "line 2: cannot import: cannot import name 'nothing'"),
    "parses arguments": ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n", "line 2: exits the process while loading"),
    "exits": ("import os\nos._exit(3)\n", r"ended by itself \(exit code 3\)"),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)\n", "line 2: signals a process"),
    "file removed": ("import os, pathlib\npathlib.Path(__file__).unlink()\n", "line 2: changes the file"),
    "framework value": ("import torch\nn = int(torch.tensor(3))\n", "line 2: torch.tensor.* is a stand-in here"),
    "exception": ("raise ValueError('two\\nlines')\n", "line 1: ValueError: two lines"),
    "raises the limits": ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n", "line 2: changes its own limits"),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_IMPORT)
def test_module_level_code(tmp_path: Path, name: str) -> None:
    code, expected = AT_IMPORT[name]
    (tmp_path / "helper.py").write_text("x = 1\ny = (\n")
    (tmp_path / "helper_ok.py").write_text("x = 1\n")
    path = tmp_path / "kernel.py"
    run = kernel_run(tmp_path, HEADER + "@nki.jit\ndef k():\n    pass\n")
    path.write_text(code)
    started = time.monotonic()
    with pytest.raises(InputDataError, match=expected) as caught:
        predict_guarded(run, QUICK)
    assert time.monotonic() - started < 12
    assert "\n" not in caught.value.message
    assert path.read_text() == code
    # The parent kept its size: nothing of what the child wrote or allocated is here.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20


IN_KERNEL = {
    "endless loop": ("while True:\n        pass", r"line [89] \(in k\): still running after 1 s"),
    "recursion": ("k.func(a)", "calls itself without end"),
    "memory": ("x = bytes(100 << 30)", r"line 8 \(in k\): needs more than 4 GiB"),
    "socket": ("import socket; socket.socket()", r"line 8 \(in k\): opens a socket"),
    "assertion": ("assert a.shape[0] % 100 == 0, 'rows must be a multiple of 100'", r"line 8 \(in k\): .*rows must be a multiple of 100"),
    "device value": (
        "t = nl.load(a)\n    if t[0, 0] > 3:\n        pass",
        r"line 9 \(in k\): .*known on the device only",
    ),
    "device value in range": ("r = nisa.register_alloc(1)\n    for i in range(r):\n        pass", r"line 9 \(in k\)"),
    "type error": ("a + 'x' * [1]", r"line 8 \(in k\): TypeError"),
    "exit": ("raise SystemExit(4)", r"line 8 \(in k\): exits the process while running"),
    "interrupt": ("raise KeyboardInterrupt", r"line 8 \(in k\): interrupted"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_KERNEL)
def test_kernel_code(tmp_path: Path, name: str) -> None:
    body, expected = IN_KERNEL[name]
    with pytest.raises(InputDataError, match=expected) as caught:
        predict(tmp_path, HEADER + f"\n@nki.jit\ndef k(a):\n    {body}\n", "a=128x512:float32", limits=QUICK)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 65
    assert caught.value.path == str(tmp_path / "kernel.py")


def test_a_helpers_failure_names_the_caller_too(tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def check(ok, text):\n    assert ok, text\n")
    source = HEADER + "from checks import check\n@nki.jit\ndef k(a):\n    check(a.shape[0] == 7, 'seven rows')\n"
    with pytest.raises(InputDataError, match="seven rows") as caught:
        predict(tmp_path, source, "a=128x512:float32")
    assert "kernel.py line 8" in caught.value.message


def test_arguments_that_do_not_fit_are_a_usage_error(tmp_path: Path) -> None:
    source = HEADER + "@nki.jit\ndef k(q, k, tile=3):\n    pass\n"
    with pytest.raises(UsageError, match="missing a required argument: 'k'"):
        predict(tmp_path, source, "q=4x4:float32")
    with pytest.raises(UsageError, match="unexpected keyword argument 'z'"):
        predict(tmp_path, source, "q=4x4:float32", "k=4x4:float32", "z=4:int8")
    with pytest.raises(UsageError, match="no kernel 'other'"):
        predict(tmp_path, source, "q=4x4:float32", kernel="other")


def test_what_the_kernel_prints_is_brought_back(tmp_path: Path) -> None:
    source = HEADER + "@nki.jit\ndef k(a):\n    print('shape', a.shape)\n"
    result = predict(tmp_path, source, "a=4x4:float32")
    assert result.printed == "shape (4, 4)\n"


def test_results_do_not_depend_on_the_machines_paths_or_hash_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        HEADER
        + """
@nki.jit
def k(a):
    t = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=a)
"""
    )
    seen = set()
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("PYTHONHASHSEED", str(number))
        result = predict(folder, source, "a=128x512:float32")
        assert str(tmp_path) not in repr(result)
        seen.add(repr(result))
    assert len(seen) == 1


def test_the_childs_environment_holds_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    source = (
        HEADER
        + "import os\nprint(sorted(os.environ), os.environ.get('AWS_SECRET_ACCESS_KEY'))\n@nki.jit\ndef k(a):\n    pass\n"
    )
    printed = predict(tmp_path, source, "a=4x4:float32").printed
    assert "s3cret" not in printed and "AWS" not in printed


def test_a_child_that_sends_nonsense_is_an_error_not_a_crash(tmp_path: Path) -> None:
    # The kernel finds the result's descriptor and writes to it: the parent must not believe or crash.
    for text in ("{}", "[1]", '{"prediction": {"predicted": 3}}', '{"error": 3}', "x" * 100):
        source = (
            HEADER
            + f"""
import os
for fd in range(3, 40):
    try:
        os.write(fd, {text.encode()!r})
    except OSError:
        pass
os._exit(0)
@nki.jit
def k(a):
    pass
"""
        )
        with pytest.raises(TrnprofError):
            predict(tmp_path, source, "a=4x4:float32")


def test_values_and_inputs_files(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "idx.npy", np.arange(4, dtype=np.int32))
    (tmp_path / "config.py").write_text("class Config:\n    tile = 4\n")
    (tmp_path / "inputs.py").write_text(
        "from config import Config\nfrom trnprof.nki.inputs import tensor\n"
        "def inputs():\n    return {'a': tensor('128x512:float32'), 'config': Config()}\n"
    )
    source = (
        HEADER
        + """
from config import Config
@nki.jit
def k(a, config):
    assert isinstance(config, Config)
    t = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    for i in range(config.tile):
        nisa.dma_copy(dst=t, src=a)
"""
    )
    result = predict(tmp_path, source, inputs_file=tmp_path / "inputs.py", values=[f"idx={tmp_path}/idx.npy"])
    assert result.prediction.predicted.total.dma_count == 4  # type: ignore[union-attr]
    (tmp_path / "inputs.py").write_text("def inputs():\n    return 3\n")
    with pytest.raises(UsageError, match="returned int"):
        predict(tmp_path, source, inputs_file=tmp_path / "inputs.py")
    (tmp_path / "inputs.py").write_text("x = 1\ndef inputs():\n    return 1 / 0\n")
    with pytest.raises(InputDataError, match=r"line 3 \(in inputs\): ZeroDivisionError"):
        predict(tmp_path, source, inputs_file=tmp_path / "inputs.py")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01\x00broken")
    with pytest.raises(InputDataError, match=r"--values idx: .*numpy.save"):
        predict(tmp_path, source, inputs_file=tmp_path / "inputs.py", values=[f"idx={tmp_path}/broken.npy"])


def test_nothing_is_left_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    source = HEADER + "open('log.txt', 'w').write('x')\n@nki.jit\ndef k(a):\n    pass\n"
    before = children()
    predict(tmp_path, source, "a=4x4:float32")
    assert list(scratch.iterdir()) == []
    with pytest.raises(InputDataError):
        predict(tmp_path, source.replace("pass", "while True: pass"), "a=4x4:float32", limits=Limits(wall_s=1, cpu_s=1))
    assert list(scratch.iterdir()) == []
    assert children() <= before
