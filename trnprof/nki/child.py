"""The guarded child process: sets its own limits, loads the kernel, runs it, and hands back one JSON document.

Started by guard.py as a fresh interpreter; never imported by the command line. What it refuses (sockets, processes,
writes outside its scratch folder) it refuses through an audit hook, which Python code cannot take out again; what it
limits (time, memory, file size, open files) the operating system enforces. Code that means harm can still get round a
guard inside its own process: this is a guard against accidents and careless kernels, not a sandbox.
"""

# The functions under Path are what is wrapped here.
# ruff: noqa: PTH103, PTH110, PTH118, PTH120

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from trnprof.nki.failures import PrintedTooMuch, Refused, describe_failure, describe_overflow, describe_timeout

_REFUSED_EVENTS = {
    "socket.__new__": "opens a socket",
    "socket.connect": "opens a network connection",
    "socket.bind": "opens a network port",
    "socket.getaddrinfo": "looks up a network address",
    "socket.gethostbyname": "looks up a network address",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.exec": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.spawn": "starts a process",
    "os.startfile": "starts a process",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "pty.spawn": "starts a process",
    "os.kill": "signals a process",
    "os.killpg": "signals a process",
    "ctypes.dlopen": "loads a native library",
    "ctypes.dlsym": "calls native code",
    "ctypes.call_function": "calls native code",
    "webbrowser.open": "opens a browser",
    "resource.setrlimit": "changes its own limits",
    "resource.prlimit": "changes its own limits",
    "sys.addaudithook": "installs an audit hook",
}

_WRITING_EVENTS = frozenset(
    {
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
        "os.utime", "os.chflags", "os.lchmod", "os.setxattr", "os.removexattr", "shutil.rmtree", "shutil.move",
        "shutil.copyfile", "shutil.chown",
    }
)  # fmt: skip


def main() -> None:
    """Read one request from stdin, write one JSON document to the real stdout, and end the process."""
    request = json.loads(sys.stdin.buffer.read())
    # The result goes to what was stdout; whatever the kernel prints goes to stderr, where the parent cuts it off.
    result_fd = os.dup(1)
    os.dup2(2, 1)
    session = _Session(request, result_fd)
    try:
        document = session.run()
    except BaseException as error:  # every failure of user code becomes one line
        document = {"error": session.describe(error)}
    session.finish(document)


