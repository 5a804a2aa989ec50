"""Run a kernel in a child process with limits, and bring back its prediction or one clear error.

The child is a fresh interpreter in isolated mode with limits on CPU and wall-clock time, address space, file size and
open files, an import policy, no sockets, no processes, writes only to a scratch folder that is deleted, and its output
captured. That guards against accidents: an endless loop, a 100 GB allocation, a driver that downloads a model. It is a
guard and not a sandbox: run kernels that you do not trust in a virtual machine, or look at them with --no-exec, which
runs nothing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from trnprof.errors import (
    InconsistencyError,
    InputDataError,
    InputMissingError,
    ToolMissingError,
    TrnprofError,
    UsageError,
)
from trnprof.nki.failures import is_user_code
from trnprof.nki.inputs import KernelInputs
from trnprof.nki.plain_data import from_plain, to_plain
from trnprof.nki.prediction_task import KernelPrediction
from trnprof.nki.rewriting import Rewrite

_BOOTSTRAP = "import sys; sys.path.extend(sys.argv[1:]); from trnprof.nki.child import main; main()"
_KILL_AFTER_EXTRA_S = 3.0
"""The child ends itself at its limit and says where it stood; after this much more the parent ends it."""
_KEPT_TEXT_BYTES = 64 << 10
_DRAINED_BYTES = 16 << 20
"""Raw output after which the child is ended: it wrote past its own cap, straight to the file descriptor."""


_ENOUGH = getattr(signal, "SIGUSR1", None)

_running: set[subprocess.Popen[bytes]] = set()
"""Children that are alive now, of all threads."""


@dataclass(frozen=True)
class Limits:
    """What one run may use."""

    wall_s: float = 60.0
    cpu_s: float = 60.0
    memory_bytes: int = 4 << 30
    """Address space, Python and numpy included (about 0.5 GiB of it)."""
    file_bytes: int = 64 << 20
    """Size of any one file written (to the scratch folder)."""
    open_files: int = 128
    output_bytes: int = 1 << 20
    """Characters the kernel may print."""
    result_bytes: int = 64 << 20


@dataclass(frozen=True, kw_only=True)
class KernelRun:
    """One kernel with one set of inputs, and what to do with it."""

    kernel_file: Path
    kernel: str
    inputs: KernelInputs
    settings: Any
    """The task's own settings: a frozen dataclass of plain data."""
    task: str = "prediction_task"
    """Module of trnprof.nki whose perform() the child calls (kernel_call.py)."""
    target: str = "trn2"
    exact: bool = False
    dge: bool = True
    """False: compiled with --disable-dge (static_rings.py)."""
    rewrites: tuple[Rewrite, ...] = ()
    allowed_imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuardedResult:
    """What came back."""

    prediction: KernelPrediction
    printed: str
    """What the kernel printed, cut off at 64 KiB."""
    printed_byte_count: int


@dataclass
class _Stream:
    """One pipe of the child, read by a thread so that neither side ever waits for the other."""

    pipe: IO[bytes]
    keep: int
    give_up_at: int
    process: subprocess.Popen[bytes]
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def drain(self) -> None:
        """Read to the end; keep the first `keep` bytes; end a child that writes more than `give_up_at`."""
        asked = False
        while chunk := self.pipe.read1(1 << 16):  # type: ignore[attr-defined]
            self.total += len(chunk)
            room = self.keep - len(self.kept)
            if room > 0:
                self.kept += chunk[:room]
            if self.total > self.give_up_at and not asked and _ENOUGH is not None:
                asked = True
                self.process.send_signal(_ENOUGH)  # it answers with the line it stands at
            elif self.total > 4 * self.give_up_at:
                self.process.kill()


def predict_guarded(run: KernelRun, limits: Limits | None = None) -> GuardedResult:
    """Load, run and count one kernel in a child process. `run.settings` is a PredictionSettings.

    Raises: what run_guarded raises.
    """
    document, printed, printed_byte_count = run_guarded(run, limits)
    return GuardedResult(from_plain(KernelPrediction, document.get("prediction")), printed, printed_byte_count)


