"""Run one command and let nothing of it outlive its owner: started by path, as a script, by `sglk.child`.

`python guardian.py OWNER_PID GRACE_S FOLDER COMMAND [ARGUMENT ...]`

It sits between the owner and the command because no other place can keep the promise. A process killed by SIGKILL
cleans up nothing; Linux's parent-death signal alone would reach the command but not the workers that it starts, and
it also fires when only the *thread* that started the command ends. So the guardian watches its owner's pid, keeps the
command in a process group of its own, adopts workers that leave the group, and ends them all together. FOLDER, unless
it is empty, is removed with them where the owner is gone and cannot do so.

Standard library only, nothing of sglk: it has to start in a few milliseconds.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_OWNER_CHECK_S = 1.0


def _start(command: list[str], prctl: "ctypes._NamedFuncPointer") -> int:
    """Fork the command into its own process group and return its pid."""
    guardian = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(1)
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
    os._exit(127)


def _reap(main: int) -> int | None:
    """Collect every process that has ended; return the wait status of `main` if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == main:
            found = status


def _kill_group(pgid: int, signum: signal.Signals) -> None:
    try:
        os.killpg(pgid, signum)
    except (ProcessLookupError, PermissionError):
        return


def _adopted() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _clear(group: int) -> None:
    """End what the command left behind: its process group, and workers that moved out of it."""
    _kill_group(group, signal.SIGKILL)
    while left := _adopted():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _watch(main: int, owner: int, grace_s: float) -> int:
    """Wait until the command ends, by itself or because it must; return its wait status."""
    deadline: float | None = None
    while True:
        signum = signal.sigtimedwait(_SIGNALS, _OWNER_CHECK_S if deadline is None else 0.05)
        status = _reap(main)
        if status is not None:
            return status
        told = signum is not None and signum.si_signo in (signal.SIGTERM, signal.SIGINT)
        if deadline is None and (told or os.getppid() != owner):
            deadline = time.monotonic() + grace_s
            # Not to its workers, which it ends in its own order and would take for crashed.
            os.kill(main, signal.SIGTERM)
        if deadline is not None and time.monotonic() >= deadline:
            _kill_group(main, signal.SIGKILL)


def main() -> None:
    """Run the command and end as it ended: same exit code, same signal."""
    owner, grace_s, folder, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Only wakes the loop, which then asks whether the owner itself is gone or merely one of its threads.
    prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    pid = _start(command, prctl)
    status = _watch(pid, owner, grace_s)
    _clear(pid)
    if folder and os.getppid() != owner:
        # Takes as long to import as all the rest.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        os.kill(os.getpid(), signum)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
