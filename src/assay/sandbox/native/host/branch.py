"""One branch of an interpreter on the trusted side: its pipes and its running cell.

Requests go to the kernel manager in order, without waiting. The supervisor trusts only the kernel
manager's reports and the Linux kernel's counters. Every wait has a timeout: a branch that does not
answer in time is killed and loses its state.
"""

import json
import os
import select
import time
from dataclasses import dataclass
from typing import Any, Final

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Limits, Reason
from assay.contracts.ports import OnOutput, ignore_output
from assay.sandbox.native.host.jail import Descriptor, Jail, close_all
from assay.sandbox.native.host.messages import MOST_BYTES, Orders
from assay.sandbox.native.host.supervisor import RawResult, Supervisor
from assay.sandbox.native.host.usage_monitor import Watch
from assay.sandbox.native.kernel.open_files import TOO_FEW_HINT

Report = dict[str, Any]

_SEND_AGAIN_S: Final = 0.002
_ANSWER_TIMEOUT_S: Final = 15.0
_LARGEST_REPORT: Final = 4096


class BranchPipes:
    """The pipes of one branch."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gone = ""
        """Why the other end is gone; empty while it is there."""
        self._reported = b""
        ends: list[tuple[int, int]] = []
        try:
            for _ in range(4):
                ends.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401 - closed if one of them fails
            self.events = select.epoll()
        except OSError as error:
            close_all(end for pair in ends for end in pair)
            raise SandboxUnavailableError(
                f"out of descriptors: {error}", dispatch="never_started", hint=TOO_FEW_HINT
            ) from error
        self.theirs: tuple[int, ...] = tuple(writing for _, writing in ends)
        ours = tuple(Descriptor(reading) for reading, _ in ends)
        self.stdout, self.stderr, self.answers, self.reports = ours

    def hand_over(self) -> None:
        """Close the writing end of the reports after it was sent to the kernel manager.

        That pipe then ends with the kernel manager. The others stay open, so a cell cannot end
        them.
        """
        os.close(self.theirs[-1])
        self.theirs = self.theirs[:-1]

    async def report(self) -> Report:
        """Wait for one report of the kernel manager, up to a timeout."""
        with anyio.move_on_after(_ANSWER_TIMEOUT_S):
            while (found := self.read_report()) is None:
                await anyio.wait_readable(self.reports.number)
            return found
        return {"gone": "it does not answer"}

    def read_report(self) -> Report | None:
        """Return the next complete report, or None. An unreadable report becomes a final one."""
        if b"\n" not in self._reported:
            try:
                piece = self.reports.read_some()
            except BlockingIOError:
                return None
            if not piece:
                return {"gone": "its processes are dead", "manager": "dead"}
            self._reported += piece
        line, end, rest = self._reported.partition(b"\n")
        if not end:
            too_long = len(line) > _LARGEST_REPORT
            return {"gone": "it does not speak the protocol"} if too_long else None
        self._reported = rest
        try:
            report = json.loads(line)
        except ValueError:
            return {"gone": "it does not speak the protocol"}
        return report

    def close(self) -> None:
        close_all(self.theirs)
        self.theirs = ()
        self.events.close()
        for descriptor in (self.stdout, self.stderr, self.answers, self.reports):
            descriptor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnding:
    """What is known about a cell after all its processes are dead."""

    raw: RawResult
    kept: bool
    answers: bytes


class CellRun(Supervisor):
    """One running cell. Call `follow` once; call `kill` at any time."""

    def __init__(
        self,
        pipes: BranchPipes,
        orders: Orders,
        jail: Jail,
        limits: Limits,
        watch: Watch,
        on_output: OnOutput,
    ) -> None:
        super().__init__(limits, watch, on_output)
        self._pipes = pipes
        self._orders = orders
        self._jail = jail
        self._report: Report = {}
        self._answers = bytearray()
        self._events = pipes.events

    def kill(self, reason: Reason) -> None:
        """Ask the kernel manager to end the cell; if it does not do so in time, kill the jail."""
        if self._killed_for is not None or self._over:
            return
        self._killed_for = reason
        self._deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        self._orders.put({"do": "end", "line": self._pipes.number})

    async def follow(self, number: int, source: str) -> CellEnding:
        """Send the cell to the kernel manager and wait until none of its processes remain.

        Raises:
            SandboxUnavailableError: If the branch is gone.
        """
        started = time.perf_counter()
        pipes = self._pipes
        order = {"do": "run", "line": pipes.number, "number": number, "source": source}
        self._orders.put({**order, "ask": not self._watch.enforcing})
        self._start_clocks()
        self._read_streams({"stdout": pipes.stdout, "stderr": pipes.stderr})
        self._read_from(pipes.answers, self._read_answers)
        self._on(pipes.reports.number, self._read_reports)
        try:
            await self._handle_events()
        except BaseException:
            self.kill(Reason.CANCELLED)
            self._on_output = ignore_output
            with anyio.CancelScope(shield=True):
                await self._handle_events()
            raise
        finally:
            for registered in tuple(self._handlers):
                self._off(registered)
            if "gone" in self._report:
                pipes.gone = str(self._report["gone"])[:300]
                if self._report.get("manager") == "dead":
                    # No process is left that would end the interpreter's processes.
                    self._jail.kill()
        self._sample = self._watch.look()
        kept = self._report.get("kept") is True
        return CellEnding(
            raw=self._raw_result(
                _translate(self._report),
                started=started,
                # A kept cell had finished before it could be killed.
                killed_for=None if kept else self._killed_for,
            ),
            kept=kept,
            answers=bytes(self._answers),
        )

    def _read_answers(self) -> int:
        data = self._pipes.answers.read_some()
        if len(self._answers) <= MOST_BYTES:
            self._answers += data
        else:
            self.kill(Reason.OUTPUT_LIMIT)
        return len(data)

    def _read_reports(self) -> None:
        """Read all reports: one that was read together with another causes no new event."""
        while not self._over and (report := self._pipes.read_report()) is not None:
            if report != {"done": True}:
                self._report, self._over = report, True
                return
            # The cell is stopped, so a limit that it exceeded unseen is found before it is kept.
            self._kill_if_over_limit()
            if self._killed_for is None:
                self._orders.put({"do": "keep", "line": self._pipes.number})

    def _wait_s(self) -> float:
        return _SEND_AGAIN_S if self._orders.pending else super()._wait_s()

    def _enforce_limits(self) -> None:
        self._orders.send_more()
        super()._enforce_limits()

    def _handle_deadline(self) -> None:
        if self._killed_for is None:
            self.kill(Reason.TIMED_OUT)
        else:
            self._jail.kill()
            self._report, self._over = {"gone": "it does not answer"}, True


def _translate(report: Report) -> Report:
    """Translate a kernel manager's report into the format of PID 1, which `build_result` reads."""
    if "refused" in report:
        why = os.strerror(int(report["refused"]))
        return {"start_failed": f"no process for the cell: {why}", "ended": 126 << 8}
    ended = report.get("ended")
    return {"ended": ended} if isinstance(ended, int) else {}
