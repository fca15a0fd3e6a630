"""One deployment from configuration to a served port."""

import logging
import sys
import threading
from contextlib import closing
from pathlib import Path

from sglk.config.schema import ServeConfig
from sglk.engine.engine import Engine
from sglk.engine.messages import Finish, GenerateRequest, Output, SamplingParams
from sglk.errors import ConfigError, RunError
from sglk.models.chat import check_chat_template, load_chat_template
from sglk.server.announcement import announcement, ready_line, say
from sglk.server.app import create_app
from sglk.server.deployment import Deployment
from sglk.server.http_server import HttpServer
from sglk.server.port import bind, url_of

WARM_UP_TIMEOUT_S = 600.0
"""A first step may compile kernels."""


def serve(config: ServeConfig, profile_path: Path | None) -> None:
    """Serve `config` until a signal ends it; `profile_path` is the file of the profile in use.

    The port is taken first and opens last: a conflict shows before weights are loaded, and whoever can connect gets
    answers.
    """
    _check_supported(config)
    _set_up_logging(config.server.log_level)
    with closing(bind(config.server.host, config.server.port)) as listener:
        deployment = load_deployment(config, profile_path)
        url = url_of(listener)

        def announce() -> None:
            lines = [*announcement(deployment, url)]
            if sys.stdout is not None and not sys.stdout.isatty():
                lines.append(ready_line(deployment, url))
            say(lines)

        HttpServer(create_app(deployment), deployment, announce).run_until_stopped(listener)


def load_deployment(config: ServeConfig, profile_path: Path | None = None) -> Deployment:
    """Load model and chat template, start the engine and see it generate a token."""
    if config.server.chat_template is not None:
        # Weights may take minutes; a file of the user's is worth a look before.
        check_chat_template(config.server.chat_template)
    engine = Engine.from_config(config)
    try:
        template = load_chat_template(engine.tokenizer, config.server.chat_template)
        engine.start()
        warm_up(engine)
    except BaseException:
        engine.shutdown(0.0)
        raise
    return Deployment(config, engine, engine.tokenizer, template, profile_path)


def warm_up(engine: Engine) -> None:
    """Generate one token; raises RunError when the engine cannot."""
    finished = threading.Event()
    ends: list[Finish] = []

    def on_output(output: Output) -> None:
        if output.finish is not None:
            ends.append(output.finish)
            finished.set()

    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    engine.submit(GenerateRequest("warm-up", (0,), sampling), on_output)
    if not finished.wait(WARM_UP_TIMEOUT_S):
        raise RunError(f"the engine made no token within {WARM_UP_TIMEOUT_S:g} s; look for a stuck device")
    if ends[0].reason != "length":
        raise RunError(f"the engine cannot generate: {ends[0].message or ends[0].reason}")


def _check_supported(config: ServeConfig) -> None:
    if config.engine.name != "native":
        raise ConfigError(f"engine {config.engine.name!r} cannot be served yet; choose engine=native")
    devices = [device for group in config.groups for device in group.devices]
    tp_size = config.runtime.tp_size
    if len(config.groups) > 1 or len(devices) != tp_size:
        raise ConfigError(
            f"{len(devices)} devices are configured in {len(config.groups)} groups ({', '.join(devices)}); this version"
            f" serves one group of runtime.tp_size={tp_size} devices, name that many in groups"
        )


def _set_up_logging(level: str) -> None:
    number = logging.DEBUG if level == "trace" else getattr(logging, level.upper())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("sglk").setLevel(number)
