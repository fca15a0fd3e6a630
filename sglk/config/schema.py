"""Every setting of sglk: one dataclass per configuration group, one root per command.

The classes describe; ranges are checked in `sglk.config.check`, composition happens in `sglk.config.compose`.
Field types stay within what OmegaConf's structured configs accept.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from sglk.config.container_schema import ContainerConfig
from sglk.config.engine_schema import EngineConfig, UpstreamConfig
from sglk.config.provenance import ProfileRecord


@dataclass
class FigureSource:
    """Where one figure of a chip comes from and how far it can be trusted."""

    source: str = MISSING
    """Document, tool output or measurement."""
    quality: str = MISSING
    """One of `datasheet`, `measured`, `derived`, `claimed`, `unverified`."""


@dataclass
class ChipConfig:
    """One accelerator model: its figures, and the limits that its software declares."""

    name: str = MISSING
    """Name typed on the command line."""
    title: str = MISSING
    """Full name for people."""
    vendor: str = MISSING
    backend: str = MISSING
    """DeviceBackend plugin that drives the chip."""
    memory_gib: Optional[float] = None
    """Device memory; null = ask the device."""
    bandwidth_gb_s: Optional[float] = None
    """Peak memory bandwidth, 10^9 bytes/s."""
    interconnect_gb_s: Optional[float] = None
    """Peak bandwidth between two chips of one machine, 10^9 bytes/s."""
    devices_per_machine: Optional[int] = None
    """Chips of the machine that it is usually built into; null = not known, and counted as 1."""
    peak_tflops: dict[str, float] = field(default_factory=dict)
    """Peak dense (not sparse) rate per dtype name, 10^12 operations/s."""
    fp8_activations: Optional[bool] = None
    """Whether its backend's products of scheme fp8 round the activations too, and so multiply in fp8; null = it does
    where the chip has a rate in fp8."""
    dtypes: list[str] = field(default_factory=list)
    """Compute dtypes the chip runs at full rate; the first is what `runtime.dtype=auto` means."""
    kv_cache_dtypes: list[str] = field(default_factory=list)
    """Accepted `runtime.kv_cache_dtype` values beside `auto`."""
    quantization: list[str] = field(default_factory=list)
    """Accepted `runtime.quantization` schemes."""
    page_sizes: list[int] = field(default_factory=list)
    """Accepted `runtime.page_size` values; empty = any."""
    op_limits: dict[str, list[str]] = field(default_factory=dict)
    """Shapes that the chip's own implementation of an op takes, by op, such as `run_experts: [experts % 4 == 0]`.

    A demand is `TRAIT in {A, B}`, `TRAIT % N == 0` or `TRAIT <= N`; where one is not met the reference op runs.
    """
    figures: dict[str, FigureSource] = field(default_factory=dict)
    """Per figure above: source and quality."""


@dataclass
class ModelConfig:
    """One model: where its files are, and the architecture numbers that planning needs.

    One of `path`, `package`, `hub_id` says where the files are; `runtime.load_format=dummy` needs none.
    The architecture numbers may be null for a model given by path: the loader then reads its `config.json`.
    """

    name: str = MISSING
    """Name typed on the command line; also the served name unless `server.served_model_name` is set."""
    path: Optional[str] = None
    """Local folder (config.json, tokenizer.json, *.safetensors) or a .gguf file."""
    package: Optional[str] = None
    """`distribution:path/inside/it` of a file that an installed Python distribution carries."""
    hub_id: Optional[str] = None
    """Hugging Face repository, downloaded where the network allows."""
    revision: Optional[str] = None
    """Commit or tag of `hub_id`; version of the distribution that `package` names."""
    architecture: Optional[str] = None
    """Class name as in config.json's `architectures`."""
    hidden_size: Optional[int] = None
    intermediate_size: Optional[int] = None
    num_hidden_layers: Optional[int] = None
    num_attention_heads: Optional[int] = None
    num_key_value_heads: Optional[int] = None
    head_dim: Optional[int] = None
    vocab_size: Optional[int] = None
    max_position_embeddings: Optional[int] = None
    """Trained context length in tokens."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Whether q, k and v projections carry a bias (Qwen2)."""
    num_experts: Optional[int] = None
    num_experts_per_tok: Optional[int] = None
    norm_topk_prob: Optional[bool] = None
    """Whether the weights of a token's experts are scaled to sum to 1; null = as the architecture does, or false."""
    moe_intermediate_size: Optional[int] = None
    num_shared_experts: Optional[int] = None
    first_dense_layers: int = 0
    """Leading layers with a dense MLP in a MoE model."""
    kv_lora_rank: Optional[int] = None
    """Width of the compressed KV of multi-head latent attention (DeepSeek)."""
    qk_rope_head_dim: Optional[int] = None
    """Width of the part of every query and key that turns with its position, beside those of `head_dim`."""
    qk_nope_head_dim: Optional[int] = None
    """Width of the part that does not; null = `head_dim`."""
    v_head_dim: Optional[int] = None
    """Width of every head's value; null = `head_dim`."""
    q_lora_rank: Optional[int] = None
    """Width of the compressed query; null = queries are not compressed."""


