import os
import sys

import pytest

import sglk
from sglk.testing.scripted import ScriptedRunner
from tests.server.serving import MODEL, Served, error_of, serving


def test_models_are_listed_and_described(served: Served) -> None:
    (card,) = served.get("/v1/models").json()["data"]

    assert card["id"] == MODEL
    assert card["max_model_len"] == 256
    assert served.get(f"/v1/models/{MODEL}").json() == card


@pytest.mark.parametrize("name", ["other", "org/other"])
def test_an_unknown_model_is_not_found(served: Served, name: str) -> None:
    for response in (
        served.get(f"/v1/models/{name}"),
        served.post("/v1/completions", {"model": name, "prompt": "x"}),
        served.post("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "x"}]}),
    ):
        assert error_of(response, 404)["code"] == "model_not_found"


def test_the_served_name_can_be_set() -> None:
    with serving(server={"served_model_name": "org/chosen"}) as served:
        assert served.get("/v1/models").json()["data"][0]["id"] == "org/chosen"
        assert served.get("/v1/models/org/chosen").status_code == 200
        assert served.post("/v1/completions", {"model": "org/chosen", "prompt": "x"}).status_code == 200


def test_server_info_is_what_a_record_needs(served: Served) -> None:
    served.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "ignore_eos": True})
    info = served.get("/server_info").json()

    assert info["version"] == sglk.__version__
    assert (info["chip"], info["backend"], info["engine"], info["model"]) == ("cpu", "auto", "native", MODEL)
    assert info["runtime"]["max_running_requests"] == 32
    assert info["kv_capacity_tokens"] == 4096
    assert info["device"]["name"] == "scripted"
    assert info["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert info["pid"] == os.getpid()
    assert info["profile"] is None
    assert info["dtype"] == info["kv_cache_dtype"] == "fp32"
    assert info["stats"]["generated_tokens"] >= 2
    assert served.get("/get_server_info").json()["pid"] == info["pid"]


def test_dtypes_and_quantisation_are_those_of_the_loaded_model() -> None:
    runner = ScriptedRunner()
    runner.dtype, runner.kv_cache_dtype, runner.quantization = "bf16", "fp8_e4m3", "w4a16"
    with serving(runner) as served:
        info = served.get("/server_info").json()

    assert (info["dtype"], info["kv_cache_dtype"], info["quantization"]) == ("bf16", "fp8_e4m3", "w4a16")


def test_each_group_tells_what_auto_came_to_on_its_device() -> None:
    runners = {"a": ScriptedRunner(), "b": ScriptedRunner()}
    runners["b"].dtype, runners["b"].kv_cache_dtype = "fp16", "int8"
    with serving(runners) as served:
        groups = served.get("/server_info").json()["groups"]

    told = {each["name"]: each["replicas"][0] for each in groups}
    keys = ("dtype", "kv_cache_dtype", "quantization")
    assert [told["a"][key] for key in keys] == ["fp32", "fp32", None]
    assert [told["b"][key] for key in keys] == ["fp16", "int8", None]


def test_benchmark_clients_find_what_they_read(served: Served) -> None:
    info = served.get("/model_info").json()

    assert info["is_generation"] is True
    assert info["model_path"] == info["tokenizer_path"] == "/models/tiny"
    assert info == served.get("/get_model_info").json()
    assert served.get("/server_info").json()["internal_states"][0]["avg_spec_accept_length"] is None
    assert served.get("/get_load").json()[0]["num_reqs"] == 0
    assert served.get("/version").json() == {"version": sglk.__version__}


def test_the_api_describes_itself(served: Served) -> None:
    paths = served.get("/openapi.json").json()["paths"]
    schema = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    assert "prompt" in schema["properties"]
    assert "/generate" in paths
