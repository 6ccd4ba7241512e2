"""Networks of other libraries, small: Hugging Face transformers, PEFT and timm. Nothing here is imported before use.

A network takes tokens and a mask of padding, or images. ``LIBRARIES`` maps a library to its cases.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.gradients.layers import Size

CLASSES = 5
Make = Callable[[Size], nn.Module]


# --- data and losses -------------------------------------------------------------------------------------------------


def text(size: Size, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tokens, the mask of their padding, and a class."""
    mask = torch.ones(size.rows, size.length, dtype=torch.long)
    for row in range(size.rows):
        mask[row, size.length - row % 3 :] = 0
    tokens = torch.randint(0, vocabulary(size), (size.rows, size.length))
    return tokens, mask, torch.arange(size.rows) % 2


def images(size: Size, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return torch.randn(size.rows, 3, 32, 32, dtype=dtype), torch.arange(size.rows) % CLASSES


def next_token(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask, _ = batch
    scores = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    return F.cross_entropy(scores[:, :-1].mT, tokens[:, 1:], reduction="none").mean(1)


def masked_token(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask, _ = batch
    return F.cross_entropy(model(input_ids=tokens, attention_mask=mask).logits.mT, tokens, reduction="none").mean(1)


def sequence_class(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask, label = batch
    return F.cross_entropy(model(input_ids=tokens, attention_mask=mask).logits, label, reduction="none")


def translation(model: nn.Module, batch: Any) -> Tensor:
    tokens, mask, _ = batch
    found = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens, use_cache=False)
    return F.cross_entropy(found.logits.mT, tokens, reduction="none").mean(1)


def image_class(model: nn.Module, batch: Any) -> Tensor:
    found: Any = model(batch[0])
    return F.cross_entropy(getattr(found, "logits", found), batch[1], reduction="none")


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def vocabulary(size: Size) -> int:
    return 20 * size.width


def depth(size: Size) -> int:
    return 2 if size.width < 32 else 4


def hugging(model: str, config: str, **settings: Any) -> Make:
    """A model of transformers; a setting may be a function of the size."""

    def make(size: Size) -> nn.Module:
        import transformers

        given = {name: value(size) if callable(value) else value for name, value in settings.items()}
        return getattr(transformers, model)(getattr(transformers, config)(vocab_size=vocabulary(size), **given))

    return make


def hidden(size: Size) -> int:
    return 2 * size.width


def twice(size: Size) -> int:
    return 2 * hidden(size)


def length(size: Size) -> int:
    return size.length


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {
    "n_positions": length, "n_embd": hidden, "n_layer": depth, "n_head": 4, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
    "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BERT = {
    "hidden_size": hidden, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": twice,
    "max_position_embeddings": lambda s: s.length + 3, **NO_DROPOUT,
}  # fmt: skip
DISTILBERT = {
    "dim": hidden, "n_layers": depth, "n_heads": 4, "hidden_dim": twice, "max_position_embeddings": length,
    "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
}  # fmt: skip
LLAMA = {
    "hidden_size": hidden, "num_hidden_layers": depth, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": twice, "max_position_embeddings": length,
}  # fmt: skip
T5 = {
    "d_model": hidden, "d_kv": lambda s: hidden(s) // 4, "d_ff": twice, "num_layers": depth, "num_heads": 4,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "d_model": hidden, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": twice, "decoder_ffn_dim": twice,
    "max_position_embeddings": length, "dropout": 0.0,
}  # fmt: skip
VIT = {
    "hidden_size": hidden, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": twice,
    "image_size": 32, "patch_size": 8, "num_labels": CLASSES, **NO_DROPOUT,
}  # fmt: skip
MIXTRAL = LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 2}


def vit(size: Size) -> nn.Module:
    import transformers

    given = {name: value(size) if callable(value) else value for name, value in VIT.items()}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**given))


def checkpointed(make: Make, **settings: Any) -> Make:
    def with_checkpoints(size: Size) -> nn.Module:
        model: Any = make(size).train()
        model.gradient_checkpointing_enable(settings)
        if settings["use_reentrant"]:
            model.enable_input_require_grads()
        return model

    return with_checkpoints


