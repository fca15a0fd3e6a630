"""From a deployment to SGLang's command line."""

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

MODULE = "sglang.launch_server"

VALUES = {
    "chunked_prefill_size": "--chunked-prefill-size",
    "max_prefill_tokens": "--max-prefill-tokens",
    "max_running_requests": "--max-running-requests",
    "mem_fraction_static": "--mem-fraction-static",
    "max_total_tokens": "--max-total-tokens",
    "schedule_conservativeness": "--schedule-conservativeness",
    "context_length": "--context-length",
    "random_seed": "--random-seed",
    "load_format": "--load-format",
}
"""Runtime parameters that are SGLang's own; null = leave it to SGLang."""

SWITCHES = {
    "enable_mixed_chunk": "--enable-mixed-chunk",
    "disable_radix_cache": "--disable-radix-cache",
    "allow_auto_truncate": "--allow-auto-truncate",
    "enable_torch_compile": "--enable-torch-compile",
    "enable_deterministic_inference": "--enable-deterministic-inference",
}

POLICIES = {"fcfs": "fcfs", "lpm": "lpm", "shortest_prompt_first": "shortest-prefill-first"}

QUANTIZATION = {
    "w8a8": "w8a8_int8",
    "w8a8_int8": "w8a8_int8",
    "fp8": "fp8",
    "w8a8_fp8": "w8a8_fp8",
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed-tensors",
}
"""sglk's names of weight schemes that SGLang has; it makes no w8a16 or w4a16 from a plain checkpoint."""

OWNED = {
    **{flag: f"runtime.{name}" for name, flag in {**VALUES, **SWITCHES}.items()},
    "--model-path": "model",
    "--revision": "model.revision",
    "--served-model-name": "server.served_model_name",
    "--host": "server.host",
    "--port": "server.port",
    "--api-key": "server.api_key",
    "--admin-api-key": "server.admin_api_key",
    "--ssl-keyfile": "server.ssl_keyfile",
    "--ssl-certfile": "server.ssl_certfile",
    "--chat-template": "server.chat_template",
    "--log-level": "server.log_level",
    "--page-size": "runtime.page_size",
    "--schedule-policy": "runtime.schedule_policy",
    "--kv-cache-dtype": "runtime.kv_cache_dtype",
    "--dtype": "runtime.dtype",
    "--quantization": "runtime.quantization",
    "--tp-size": "runtime.tp_size",
    "--cuda-graph-backend-decode": "runtime.disable_cuda_graph",
    "--cuda-graph-backend-prefill": "runtime.disable_cuda_graph",
    "--base-gpu-id": "groups",
    "--nnodes": "engine.nnodes",
    "--node-rank": "engine.node_rank",
    "--dist-init-addr": "engine.dist_init_addr",
}
"""Flags that come from settings of sglk and from nowhere else."""


def add_arguments(arguments: Arguments, config: ServeConfig, model: str) -> None:
    """Add everything but the address; raises NoEquivalent for what this version has no words for."""
    _model(arguments, config, model)
    runtime, title = config.runtime, arguments.table.title
    if runtime.device_memory_gib is not None:
        raise refuse("device_memory_gib", f"{runtime.device_memory_gib:g}", title, "lower runtime.mem_fraction_static")
    for name, flag in VALUES.items():
        if (value := getattr(runtime, name)) is not None:
            arguments.set(flag, value, f"runtime.{name}")
    for name, flag in SWITCHES.items():
        if getattr(runtime, name):
            arguments.set(flag, True, f"runtime.{name}")
    arguments.set("--page-size", page_size(arguments, config), "runtime.page_size")
    if runtime.dtype != "auto":
        arguments.set("--dtype", DTYPES[runtime.dtype], "runtime.dtype")
    choices = arguments.table.require("--kv-cache-dtype").choices
    arguments.set("--kv-cache-dtype", kv_cache_dtype(runtime, choices, title), "runtime.kv_cache_dtype")
    arguments.set("--tp-size", len(config.groups[0].devices), "runtime.tp_size")
    _machines(arguments, config)
    _policy(arguments, config)
    if runtime.quantization is not None:
        word = quantization(runtime.quantization, QUANTIZATION, title)
        arguments.set("--quantization", word, "runtime.quantization")
    if runtime.disable_cuda_graph:
        for phase in ("decode", "prefill"):
            arguments.set(f"--cuda-graph-backend-{phase}", "disabled", "runtime.disable_cuda_graph")
    # What sglk's router reads: figures, and how much of a prompt was cached.
    arguments.set("--enable-metrics", True, "sglk's metrics")
    arguments.set("--enable-cache-report", True, "sglk's metrics")
    arguments.set("--log-level-http", QUIET, "sglk's log")


def variables(config: ServeConfig) -> dict[str, str]:
    """Return the settings that SGLang takes from its environment."""
    # When one of its processes has died the others hold the port for 65 s, for dumps that need a debugger's set-up;
    # until then nobody starts it again.
    return {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}


def _model(arguments: Arguments, config: ServeConfig, model: str) -> None:
    arguments.set("--model-path", model, "model")
    add_model_names(arguments, config, model)
    arguments.set("--log-level", log_level(config), "server.log_level")


def _machines(arguments: Arguments, config: ServeConfig) -> None:
    engine = config.engine
    if engine.nnodes == 1:
        return
    arguments.set("--nnodes", engine.nnodes, "engine.nnodes")
    arguments.set("--node-rank", engine.node_rank, "engine.node_rank")
    arguments.set("--dist-init-addr", engine.dist_init_addr, "engine.dist_init_addr")


def _policy(arguments: Arguments, config: ServeConfig) -> None:
    runtime, title = config.runtime, arguments.table.title
    policy = POLICIES[runtime.schedule_policy]
    flag = arguments.table.require("--schedule-policy")
    if policy not in flag.choices:
        have = ", ".join(ours for ours, theirs in POLICIES.items() if theirs in flag.choices)
        raise refuse("schedule_policy", runtime.schedule_policy, title, f"choose one of {have}")
    if runtime.schedule_policy == "lpm" and runtime.disable_radix_cache:
        arguments.note("without a prefix cache SGLang takes schedule_policy=lpm for fcfs")
    arguments.set("--schedule-policy", policy, "runtime.schedule_policy")
