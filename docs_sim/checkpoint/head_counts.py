"""The number of attention heads that a config states, which no shape of a fused tensor tells."""

from collections.abc import Mapping

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "attention_heads")
_DEEPEST = 4  # parts of parts
# Where multimodal models keep the config of a part.
_PARTS = {
    "language": ("text_config", "language_config", "llm_config", "thinker_config", "text_model_config"),
    "vision": ("vision_config", "vision_model_config", "visual"),
    "audio": ("audio_config", "speech_config"),
}


def head_count(config: Mapping[str, object], tower: str) -> int | None:
    """The query heads of a part of the model: ``language``, ``vision``, ``audio``; None if the config does not say."""
    for _ in range(_DEEPEST):
        nested = (config.get(part) for part in _PARTS.get(tower, ()))
        config = next((part for part in nested if isinstance(part, Mapping)), config)
    if tower != "language" and any(isinstance(config.get(part), Mapping) for part in _PARTS["language"]):
        return None
    return next((heads for key in _HEADS if type(heads := config.get(key)) is int and heads > 0), None)