class _Session:
    """One run: its request, its limits, and where it stands when a limit strikes."""

    def __init__(self, request: dict[str, Any], result_fd: int) -> None:
        self.request = request
        self.limits = request["limits"]
        self.result_fd = result_fd
        self.stage = "loading"
        self.loader: Any = None

    def run(self) -> dict[str, Any]:
        """Load the kernel, build its arguments, and do the task; the result document."""
        import numpy  # noqa: F401 - before the limits: its libraries map memory and files of their own

        self._set_limits()
        from trnprof.nki.inputs import arguments_of, resolve_argument
        from trnprof.nki.kernel_call import KernelCall
        from trnprof.nki.loader import KernelLoader, find_callable
        from trnprof.nki.modules import install_nki_modules
        from trnprof.nki.recording import TensorSpec
        from trnprof.nki.rewriting import Rewrite

        request = self.request
        task = importlib.import_module(f"trnprof.nki.{request['task']}")
        frameworks = task.prepare(request["settings"]) if hasattr(task, "prepare") else None
        values = {name: _load_values(name, path) for name, path in request["values"].items()}
        with install_nki_modules(request["target"]):
            self.loader = KernelLoader(
                Path(request["kernel_file"]),
                rewrites=tuple(Rewrite(*entry) for entry in request["rewrites"]),
                allowed=frozenset(request["allowed_imports"]),
            )
            self.loader.install()
            _Guard(Path.cwd(), self.limits["output_bytes"]).close_doors()
            module = self.loader.load()
            kernel = find_callable(module, request["kernel"])
            positional: list[Any] = []
            keywords: dict[str, Any] = {}
            of_rank: Callable[[int], tuple[list[Any], dict[str, Any]]] | None = None
            if request["inputs_file"]:
                self.stage = "building the inputs"
                path = Path(request["inputs_file"])
                inputs_module = self.loader.load_beside(path)
                positional, keywords = arguments_of(_call_inputs(inputs_module, path), path)
                if _takes_rank(inputs_module):
                    of_rank = partial(_arguments_of_rank, inputs_module, path)
            keywords |= {
                name: TensorSpec(tuple(shape), dtype, name) for name, (shape, dtype) in request["tensors"].items()
            }
            keywords |= {name: resolve_argument(text, vars(module)) for name, text in request["arguments"].items()}
            if hasattr(task, "arguments"):
                keywords = task.arguments(keywords, request["settings"])
            _check_arguments(kernel, request["kernel"], positional, keywords)
            self.stage = "running"
            call = KernelCall(
                kernel, positional, keywords, request, values, self.loader, frameworks, of_rank, self._enter
            )
            document: dict[str, Any] = task.perform(call)
        return document

    def _enter(self, stage: str) -> None:
        self.stage = stage

    def describe(self, error: BaseException) -> dict[str, Any]:
        """The failure as data: kind, file, line, one-line message."""
        return describe_failure(error, stage=self.stage, limits=self.limits, kernel_file=self.request["kernel_file"])

    def finish(self, document: dict[str, Any]) -> None:
        """Write the document and end at once: no exit handlers, no waiting for the kernel's threads."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            raw = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, MemoryError) as error:
            raw = json.dumps({"error": {"kind": "internal", "message": f"result cannot be written: {error}"}}).encode()
        if len(raw) > self.limits["result_bytes"]:
            too_large = (
                f"the result has {len(raw) >> 20} MiB, more than the {self.limits['result_bytes'] >> 20} MiB allowed"
            )
            raw = json.dumps({"error": {"kind": "limit", "message": too_large}}).encode()
        with contextlib.suppress(OSError):
            view = memoryview(raw)
            while view:
                view = view[os.write(self.result_fd, view) :]
            os.close(self.result_fd)
        os._exit(0)

    def _set_limits(self) -> None:
        handlers = {"SIGALRM": self._out_of_time, "SIGXCPU": self._out_of_time, "SIGUSR1": self._printed_enough}
        for name, handler in handlers.items():
            if hasattr(signal, name):  # without them (Windows) the parent's clock is what is left
                signal.signal(getattr(signal, name), handler)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, self.limits["wall_s"])
        # What hangs inside a C call never reaches the handler; this prints where it hangs, and ends the process.
        import faulthandler

        faulthandler.enable()
        faulthandler.dump_traceback_later(self.limits["wall_s"] + 1, exit=True)
        try:
            import resource
        except ImportError:
            return
        cpu_s = int(self.limits["cpu_s"])
        wanted = [
            ("RLIMIT_CPU", cpu_s, cpu_s + 5),
            ("RLIMIT_FSIZE", self.limits["file_bytes"], self.limits["file_bytes"]),
            ("RLIMIT_NOFILE", self.limits["open_files"], self.limits["open_files"]),
            ("RLIMIT_CORE", 0, 0),
            ("RLIMIT_AS", self.limits["memory_bytes"], self.limits["memory_bytes"]),
        ]
        for name, soft, hard in wanted:
            with contextlib.suppress(ValueError, OSError, AttributeError):
                number = getattr(resource, name)
                _, allowed = resource.getrlimit(number)
                if allowed != resource.RLIM_INFINITY:
                    soft, hard = min(soft, allowed), min(hard, allowed)
                resource.setrlimit(number, (soft, hard))

    def _out_of_time(self, number: int, frame: FrameType | None) -> None:
        """The time is up: say where the kernel stands, without giving it a chance to catch this."""
        self.finish({"error": describe_timeout(frame, stage=self.stage, limits=self.limits)})

    def _printed_enough(self, number: int, frame: FrameType | None) -> None:
        """The parent has read more than it wants to: printed past sys.stdout's cap, straight to the descriptor."""
        self.finish({"error": describe_overflow(frame, limits=self.limits)})