@dataclass
class DenyConfig:
    """An op's implementation that is not to be used on a chip."""

    provider: Optional[str] = None
    """Whose implementation; null = everybody's, so that the reference op runs."""
    reason: str = MISSING
    """Shown wherever the choice is."""


@dataclass
class BackendConfig:
    """The chip's software plugin."""

    name: str = "auto"
    """Plugin name; `auto` = the one that the chip names, which it is replaced by after composition."""
    fallback: str = "warn"
    """What happens where the plugin has no op for a shape: `allow`, `warn` or `forbid` the reference op."""
    deny: dict[str, DenyConfig] = field(default_factory=dict)
    """Ops whose implementation is known to be wrong or slow, by name."""
    quarantine: bool = False
    """Run the reference op in place of an implementation that was caught returning NaN or infinity."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that the plugin's libraries read when they load; one that is set already stays."""
    options: dict[str, Any] = field(default_factory=dict)
    """Free-form options handed to the plugin."""
    visible_devices: Optional[str] = None
    """Environment variable by which the chip's libraries choose among its devices, for engines that are not sglk's."""
    upstream: dict[str, UpstreamConfig] = field(default_factory=dict)
    """What engines that are not sglk's own need on the chip, by their names."""
    container: ContainerConfig = field(default_factory=ContainerConfig)
    """How a container gets the chip's devices, for rendered files."""


@dataclass
class RuntimeConfig:
    """Runtime parameters, under SGLang's names: what `sglk tune` searches and a profile carries."""

    chunked_prefill_size: int = 2048
    """Most prompt tokens computed in one step for one request; -1 = no chunking."""
    max_prefill_tokens: int = 16384
    """Most prompt tokens of one step, all requests together."""
    max_running_requests: int = 32
    """Window: most requests that decode together."""
    enable_mixed_chunk: bool = False
    """Compute prompt chunks and decodes in one step, instead of in turns."""
    mem_fraction_static: float = 0.8
    """Share of device memory for weights and KV pool together."""
    max_total_tokens: Optional[int] = None
    """Size of the KV pool in tokens; null = what `mem_fraction_static` leaves after the weights."""
    schedule_policy: str = "fcfs"
    """`fcfs`, `lpm` (longest prefix match) or `shortest_prompt_first`."""
    schedule_conservativeness: float = 1.0
    """Above 1 admits fewer requests (fewer retractions), below 1 more."""
    page_size: int = 16
    """KV tokens per page; prefixes are shared in whole pages."""
    radix_min_len: int = 0
    """Shortest prefix, in tokens, that the prefix cache keeps or reuses; 0 = every whole page."""
    disable_radix_cache: bool = False
    kv_cache_dtype: str = "auto"
    """`auto` (the compute dtype) or a dtype that the chip declares."""
    dtype: str = "auto"
    """Compute dtype: `auto`, `fp32`, `bf16`, `fp16`."""
    quantization: Optional[str] = None
    """Weight scheme that the chip declares; null = as stored in the checkpoint."""
    load_format: str = "auto"
    """`auto`, `safetensors`, `gguf`, or `dummy` (random weights from the shape alone)."""
    context_length: Optional[int] = None
    """Most tokens of prompt and answer together; null = the model's own."""
    allow_auto_truncate: bool = False
    """Cut an over-long prompt from the left, leaving room for the answer, instead of refusing it."""
    tp_size: Optional[int] = None
    """Tensor-parallel devices per replica; null = as few as hold the weights and one request of full length."""
    enable_deterministic_inference: Optional[bool] = None
    """Give a request the same bits on any number of tensor-parallel devices, for more traffic between them.

    null = as the backend has it (on the cpu: yes). For another engine its own setting, which is off unless true.
    """
    device_memory_gib: Optional[float] = None
    """Memory to plan with; null = the chip's own or what the device reports."""
    num_threads: Optional[int] = None
    """Compute threads of a CPU device, shared out between its tensor-parallel parts; null = all cores."""
    enable_torch_compile: bool = False
    disable_cuda_graph: bool = False
    """Launch each kernel of a decode step on its own; of no effect on backends without graph capture."""
    nan_guard: bool = True
    """Catch NaN and infinity in every prompt chunk, and compute a step that has some again to name the op."""
    random_seed: int = 0
    """Seed of requests that bring none, and of dummy weights."""


