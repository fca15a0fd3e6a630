"""A tokenizer for a model without files: every byte is a token."""

from sglk.errors import ModelLoadError
from sglk.models.byte_level import BOS, CHATML, EOS, IM_END_ID, SPECIAL_TOKENS, byte_tokenizer
from sglk.models.tokenizer import Tokenizer


def dummy_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a byte tokenizer with ChatML for a model of `vocab_size` tokens; raises ModelLoadError below 260."""
    needed = 256 + len(SPECIAL_TOKENS)
    if vocab_size < needed:
        raise ModelLoadError(
            f"vocab_size {vocab_size} is too small for a byte tokenizer ({needed} tokens), and the model has no other; "
            "add its tokenizer.json, or use a larger model.vocab_size"
        )
    return Tokenizer(
        byte_tokenizer(), bos_token=BOS, eos_token=EOS, eos_token_ids=(IM_END_ID,), chat_templates={"default": CHATML}
    )
