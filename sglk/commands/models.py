"""`sglk models`: the models and their shapes."""

import json
from dataclasses import asdict
from typing import Any

from sglk.commands.chips import no_arguments, refuse_problems
from sglk.commands.flags import common_flags
from sglk.commands.terminal import console, plain_table
from sglk.config.catalogue import models
from sglk.config.model_size import kv_elements_per_token, num_parameters
from sglk.config.schema import ModelConfig
from sglk.models.registry import ARCHITECTURES

_HELP = """\
usage: sglk models [--json] [--config-dir DIR]

List the models that `model=` accepts by name. Beside these it takes a folder, a .gguf file or a Hugging Face name:

  sglk serve model=/data/Qwen2.5-7B-Instruct
  sglk serve model=./model.Q4_1.gguf
  sglk serve model=Qwen/Qwen2.5-0.5B-Instruct"""

_KV_BYTES = 2


def run(arguments: list[str]) -> int:
    """Print a table, or JSON with all architecture numbers."""
    flags = common_flags(arguments, switches=("--json",))
    if flags.help:
        print(_HELP)
        return 0
    no_arguments("models", flags)
    found = models(flags.config_dir)
    if "--json" in flags.switches:
        print(json.dumps([_facts(model) for model in found.entries], indent=2))
    else:
        _print(found.entries)
    refuse_problems(found)
    return 0


def _print(found: list[ModelConfig]) -> None:
    table = plain_table("model", "parameters", "layers", "heads", "KV heads", "context", "KV KiB/token", "from")
    for model in found:
        table.add_row(
            model.name,
            _billions(num_parameters(model)),
            _number(model.num_hidden_layers),
            _number(model.num_attention_heads),
            _number(model.num_key_value_heads),
            _number(model.max_position_embeddings),
            _kv_size(model),
            model.path or model.package or model.hub_id or "path or hub name of yours",
        )
    screen = console()
    screen.print(table)
    screen.print("\nKV at two bytes a number", style="dim")
    if numbers_only := [model.name for model in found if not _is_supported(model)]:
        screen.print(f"only with engine=sglang or engine=vllm: {', '.join(numbers_only)}", style="dim")


def _facts(model: ModelConfig) -> dict[str, Any]:
    return {**asdict(model), "num_parameters": num_parameters(model), "supported": _is_supported(model)}


def _is_supported(model: ModelConfig) -> bool:
    return model.architecture is None or model.architecture in ARCHITECTURES


def _billions(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e9:.3g} B"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _kv_size(model: ModelConfig) -> str:
    elements = kv_elements_per_token(model)
    return "-" if elements is None else f"{elements * _KV_BYTES / 1024:g}"