@dataclass
class ServerConfig:
    """The HTTP entry."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 = any free port; the chosen one is printed."""
    api_key: Optional[str] = None
    """Bearer key of the OpenAI and native routes; null = what `api_key_file` or $SGLK_API_KEY says, else open."""
    api_key_file: Optional[str] = None
    """File that holds `api_key` and nothing else; a command line is seen by every user of the machine."""
    admin_api_key: Optional[str] = None
    """Bearer key of the admin routes; null = from `admin_api_key_file` or $SGLK_ADMIN_API_KEY, else as `api_key`."""
    admin_api_key_file: Optional[str] = None
    """File that holds `admin_api_key`."""
    cors_origins: list[str] = field(default_factory=list)
    """Web sites whose pages may call the server, such as https://chat.example.com; none unless they are listed."""
    ssl_certfile: Optional[str] = None
    """PEM file with the certificate (and those between it and the root); null = plain HTTP."""
    ssl_keyfile: Optional[str] = None
    """PEM file with its private key; null = it is in `ssl_certfile`."""
    served_model_name: Optional[str] = None
    """Model name in the API; null = `model.name`."""
    chat_template: Optional[str] = None
    """File with a jinja2 chat template; null = the tokenizer's own."""
    log_level: str = "info"
    log_format: str = "text"
    """`text`, or `json` for one object per line."""
    otlp_endpoint: Optional[str] = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318; null = no traces."""
    max_queued_requests: int = 1024
    """Requests that may wait; one more gets 429."""
    max_choices: int = 64
    """Largest `n`, and largest number of prompts, in one request."""
    request_timeout_s: float = 3600.0
    """How long a request may take from its arrival in the queue; then it ends with an error (504)."""
    shutdown_timeout_s: float = 30.0
    """How long running requests may take to finish after SIGTERM."""


@dataclass
class GroupConfig:
    """Devices that share one scheduler policy and one share of the traffic."""

    name: str = MISSING
    devices: list[str] = field(default_factory=list)
    """`backend:index`, such as `cuda:0`; each `tp_size` of them in a row are one replica.

    With backend=sim `chip:index` does as well, such as `h100:0`: a simulated device of that chip.
    """
    weight: float = 1.0
    """Relative share of the traffic; ratios count, not the sum."""
    standby: bool = False
    """Take traffic only when no other group can."""
    chip: Optional[str] = None
    """Option of the group `chip` that describes the devices; null = the chosen chip where its backend drives them (or
    they are simulated), else the one named as the devices are."""
    model: Optional[str] = None
    """Option of the group `model`, with the same tokenizer as the chosen one; null = the chosen one."""
    tp_size: Optional[int] = None
    """Tensor-parallel devices per replica; null = `runtime.tp_size`, or a choice among what divides the devices."""
    runtime: dict[str, Any] = field(default_factory=dict)
    """Runtime parameters of this group alone, such as `mem_fraction_static: 0.75`."""
    url: Optional[str] = None
    """In place of devices: a running server with an OpenAI API that answers, such as http://10.0.0.7:8000."""
    api_key_file: Optional[str] = None
    """File with the key that the server at `url` takes."""


@dataclass
class RouterConfig:
    """How requests find their way to device groups, and when a replica is taken out."""

    policy: str = "least_loaded"
    """Inside a group: `least_loaded`, `round_robin`, or `prefix_aware` (where the prompt's beginning is cached)."""
    session_header: str = "x-session-id"
    """Header whose value keeps a conversation on one group; without it the OpenAI field `user` does."""
    weights_file: Optional[str] = None
    """YAML or JSON file `group: weight`, watched; null = none."""
    breaker_failures: int = 3
    """Failed requests in a row that take a replica out."""
    breaker_cool_down_s: float = 5.0
    """How long it stays out before a probe; doubles with each failed one, up to a minute."""
    step_timeout_s: float = 120.0
    """A step that takes longer counts as hung."""
    restart_wait_s: float = 1.0
    """Before the first restart of a replica; doubles with each one that does not help, up to a minute."""
    restart_after_s: float = 30.0
    """A replica that lives but has failed all requests, probes included, for so long is started again."""


@dataclass
class ServeConfig:
    """Root of `serve.yaml`: one deployment."""

    chip: ChipConfig = field(default_factory=ChipConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    groups: Any = None
    """Device groups: `"cuda:0,cpu:0;cuda:1"`, a list of GroupConfig, or null = one group, the first tp_size devices.

    After composition always a `list[GroupConfig]`.
    """
    profile: Optional[ProfileRecord] = None
    """Provenance of the tuned profile in use; null = none."""
