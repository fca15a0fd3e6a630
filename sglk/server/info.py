"""What is running: `/model_info`, `/server_info`."""

import importlib.metadata
import os
import platform
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

import sglk
from sglk.config.tensor_parallel import ranks_of
from sglk.server.deployment import Deployment, deployment_of
from sglk.server.groups import describe_group
from sglk.server.op_metrics import described

RECORDED_DISTRIBUTIONS = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "fastapi", "uvicorn")
"""Libraries whose versions belong into a record of a measurement."""

router = APIRouter()


@router.get("/model_info")
@router.get("/get_model_info", include_in_schema=False)
async def model_info(request: Request) -> dict[str, Any]:
    """Describe the model (SGLang)."""
    deployment = deployment_of(request)
    path = _model_path(deployment)
    return {
        "model_path": path,
        "tokenizer_path": path,
        "served_model_name": deployment.model_name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": deployment.config.model.revision or "default",
        "load_format": deployment.config.runtime.load_format,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "architectures": [deployment.config.model.architecture] if deployment.config.model.architecture else None,
        "max_model_len": deployment.context_length,
        "vocab_size": deployment.vocab_size,
    }


@router.get("/server_info")
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> dict[str, Any]:
    """Describe the deployment and its state, for records and benchmark clients."""
    deployment = deployment_of(request)
    config, engine, stats = deployment.config, deployment.fleet.first, deployment.fleet.stats()
    path = _model_path(deployment)
    return {
        "version": sglk.__version__,
        "engine": config.engine.name,
        "chip": config.chip.name,
        "backend": config.backend.name,
        "simulated": any(each.simulated for each in deployment.fleet.engines.values()),
        "model": config.model.name,
        "served_model_name": deployment.model_name,
        "model_path": path,
        "tokenizer_path": path,
        "revision": config.model.revision,
        "profile": str(deployment.profile_path) if deployment.profile_path else None,
        "runtime": asdict(engine.runtime),
        "dtype": engine.dtype,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "quantization": engine.quantization,
        "tp_size": ranks_of(engine.runtime),
        "context_length": deployment.context_length,
        "kv_capacity_tokens": stats.kv_capacity_tokens,
        "max_total_num_tokens": stats.kv_capacity_tokens,
        "weights_bytes": engine.weights_bytes,
        "peak_memory_bytes": engine.peak_memory_bytes(),
        "device": {"driver": None, "sdk": None, **engine.device_info},
        "versions": _versions(),
        "pid": os.getpid(),
        "started": deployment.created,
        "ops": {name: described(each.op_report()) for name, each in deployment.fleet.engines.items()},
        "groups": [describe_group(deployment, group) for group in deployment.fleet.router.groups.values()],
        "stats": asdict(stats),
        "internal_states": [{"last_gen_throughput": stats.generation_throughput, "avg_spec_accept_length": None}],
    }


def _model_path(deployment: Deployment) -> str:
    model = deployment.config.model
    return model.path or model.hub_id or model.package or model.name


def _versions() -> dict[str, str]:
    versions = {"sglk": sglk.__version__, "python": platform.python_version()}
    for name in RECORDED_DISTRIBUTIONS:
        versions[name] = importlib.metadata.version(name)
    return versions