class _Guard:
    """Refuses what a prediction never needs, and keeps written files in the scratch folder."""

    def __init__(self, scratch: Path, output_bytes: int) -> None:
        self.scratch = str(scratch.resolve())
        self.output_bytes = output_bytes

    def close_doors(self) -> None:
        """From here on the audit hook is in force; it cannot be removed."""
        self._redirect_writes()
        with contextlib.suppress(ImportError):
            import _posixsubprocess
            import subprocess

            def refuse(*arguments: Any) -> None:
                raise Refused("starts a process")

            _posixsubprocess.fork_exec = refuse  # type: ignore[assignment]
            subprocess._fork_exec = refuse  # type: ignore[attr-defined]
        budget = _Budget(self.output_bytes)
        sys.stdout = _CappedText(sys.stderr, budget)
        sys.stderr = _CappedText(sys.stderr, budget)
        sys.argv = [self.scratch]
        with contextlib.suppress(OSError):
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        refused = _REFUSED_EVENTS.get(event)
        if refused is not None:
            raise Refused(refused)
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
                self._check_inside(path, "writes")
        elif event in _WRITING_EVENTS:
            for path in arguments[:2] if event in ("os.rename", "os.link", "shutil.move") else arguments[:1]:
                self._check_inside(path, "changes")

    def _check_inside(self, path: Any, verb: str) -> None:
        if isinstance(path, int) or path is None:
            return
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
        if text == os.devnull:
            return
        # normpath and not realpath: a symlink made inside the scratch folder is refused above.
        whole = os.path.normpath(os.path.join(self.scratch, text))
        if whole != self.scratch and not whole.startswith(self.scratch + os.sep):
            raise Refused(f"{verb} the file {text[:120]!r}")

    def _redirect_writes(self) -> None:
        """Files that module-level code writes (logs, caches) land in the scratch folder instead of where they aim.

        A driver that logs beside itself should not fail a prediction, and must not leave a file behind.
        """
        scratch, real_open, real_mkdir = self.scratch, io.open, os.mkdir

        def inside(path: Any) -> Any:
            if not isinstance(path, str | bytes | os.PathLike):
                return path
            text = os.fsdecode(path)
            whole = os.path.normpath(os.path.join(scratch, text))
            if text == os.devnull or whole.startswith(scratch + os.sep):
                return path
            return os.path.join(scratch, "outside", whole.lstrip(os.sep).replace(os.sep, "%"))

        def redirected_open(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            moved = inside(file)
            if moved is not file:
                if any(letter in mode for letter in "wax+"):
                    os.makedirs(os.path.dirname(moved), exist_ok=True)
                    file = moved
                elif os.path.exists(moved):
                    file = moved
            return real_open(file, mode, *arguments, **keywords)

        def redirected_mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            moved = inside(path)
            if moved is not path:
                os.makedirs(os.path.dirname(moved), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                real_mkdir(moved, mode)

        builtins.open = io.open = redirected_open
        os.mkdir = redirected_mkdir


class _Budget:
    """How many more characters may be printed."""

    def __init__(self, total: int) -> None:
        self.left = total


class _CappedText(io.TextIOBase):
    """A text stream that stops a kernel printing without end."""

    def __init__(self, target: Any, budget: _Budget) -> None:
        self.target = target
        self.budget = budget

    def write(self, text: str) -> int:
        self.budget.left -= len(text)
        if self.budget.left < 0:
            raise PrintedTooMuch("prints without end")
        self.target.write(text)
        return len(text)

    def flush(self) -> None:
        self.target.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 2


def _load_values(name: str, path: str) -> Any:
    """The array in a .npy file. Raises InputDataError if it is none, or holds no integers."""
    import numpy as np

    from trnprof.errors import InputDataError

    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iub":
            raise ValueError(f"no array of integers: {getattr(array, 'dtype', type(array).__name__)}")
    except (ValueError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        message = f"--values {name}: {reason}; save the indices as integers with numpy.save"
        raise InputDataError(message, path=Path(path).name) from None
    return array


def _takes_rank(module: Any) -> bool:
    """Does the inputs file's function have a parameter, the rank?"""
    import inspect

    return bool(inspect.signature(_inputs_function(module, Path("inputs"))).parameters)


def _arguments_of_rank(module: Any, path: Path, rank: int) -> tuple[list[Any], dict[str, Any]]:
    from trnprof.nki.inputs import arguments_of

    return arguments_of(_call_inputs(module, path, rank), path)


def _call_inputs(module: Any, path: Path, rank: int = 0) -> Any:
    """What the inputs file's function returns."""
    function = _inputs_function(module, path)
    return function(rank) if _takes_rank(module) else function()


def _inputs_function(module: Any, path: Path) -> Callable[..., Any]:
    """`inputs`, or the only function the file defines."""
    from trnprof.errors import UsageError

    function: Callable[..., Any] | None = getattr(module, "inputs", None)
    if function is None:
        own = [value for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        functions = [value for value in own if callable(value) and not isinstance(value, type)]
        function = functions[0] if len(functions) == 1 else None
    if not callable(function):
        raise UsageError(f"{path.name}: define a function inputs() that returns the kernel's arguments")
    return function


def _check_arguments(kernel: Any, name: str, positional: list[Any], keywords: dict[str, Any]) -> None:
    """Do the arguments fit the kernel's signature? Raises UsageError that names what is missing or unknown."""
    import inspect

    from trnprof.errors import UsageError

    try:
        signature = inspect.signature(kernel)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        known = ", ".join(str(parameter) for parameter in signature.parameters.values())
        raise UsageError(
            f"{name}({known}): {error}; give tensors as --input NAME=128x512:bfloat16 and other values as --arg NAME=VALUE"
        ) from None
