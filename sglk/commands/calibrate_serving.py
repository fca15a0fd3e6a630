"""The small runs of `sglk bench` that tell a calibration what serving adds to the engine's steps."""

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglk.bench.record import Record, RequestRecord
from sglk.bench.run import measure
from sglk.bench.target import LaunchedServer, Target, override_key
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from sglk.config.calibrate_schema import CalibrateConfig
from sglk.errors import RunError
from sglk.planner.calibration.record import ServingRecord
from sglk.planner.calibration.serving import DecodeRun, FirstToken, StepTime, serving_time

_PROMPT = 16
_ANSWER = 48
_JOINING, _LEAVING = 12, 4
"""Gaps at the beginning and the end of an answer in which not all requests decode."""
_FEWEST = 3
"""Requests of a run in which one decodes at a time."""

_ALONE = 5
"""Requests that come one at a time."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ServingRuns:
    """A server of the deployment that is calibrated, and the load on it."""

    config: CalibrateConfig
    words: Sequence[str]
    """What the user typed."""
    config_dir: Path | None
    say: Say

    def measure(self, step: StepTime) -> ServingRecord:
        """Return what clients see beyond `step` for each step; raises RunError where the server does not serve."""
        handle, name = tempfile.mkstemp(prefix="sglk-calibrate-", suffix=".log")
        log = Path(name)
        os.close(handle)
        self.say("starting a server")
        words = [word for word in self.words if override_key(word).partition(".")[0] != "calibrate"]
        with LaunchedServer([*words, "profiles=none"], log=log, config_dir=self.config_dir) as server:
            found = self._runs(server, step)
        log.unlink()
        return found

    def _runs(self, server: Target, step: StepTime) -> ServingRecord:
        runtime = self.config.runtime
        rows = sorted({1, max(1, runtime.max_running_requests // 2), runtime.max_running_requests})
        self.say(f"serving {' and '.join(map(str, rows))} requests at a time")
        decodes = [self._decode_run(server, count) for count in rows]
        limit = self.config.calibrate.context_length - 2
        long = min(limit, runtime.chunked_prefill_size if runtime.chunked_prefill_size > 0 else limit)
        self.say(f"serving prompts of {_PROMPT} and {long} tokens, one at a time")
        firsts = [self._first_token(server, prompt) for prompt in (_PROMPT, long)]
        return serving_time(
            decodes, firsts, runtime.chunked_prefill_size if runtime.chunked_prefill_size > 0 else long, step
        )

    def _decode_run(self, server: Target, rows: int) -> DecodeRun:
        requests = self._run(server, _FEWEST if rows == 1 else rows, rows, _PROMPT, _ANSWER)
        # While requests join and leave the gaps are others; in between their mean counts, as it does for clients.
        gaps = [gap for request in requests for gap in request.itl_s[_JOINING:-_LEAVING]]
        return DecodeRun(rows, _PROMPT + _ANSWER // 2, statistics.fmean(gaps))

    def _first_token(self, server: Target, prompt: int) -> FirstToken:
        requests = self._run(server, _ALONE, 1, prompt, 2)
        return FirstToken(prompt, statistics.median(each.ttft_s for each in requests if each.ttft_s is not None))

    def _run(self, server: Target, requests: int, concurrency: int, prompt: int, answer: int) -> list[RequestRecord]:
        workload = WorkloadConfig(
            name="calibration",
            kind="random",
            num_requests=requests,
            input_len=prompt,
            output_len=answer,
            concurrency=concurrency,
            warmup_requests=1,
        )
        record: Record = measure(server, workload, LoadConfig(api="generate", progress=False))
        good = [request for request in record.requests if request.phase == "measured" and request.ok]
        if len(good) < requests:
            errors = [request.error for request in record.requests if request.error]
            raise RunError(
                f"{requests - len(good)} of {requests} requests failed: {errors[0] if errors else 'no answer'}"
            )
        return good
