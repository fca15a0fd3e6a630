"""One benchmark run: prepare the server, warm it up, measure, and write down what it was worth."""

import asyncio
import dataclasses
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from sglk.bench.api import APIS, Api
from sglk.bench.client import Client, open_http
from sglk.bench.drive import drive
from sglk.bench.machine import client_versions, describe_machine, describe_tool
from sglk.bench.metrics import count, duration, summarise
from sglk.bench.prompts import Draw, Message, Prompt, Vocabulary, words
from sglk.bench.record import LoadRecord, Phase, Record, RequestRecord, ServerRecord
from sglk.bench.statement import items, named, printable_text, texts, whole
from sglk.bench.target import Target
from sglk.bench.warnings import warnings_for
from sglk.bench.workload import TEXTS, Medium, Plan, plan, workload_dict
from sglk.config.bench_schema import LoadConfig, WorkloadConfig
from sglk.config.schema import RouterConfig
from sglk.errors import ConfigError, RunError

_SIMULATED_BACKENDS = frozenset({"sim"})
_PROBE_WORDS = (4, 24)


@dataclass(frozen=True)
class Subject:
    """What the caller knows of the thing that it measures; what the server says of itself goes before."""

    chip: str | None = None
    model: str | None = None
    engine: str | None = None
    backend: str | None = None
    vocab_size: int | None = None


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    phase: Phase
    done: int
    total: int
    failed: int
    """Failed and timed-out requests so far."""


OnProgress = Callable[[Progress], None]
OnBreak = Callable[[Record], None]


def measure(
    target: Target,
    workload: WorkloadConfig,
    load: LoadConfig,
    *,
    subject: Subject = Subject(),
    session_header: str = RouterConfig.session_header,
    salt: str | None = None,
    command: str | None = None,
    on_progress: OnProgress | None = None,
    on_break: OnBreak | None = None,
) -> Record:
    """Run the workload against the target and return the record, valid or not.

    `on_break` gets the record, not valid, of a run that is interrupted or loses its server; the exception follows.

    With `load.sessions` conversations name themselves in `session_header`. `salt` names the run for `bench.cache=salt`;
    without it `bench.salt` or the record's own id does. Raises RunError if the server cannot be reached or ends during
    the run, ConfigError if the workload does not fit the server.
    """
    run = _Run(target, workload, load, subject, session_header, salt, on_progress or (lambda progress: None))
    try:
        return run.record(command)
    except (KeyboardInterrupt, RunError) as error:
        if on_break is not None and run.has_figures:
            on_break(run.broken_off(command, error))
        raise


