"""From a deployment to vLLM's command line."""

import json

from sglk.config.check_nodes import split_address
from sglk.config.schema import ServeConfig
from sglk.upstream.arguments import Arguments
from sglk.upstream.names import (
    DTYPES,
    QUIET,
    add_model_names,
    kv_cache_dtype,
    log_level,
    page_size,
    quantization,
    refuse,
)

MODULE = "vllm.entrypoints.openai.api_server"

WORKER = ("vllm.entrypoints.cli.main", "serve")
"""What machines other than the first run: only this one knows engines that answer no requests."""

KEY_VARIABLE = "VLLM_API_KEY"
"""Where it reads its API key, so that no user of the machine sees it in the list of processes."""

VALUES = {
    "max_running_requests": "--max-num-seqs",
    "mem_fraction_static": "--gpu-memory-utilization",
    "context_length": "--max-model-len",
    "random_seed": "--seed",
    "load_format": "--load-format",
}
"""Runtime parameters that vLLM has under another name; null = leave it to vLLM."""

QUANTIZATION = {
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed-tensors",
}
"""sglk's names of weight schemes that vLLM has; it reads int8 weights from compressed-tensors checkpoints alone."""

OWNED = {
    **{flag: f"runtime.{name}" for name, flag in VALUES.items()},
    "--model": "model",
    "--revision": "model.revision",
    "--served-model-name": "server.served_model_name",
    "--host": "server.host",
    "--port": "server.port",
    "--api-key": "server.api_key",
    "--chat-template": "server.chat_template",
    "--block-size": "runtime.page_size",
    "--max-num-batched-tokens": "runtime.chunked_prefill_size",
    "--enable-chunked-prefill": "runtime.chunked_prefill_size",
    "--num-gpu-blocks-override": "runtime.max_total_tokens",
    "--scheduling-policy": "runtime.schedule_policy",
    "--enable-prefix-caching": "runtime.disable_radix_cache",
    "--kv-cache-dtype": "runtime.kv_cache_dtype",
    "--dtype": "runtime.dtype",
    "--quantization": "runtime.quantization",
    "--tensor-parallel-size": "runtime.tp_size",
    "--enforce-eager": "runtime.disable_cuda_graph",
    "--nnodes": "engine.nnodes",
    "--node-rank": "engine.node_rank",
    "--headless": "engine.node_rank",
    "--master-addr": "engine.dist_init_addr",
    "--master-port": "engine.dist_init_addr",
    "--distributed-executor-backend": "engine.executor",
}
"""Flags that come from settings of sglk and from nowhere else."""

_FRACTION = (
    "vLLM's --gpu-memory-utilization covers activations too, SGLang's and sglk's mem_fraction_static weights and KV"
    " pool alone: the same number gives vLLM a smaller pool"
)
_STEP = (
    "vLLM counts decoding requests in --max-num-batched-tokens too, and has no second limit for all prompts together"
)


def add_arguments(arguments: Arguments, config: ServeConfig, model: str) -> None:
    """Add everything but the address; raises NoEquivalent for what this version has no words for."""
    _refusals(arguments, config)
    _model(arguments, config, model)
    runtime, title = config.runtime, arguments.table.title
    for name, flag in VALUES.items():
        if (value := getattr(runtime, name)) is not None:
            arguments.set(flag, value, f"runtime.{name}")
    _pages(arguments, config)
    _chunks(arguments, config)
    arguments.set("--scheduling-policy", "fcfs", "runtime.schedule_policy")
    arguments.set("--enable-prefix-caching", not runtime.disable_radix_cache, "runtime.disable_radix_cache")
    if runtime.dtype != "auto":
        arguments.set("--dtype", DTYPES[runtime.dtype], "runtime.dtype")
    choices = arguments.table.require("--kv-cache-dtype").choices
    arguments.set("--kv-cache-dtype", kv_cache_dtype(runtime, choices, title), "runtime.kv_cache_dtype")
    arguments.set("--tensor-parallel-size", len(config.groups[0].devices), "runtime.tp_size")
    _machines(arguments, config)
    if runtime.quantization is not None:
        word = quantization(runtime.quantization, QUANTIZATION, title)
        arguments.set("--quantization", word, "runtime.quantization")
    _graphs(arguments, config)
    # What sglk's router reads: how much of a prompt was cached.
    arguments.set("--enable-prompt-tokens-details", True, "sglk's metrics")
    arguments.set("--uvicorn-log-level", QUIET, "sglk's log")
    arguments.note(_FRACTION)
    arguments.note(_STEP)