GPT2_LM = hugging("GPT2LMHeadModel", "GPT2Config", **GPT2)
BERT_CLASSES = hugging("BertForSequenceClassification", "BertConfig", **BERT)
LLAMA_LM = hugging("LlamaForCausalLM", "LlamaConfig", **LLAMA)
TRANSFORMERS = {
    "GPT-2, tied": (GPT2_LM, next_token),
    "GPT-2, untied": (hugging("GPT2LMHeadModel", "GPT2Config", tie_word_embeddings=False, **GPT2), next_token),
    "GPT-2, eager attention": (
        hugging("GPT2LMHeadModel", "GPT2Config", attn_implementation="eager", **GPT2), next_token,
    ),
    "GPT-2, reentrant checkpoints": (checkpointed(GPT2_LM, use_reentrant=True), next_token),
    "BERT, classes": (BERT_CLASSES, sequence_class),
    "BERT, masked tokens": (hugging("BertForMaskedLM", "BertConfig", **BERT), masked_token),
    "RoBERTa, classes": (hugging("RobertaForSequenceClassification", "RobertaConfig", **BERT), sequence_class),
    "DistilBERT, classes": (
        hugging("DistilBertForSequenceClassification", "DistilBertConfig", **DISTILBERT), sequence_class,
    ),
    "Llama": (LLAMA_LM, next_token),
    "Llama, tied": (hugging("LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=True, **LLAMA), next_token),
    "Llama, checkpoints": (checkpointed(LLAMA_LM, use_reentrant=False), next_token),
    "Mixtral, batched experts": (
        hugging("MixtralForCausalLM", "MixtralConfig", experts_implementation="batched_mm", **MIXTRAL), next_token,
    ),
    "Mixtral, experts by nonzero": (
        hugging("MixtralForCausalLM", "MixtralConfig", experts_implementation="eager", **MIXTRAL), next_token,
    ),
    "T5": (hugging("T5ForConditionalGeneration", "T5Config", **T5), translation),
    "BART": (hugging("BartForConditionalGeneration", "BartConfig", **BART), translation),
    "ViT": (vit, image_class),
}  # fmt: skip


# --- PEFT ------------------------------------------------------------------------------------------------------------


def lora(make: Make, *targets: str, **settings: Any) -> Make:
    def adapted(size: Size) -> nn.Module:
        import peft

        options = {"r": 4, "target_modules": list(targets), "init_lora_weights": False, **settings}
        return peft.get_peft_model(make(size), peft.LoraConfig(**options))  # pyright: ignore[reportArgumentType]

    return adapted


PEFT = {
    "LoRA of GPT-2": (lora(GPT2_LM, "c_attn", fan_in_fan_out=True), next_token),
    "LoRA of Llama": (lora(LLAMA_LM, "q_proj", "v_proj"), next_token),
    "LoRA of Llama and its embedding": (lora(LLAMA_LM, "q_proj", "embed_tokens"), next_token),
    "DoRA of Llama": (lora(LLAMA_LM, "q_proj", "v_proj", use_dora=True), next_token),
    "LoRA of BERT, new head": (
        lora(BERT_CLASSES, "query", "value", modules_to_save=["classifier"]), sequence_class,
    ),
}  # fmt: skip


# --- timm ------------------------------------------------------------------------------------------------------------


def timm(name: str, **settings: Any) -> Make:
    def make(size: Size) -> nn.Module:
        import timm

        given = {key: value(size) if callable(value) else value for key, value in settings.items()}
        return timm.create_model(name, num_classes=CLASSES, pretrained=False, **given)

    return make


def in_groups(size: Size) -> Callable[..., nn.Module]:
    return lambda channels, **_: nn.GroupNorm(2, channels)


TRANSFORMER = {"img_size": 32, "patch_size": 8, "embed_dim": hidden, "depth": depth, "num_heads": 4}
WINDOWS = {
    "img_size": 32, "patch_size": 4, "embed_dim": lambda s: 2 * s.width, "depths": (2, 2), "num_heads": (2, 2),
    "window_size": 4, "drop_path_rate": 0.0,
}  # fmt: skip
STAGES = {"layers": (1, 1, 1, 1), "channels": lambda s: (s.width, s.width, 2 * s.width, 2 * s.width)}
TIMM = {
    "ViT": timm("vit_tiny_patch16_224", **TRANSFORMER),
    "ViT, layer scale, normalised queries": timm(
        "vit_tiny_patch16_224", init_values=0.1, qk_norm=True, **TRANSFORMER
    ),
    "DeiT, distilled": timm("deit_tiny_distilled_patch16_224", **TRANSFORMER),
    "ConvNeXt": timm(
        "convnext_atto", depths=(1, 1, 1, 1), dims=lambda s: (s.width, s.width, 2 * s.width, 2 * s.width)
    ),
    "Swin": timm("swin_tiny_patch4_window7_224", **WINDOWS),
    "Swin v2": timm("swinv2_tiny_window8_256", **WINDOWS),
    "ResNet, GroupNorm": timm("resnet18", norm_layer=in_groups, **STAGES),
    "EfficientNet, GroupNorm": timm("efficientnet_b0", norm_layer=in_groups, drop_path_rate=0.0),
}  # fmt: skip

LIBRARIES = {
    "transformers": {
        name: (make, text if loss is not image_class else images, loss) for name, (make, loss) in TRANSFORMERS.items()
    },
    "peft": {name: (make, text, loss) for name, (make, loss) in PEFT.items()},
    "timm": {name: (make, images, image_class) for name, make in TIMM.items()},
}