def run_guarded(
    run: KernelRun, limits: Limits | None = None, *, collect: Callable[[Path], None] | None = None
) -> tuple[dict[str, Any], str, int]:
    """Load one kernel in a child process and do `run.task` with it: (its result document, what the kernel printed cut off
    at 64 KiB, bytes printed).

    collect: called with the child's scratch folder before that is deleted, to fetch files which the task left there.
    Raises: UsageError for arguments that do not fit; InputDataError for any failure of the kernel's own code or of a
            limit, naming its line; InconsistencyError for a failure of ours; ToolMissingError without an interpreter.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="trnprof-kernel-") as scratch:
        process = _start(scratch)
        _running.add(process)
        try:
            document, printed, printed_byte_count = _converse(process, _request(run, limits), run, limits)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            _running.discard(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if "error" in document:
            raise _as_exception(document["error"], run)
        if collect is not None:
            collect(Path(scratch))
    return document, printed, printed_byte_count


def stop_running() -> None:
    """End every child that is alive: what an interrupted sweep leaves behind."""
    for process in tuple(_running):
        process.kill()


def _request(run: KernelRun, limits: Limits) -> bytes:
    inputs = run.inputs
    return json.dumps(
        {
            "kernel_file": str(run.kernel_file.absolute()),
            "shown_file": str(run.kernel_file),
            "kernel": run.kernel,
            "task": run.task,
            "tensors": {name: [list(spec.shape), spec.dtype] for name, spec in inputs.tensors.items()},
            "arguments": inputs.arguments,
            "inputs_file": None if inputs.inputs_file is None else str(inputs.inputs_file.absolute()),
            "lnc": inputs.lnc,
            "grid": inputs.grid,
            "trips": inputs.trips,
            "values": {name: str(path.absolute()) for name, path in inputs.values.items()},
            "target": run.target,
            "exact": run.exact,
            "dge": run.dge,
            "rewrites": [[rewrite.scope, rewrite.name, rewrite.value] for rewrite in run.rewrites],
            "allowed_imports": run.allowed_imports,
            "settings": to_plain(run.settings),
            "limits": asdict(limits),
        }
    ).encode("utf-8", "surrogatepass")


def _start(scratch: str) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ToolMissingError("no Python interpreter to run the kernel with (sys.executable is empty); use --no-exec")
    # Isolated mode drops PYTHONPATH, the user's site folder and the current folder; what trnprof itself was found
    # through is appended, so that a checkout and a user installation work too.
    folders = [str(Path(__file__).resolve().parents[2])]
    folders += [folder for folder in sys.path if folder.rstrip("/\\").endswith(("site-packages", "dist-packages"))]
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT") if name in os.environ}
    # One thread in numpy's libraries: they map memory for each, and nothing here multiplies matrices.
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", _BOOTSTRAP, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env=kept | threads | {"HOME": scratch, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
    except OSError as error:
        raise ToolMissingError(f"cannot start {sys.executable} ({error.strerror or error}); use --no-exec") from None


def _converse(
    process: subprocess.Popen[bytes], request: bytes, run: KernelRun, limits: Limits
) -> tuple[dict[str, Any], str, int]:
    """Send the request and read what comes back, within the limits."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    result = _Stream(process.stdout, limits.result_bytes + 1, limits.result_bytes + 1, process)
    noise = _Stream(process.stderr, _KEPT_TEXT_BYTES, _DRAINED_BYTES, process)
    readers = [threading.Thread(target=stream.drain, daemon=True) for stream in (result, noise)]
    for reader in readers:
        reader.start()
    try:
        process.stdin.write(request)
        process.stdin.close()
    except (BrokenPipeError, OSError):
        pass  # the child ended early; what it wrote says why
    overdue = False
    try:
        process.wait(limits.wall_s + _KILL_AFTER_EXTRA_S + 2)
    except subprocess.TimeoutExpired:
        overdue = True
        process.kill()
        process.wait()
    for reader in readers:
        reader.join(timeout=5)
    printed = noise.kept.decode("utf-8", "replace")
    if result.total > limits.result_bytes:
        raise InputDataError("the kernel's result is too large to bring back; use smaller inputs", path=run.kernel_file)
    try:
        document = json.loads(bytes(result.kept))
        if not isinstance(document, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError):
        if noise.total > _DRAINED_BYTES:
            message = f"prints without end ({noise.total >> 20} MiB); remove the print"
            raise InputDataError(message, path=run.kernel_file) from None
        raise _died(process.returncode, overdue, printed, run, limits) from None
    return document, printed, noise.total


def _died(code: int | None, overdue: bool, printed: str, run: KernelRun, limits: Limits) -> TrnprofError:
    """The child ended without a result: say at which line, from the trace that it left on stderr."""
    lines = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', printed)
    place = next((f"line {line} (in {name}): " for file, line, name in lines if is_user_code(file)), "")
    if overdue or "Timeout (" in printed:
        message = f"still running after {limits.wall_s:g} s inside one call; if it is only long, raise --timeout"
    elif code is not None and code < 0:
        message = (
            f"the process was ended by signal {-code} (memory limit {limits.memory_bytes / 2**30:.3g} GiB? native recursion?); "
            "use smaller inputs or raise --memory"
        )
    elif "Error" in printed and "trnprof" in printed.rpartition("File ")[2]:
        return InconsistencyError(
            f"the child process failed to start: {printed.strip().splitlines()[-1][:300]}", path=run.kernel_file
        )
    else:
        message = f"the process ended by itself (exit code {code}) without a result; does the kernel call os._exit?"
    return InputDataError(place + message, path=run.kernel_file)


def _as_exception(error: Any, run: KernelRun) -> TrnprofError:
    if not isinstance(error, dict):
        return InconsistencyError("the child process sent an error that is no object", path=run.kernel_file)
    message, path = str(error.get("message", "no message")), error.get("path")
    # The child names files as results do; the kernel file itself is named as the user gave it.
    shown = run.kernel_file if path in (None, str(run.kernel_file.absolute()), run.kernel_file.name) else str(path)
    match error.get("kind"):
        case "usage":
            return UsageError(message, path=shown)
        case "input-missing":
            return InputMissingError(message, path=shown)
        case "inconsistency" | "internal":
            return InconsistencyError(message, path=shown)
        case _:
            return InputDataError(message, path=shown)