def variables(config: ServeConfig) -> dict[str, str]:
    """Return the settings that vLLM takes from its environment."""
    # The route that empties the prefix cache is one for developers; nobody but sglk's router reaches it.
    given = {"VLLM_LOGGING_LEVEL": log_level(config).upper(), "VLLM_SERVER_DEV_MODE": "1"}
    if config.runtime.enable_deterministic_inference:
        given["VLLM_BATCH_INVARIANT"] = "1"
    return given


def _refusals(arguments: Arguments, config: ServeConfig) -> None:
    runtime, title = config.runtime, arguments.table.title
    if runtime.schedule_policy != "fcfs":
        raise refuse("schedule_policy", runtime.schedule_policy, title, "write runtime.schedule_policy=fcfs")
    if runtime.schedule_conservativeness != 1.0:
        given = f"{runtime.schedule_conservativeness:g}"
        raise refuse("schedule_conservativeness", given, title, "write runtime.schedule_conservativeness=1.0")
    if runtime.allow_auto_truncate:
        raise refuse("allow_auto_truncate", "true", title, "leave it out")
    if runtime.device_memory_gib is not None:
        raise refuse("device_memory_gib", f"{runtime.device_memory_gib:g}", title, "lower runtime.mem_fraction_static")


def _model(arguments: Arguments, config: ServeConfig, model: str) -> None:
    arguments.set("--model", model, "model")
    add_model_names(arguments, config, model)


def _machines(arguments: Arguments, config: ServeConfig) -> None:
    engine = config.engine
    if engine.executor is not None:
        arguments.set("--distributed-executor-backend", engine.executor, "engine.executor")
    if engine.nnodes == 1 or engine.executor == "ray":
        return
    host, port = split_address(str(engine.dist_init_addr))
    arguments.set("--nnodes", engine.nnodes, "engine.nnodes")
    arguments.set("--node-rank", engine.node_rank, "engine.node_rank")
    arguments.set("--master-addr", host, "engine.dist_init_addr")
    arguments.set("--master-port", port, "engine.dist_init_addr")
    if engine.node_rank > 0:
        arguments.set("--headless", True, "engine.node_rank")


def _pages(arguments: Arguments, config: ServeConfig) -> None:
    page = page_size(arguments, config)
    arguments.set("--block-size", page, "runtime.page_size")
    if config.runtime.max_total_tokens is not None:
        blocks = max(config.runtime.max_total_tokens // page, 1)
        arguments.set("--num-gpu-blocks-override", blocks, "runtime.max_total_tokens")


def _chunks(arguments: Arguments, config: ServeConfig) -> None:
    """Set the tokens of a step, of which vLLM demands one for each running request, and all of a prompt unchunked."""
    runtime, key = config.runtime, "runtime.chunked_prefill_size"
    chunked = runtime.chunked_prefill_size != -1
    context = runtime.context_length or config.model.max_position_embeddings or 0
    asked = runtime.chunked_prefill_size if chunked else max(runtime.max_prefill_tokens, context)
    tokens = max(asked, runtime.max_running_requests)
    if chunked and tokens > asked:
        arguments.note(
            f"{key}={asked} is raised to {tokens}: a step of vLLM holds a token for each of"
            f" runtime.max_running_requests={runtime.max_running_requests}"
        )
    arguments.set("--max-num-batched-tokens", tokens, key)
    arguments.set("--enable-chunked-prefill", chunked, key)


def _graphs(arguments: Arguments, config: ServeConfig) -> None:
    """VLLM compiles and captures by default; `--enforce-eager` ends both, a compilation config the graphs alone."""
    if not config.runtime.disable_cuda_graph:
        return
    key = "runtime.disable_cuda_graph"
    if config.runtime.enable_torch_compile:
        arguments.set("--compilation-config", json.dumps({"cudagraph_mode": "NONE"}), key)
    else:
        arguments.set("--enforce-eager", True, key)
