"""The canonical names of weight matrices, the names that people type for them, and which side holds the neurons."""

import difflib
import re

from docs_sim.errors import InputError, shown

# torch stores (out, in). Neurons that read from the space of width n are the rows: their matrix is transposed to
# (n, m). Neurons that write into it are the columns: stored as (n, m). This is the convention of the DOCS paper.
WRITERS = frozenset({"attn_o", "mlp_down", "cross_o"})
# Their neurons live elsewhere than in the residual stream: behind a compression, or in the other stack.
NOT_OF_THE_STREAM = frozenset({"attn_q_b", "attn_kv_b", "cross_k", "cross_v"})

ALIASES: dict[str, tuple[str, ...]] = {
    "attn_q": ("q", "q_proj", "wq", "W_q", "query", "self_attn.q_proj"),
    "attn_k": ("k", "k_proj", "wk", "W_k", "key", "self_attn.k_proj"),
    "attn_v": ("v", "v_proj", "wv", "W_v", "value", "self_attn.v_proj"),
    "attn_o": ("o", "o_proj", "wo", "W_o", "out_proj", "attn_output", "self_attn.o_proj"),
    "mlp_gate": ("gate", "gate_proj", "ffn_gate", "w1", "mlp.gate_proj"),
    "mlp_up": ("up", "up_proj", "ffn_up", "w3", "c_fc", "intermediate", "mlp.up_proj"),
    "mlp_down": ("down", "down_proj", "ffn_down", "w2", "mlp.down_proj"),
    "router": (),
    "embed": ("embedding", "embeddings", "embed_tokens", "wte", "token_embd"),
    "lm_head": ("head", "output"),
    "cross_q": (),
    "cross_k": (),
    "cross_v": (),
    "cross_o": (),
    "attn_gate": (),
    "attn_q_a": ("q_a_proj",),
    "attn_q_b": ("q_b_proj",),
    "attn_kv_a": ("kv_a_proj", "kv_a_proj_with_mqa"),
    "attn_kv_b": ("kv_b_proj",),
}


def _plain(name: str) -> str:
    return re.sub(r"[-_.\s]", "", name).lower()


_BY_PLAIN_NAME = {_plain(alias): name for name, aliases in ALIASES.items() for alias in (name, *aliases)}


def canonical_name(name: str) -> str:
    """The canonical name for what a user typed; case, ``-``, ``_`` and ``.`` do not matter.

    Raises:
        InputError: if nothing is called that; the message proposes the nearest names.

    >>> canonical_name("MLP-UP"), canonical_name("q_proj")
    ('mlp_up', 'attn_q')
    """
    plain = _plain(str(name))
    if plain in _BY_PLAIN_NAME:
        return _BY_PLAIN_NAME[plain]
    nearest = dict.fromkeys(_BY_PLAIN_NAME[match] for match in difflib.get_close_matches(plain, _BY_PLAIN_NAME))
    proposal = f"did you mean {' or '.join(nearest)}?" if nearest else f"known names: {', '.join(ALIASES)}"
    raise InputError(f"unknown matrix name {shown(name)}; {proposal}")
