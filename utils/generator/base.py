"""Which models may be fine-tuned to a generator."""

from argparse import Namespace

from utils.cli import UserError
from utils.generation.encoder_decoder import is_encoder_decoder
from utils.models.hub import adapter_base


def check_base(args: Namespace) -> None:
    """Raise UserError where --model_addr is none of the kind that is trained with --lora_rank, or without it."""
    is_text_model = is_encoder_decoder(args.model_addr, args.cache_dir)
    if args.lora_rank is None and not is_text_model:
        hint = "\n  --lora_rank 16 fine-tunes a chat model"
        raise UserError(f"--model_addr {args.model_addr}: no encoder-decoder, such as google/flan-t5-base{hint}")
    if args.lora_rank is not None and (is_text_model or adapter_base(args.model_addr)):
        kind = "an encoder-decoder" if is_text_model else "an adapter"
        raise UserError(f"--lora_rank: {args.model_addr} is {kind}; give a chat model")
    if args.lora_rank is not None and args.fusion == "decoder":
        raise UserError("--fusion decoder: is for an encoder-decoder; leave out --lora_rank, or this")