class _Run:
    def __init__(
        self,
        target: Target,
        workload: WorkloadConfig,
        load: LoadConfig,
        subject: Subject,
        session_header: str,
        salt: str | None,
        on_progress: OnProgress,
    ) -> None:
        now = datetime.now(timezone.utc)
        self._id = f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        self._created = now.isoformat(timespec="seconds")
        self._target = target
        self._workload = workload
        self._load = load
        self._subject = subject
        self._session_header = session_header if load.sessions else None
        self._on_progress = on_progress
        self._model_info = target.model_info() or {}
        self._info = target.server_info() or {}
        self._simulated = self._info.get("simulated") is True or self._known("backend") in _SIMULATED_BACKENDS
        self._check_pace()
        self._models = target.models()
        self._counters: dict[str, float] = {}
        self._medium = Medium()
        self._requests: list[RequestRecord] = []
        self._planned = 0
        self._api = self._choose_api()
        self._cache = self._choose_cache()
        self._salt = (salt or load.salt or self._id) if self._cache == "salt" else None

    def _check_pace(self) -> None:
        """Raise RunError where a simulated device's time does not pass as ours does."""
        speed = (texts(self._info.get("device"))).get("speed", "1")
        if self._simulated and speed != "1":
            raise RunError(
                f"the server's simulated device runs at speed {speed}, so what is timed is not the chip's; "
                "start it with backend.options.speed=1"
            )

    def record(self, command: str | None) -> Record:
        asyncio.run(self._drive())
        self._target.check()
        engine_stats, notes = self._look_back()
        return self._record(command, engine_stats, notes)

    @property
    def has_figures(self) -> bool:
        return any(request.phase == "measured" for request in self._requests)

    def broken_off(self, command: str | None, error: BaseException) -> Record:
        """Return the record of what had been answered; the server, which may hang, is asked for nothing."""
        cause = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        answered = sum(request.phase == "measured" and request.ok for request in self._requests)
        why = f"{cause}, with {answered} of {self._planned} requests answered"
        note = f"the run was broken off ({why})"
        if answered < self._planned:
            note += ": what takes longest is missing from its figures"
        return dataclasses.replace(self._record(command, {}, [note]), broken_off=why, valid=False)

    def _record(self, command: str | None, engine_stats: dict[str, float], notes: list[str]) -> Record:
        requests = sorted(self._requests, key=lambda request: (request.phase != "warmup", request.index))
        counts = count(requests)
        bad = counts.failed + counts.timeout
        backend = self._known("backend")
        return Record(
            id=self._id,
            kind="simulated" if self._simulated else "measured",
            created=self._created,
            command=command,
            tool=describe_tool(),
            machine=describe_machine(),
            versions=client_versions(),
            chip=self._known("chip"),
            model=self._known("model") or printable_text(self._served_model()),
            engine=self._known("engine"),
            backend=backend,
            server=_server_record(self._info),
            runtime=named(self._info.get("runtime")),
            workload=workload_dict(self._workload),
            load=self._load_record(self._medium),
            counts=counts,
            duration_s=round(duration(requests), 6),
            valid=counts.completed > 0 and bad <= self._load.max_failure_rate * counts.requests,
            summary=summarise(requests, self._load.slo),
            engine_stats=engine_stats,
            warnings=warnings_for(requests, self._workload, asked_cache=self._load.cache, cache=self._cache) + notes,
            requests=requests,
        )

    def _look_back(self) -> tuple[dict[str, float], list[str]]:
        """Ask the server what the run did to it; a server that is gone by now does not take the results with it."""
        try:
            self._info = self._target.server_info() or self._info
            return _growth(self._counters, self._target.metrics()), []
        except RunError as error:
            self._target.check()
            return {}, [f"after the run: {error}"]

    async def _drive(self) -> None:
        async with open_http(self._target.url, self._target.api_key) as http:
            client = Client(http, self._api, self._served_model(), self._load.timeout_s, self._session_header)
            self._medium = await self._find_medium(client)
            drawn = plan(self._workload, self._medium, self._salt or "")
            self._check_context(drawn, self._medium)
            await self._phase(client, drawn, "warmup")
            if self._cache == "flush" and not self._target.flush_cache():
                raise RunError("the server refuses to flush its prefix cache; use bench.cache=salt")
            self._counters = self._target.metrics()
            await self._phase(client, drawn, "measured")

    async def _phase(self, client: Client, drawn: Plan, phase: Literal["warmup", "measured"]) -> None:
        conversations = drawn.warmup if phase == "warmup" else drawn.measured
        self._planned = total = sum(len(conversation.turns) for conversation in conversations)
        done = failed = 0

        def on_done(record: RequestRecord) -> None:
            nonlocal done, failed
            self._requests.append(record)
            done, failed = done + 1, failed + (not record.ok)
            self._on_progress(Progress(phase, done, total, failed))

        self._on_progress(Progress(phase, 0, total, 0))
        await drive(client, self._workload, conversations, phase, on_done)

    def _choose_api(self) -> Api:
        name = self._load.api
        if name == "auto":
            native = "generate" if self._model_info else "completions"
            name = "chat" if self._workload.kind in TEXTS else native
        return APIS[name]

    def _served_model(self) -> str | None:
        """Return the name to ask for: the caller's if the server has it, else the first that it has."""
        return self._subject.model if self._subject.model in self._models else next(iter(self._models), None)

    def _choose_cache(self) -> str:
        """Salt the prompts where the cache should be flushed but the server cannot."""
        if self._load.cache == "flush" and not self._target.flush_cache():
            return "salt"
        return self._load.cache

    async def _find_medium(self, client: Client) -> Medium:
        """Return what prompts can be made of: token ids if the interface takes them, else words, which are weighed."""
        size = whole(self._model_info.get("vocab_size")) or self._subject.vocab_size
        if size and self._api.takes_ids and self._workload.kind not in TEXTS:
            special = [whole(token) for token in items(self._model_info.get("special_token_ids"))]
            vocabulary = Vocabulary(size, frozenset(token for token in special if token is not None))
            if vocabulary.is_ordinary:
                return Medium(vocabulary)
        few, many = [await self._prompt_tokens(client, length) for length in _PROBE_WORDS]
        if few is None or many is None or many <= few:
            return Medium()
        per_word = (many - few) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
        return Medium(None, round(per_word, 3), max(0, round(few - per_word * _PROBE_WORDS[0])))

    async def _prompt_tokens(self, client: Client, length: int) -> int | None:
        probe = Prompt(messages=(Message("user", words(Draw("probe"), length)),))
        exchange = await client.send(probe, 1)
        return exchange.answer.prompt_tokens

    def _check_context(self, drawn: Plan, medium: Medium) -> None:
        limit = whole(self._info.get("context_length")) or whole(self._model_info.get("max_model_len"))
        longest = max(medium.least_tokens(talk) for talk in drawn.measured)
        if limit and longest > limit:
            raise ConfigError(
                f"workload {self._workload.name!r} asks for {longest} tokens of prompt and answer, the server takes "
                f"{limit}; lower workload.input_len, workload.prefix_len or workload.output_len"
            )

    def _known(self, name: Literal["chip", "model", "engine", "backend"]) -> str | None:
        return printable_text(self._info.get(name)) or getattr(self._subject, name)

    def _load_record(self, medium: Medium) -> LoadRecord:
        return LoadRecord(
            api=self._api.name,
            cache=self._cache,
            url="launched" if self._target.launched else self._target.url,
            timeout_s=self._load.timeout_s,
            max_failure_rate=self._load.max_failure_rate,
            salt=self._salt,
            tokens_per_word=None if medium.vocabulary is not None else medium.tokens_per_word,
            slo=dataclasses.asdict(self._load.slo),
            sessions=self._load.sessions,
        )


def _server_record(info: dict[str, Any]) -> ServerRecord:
    device = info.get("device")
    return ServerRecord(
        runtime=named(info.get("runtime")),
        kv_capacity_tokens=whole(info.get("kv_capacity_tokens")) or whole(info.get("max_total_num_tokens")),
        weights_bytes=whole(info.get("weights_bytes")),
        peak_memory_bytes=whole(info.get("peak_memory_bytes")),
        device=printable_text(device.get("name") if isinstance(device, dict) else device),
        versions=texts(info.get("versions")),
        dtype=printable_text(info.get("dtype")),
        profile=info.get("profile"),
    )


def _growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the engine's counters grew by, and the hit rate that follows."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    prompt, cached = grown.get("prompt_tokens"), grown.get("cached_prompt_tokens")
    if prompt and cached is not None:
        grown["cache_hit_rate"] = cached / prompt
    return grown
