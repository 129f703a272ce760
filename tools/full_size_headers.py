#!/usr/bin/env python3
"""Makes a checkpoint of the full-size model (GLM-5.3-Flash, EXL3 2.12 bpw) for planning.

Headers, shapes, dtypes and file sizes are those of a real conversion: routed experts as stacks of
EXL3 matrices (2 bits, some layers 3, the draft layer 4), everything else in 16 bit, vision tower
included. The data is a hole in a sparse file: 104 GB to look at, a few hundred KiB on the disk.

    tools/full_size_headers.py full-size
    quartet plan --model full-size --gpu-memory 32GiB --gpus 4

With --fill the data is written (random bytes, no usable weights), for measuring how fast a
checkpoint loads; --layers and --experts make it smaller:

    tools/full_size_headers.py read-test --layers 8 --experts 72 --fill
"""

import argparse
import json
import math
import os
import struct
import sys

DTYPE_BYTES = {"F16": 2, "F32": 4, "I16": 2}
HIDDEN = 4096
CONV_KERNEL = 4
KDA_HEADS, KDA_DIM = 64, 128
MLA_HEADS, NOPE, V_DIM = 64, 256, 256
Q_LORA, KV_LORA = 1536, 512
INDEX_HEADS, INDEX_DIM, KPOOL = 32, 128, 4
HC_MULT = 4
DENSE_LAYERS = 3
DENSE_INNER, EXPERT_INNER = 12288, 2048
VISION_DEPTH, VISION_HIDDEN, VISION_INNER, MERGER_INNER = 24, 1024, 4096, 10240
THREE_BIT_LAYERS = (4, 5, 7, 8, 10)
SHARD_BYTES = 5 * 10**9
FILL_BLOCK = 16 << 20


def is_dsa(layer):
    return layer % 4 == 3


def bits_of(layer, layers):
    if layer == layers:
        return 4
    return 3 if layer in THREE_BIT_LAYERS else 2


def make_config(args):
    kinds = ["deepseek_sparse_attention" if is_dsa(i) else "linear_attention" for i in range(args.layers)]
    layer_bits = {str(i): 3 for i in THREE_BIT_LAYERS if i < args.layers}
    layer_bits[str(args.layers)] = 4
    text = {
        "model_type": "glm5_next_text", "dtype": "float16", "vocab_size": args.vocab, "hidden_size": HIDDEN,
        "intermediate_size": DENSE_INNER, "moe_intermediate_size": EXPERT_INNER,
        "num_hidden_layers": args.layers, "num_nextn_predict_layers": 1,
        "num_attention_heads": MLA_HEADS, "num_key_value_heads": MLA_HEADS, "head_dim": 0,
        "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-05,
        "max_position_embeddings": 1048576, "attention_bias": False, "attention_dropout": 0.0,
        "use_cache": True, "tie_word_embeddings": False,
        "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829],
        "first_k_dense_replace": DENSE_LAYERS,
        "mlp_layer_types": ["dense" if i < DENSE_LAYERS else "sparse" for i in range(args.layers)],
        "n_routed_experts": args.experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "moe_router_dtype": "float32",
        "layer_types": kinds, "indexer_types": ["full"] * args.layers,
        "linear_attn_config": {
            "num_heads": KDA_HEADS, "head_dim": KDA_DIM, "short_conv_kernel_size": CONV_KERNEL,
            "gate_lower_bound": -5.0,
            "kda_layers": [i for i in range(args.layers) if not is_dsa(i)],
            "full_attn_layers": [i for i in range(args.layers) if is_dsa(i)],
        },
        "q_lora_rank": Q_LORA, "kv_lora_rank": KV_LORA, "qk_head_dim": NOPE, "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": 0, "v_head_dim": V_DIM, "mla_use_nope": True,
        "index_topk": 2048, "index_head_dim": INDEX_DIM, "index_n_heads": INDEX_HEADS, "index_kpool": KPOOL,
        "index_kpool_compress": True, "index_kpool_always_select_tail": True,
        "index_share_for_mtp_iteration": True, "indexer_rope_interleave": True,
        "mhc": True, "hc_mult": HC_MULT, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20,
    }
    vision = {
        "model_type": "glm5_next_vision", "depth": VISION_DEPTH, "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_INNER, "num_heads": 16, "in_channels": 3, "image_size": 448,
        "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": HIDDEN,
        "projection_intermediate_size": MERGER_INNER, "hidden_act": "silu", "swiglu_limit": 10.0,
        "attention_bias": True, "attention_dropout": 0.0, "rms_norm_eps": 1e-05,
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next",
        "image_token_id": 154854, "video_token_id": 154855, "image_start_token_id": 154830,
        "image_end_token_id": 154831, "video_start_token_id": 154832, "video_end_token_id": 154833,
        "tie_word_embeddings": False, "dtype": "float16",
        "quantization_config": {
            "quant_method": "exl3", "bits": 2, "layer_bits": layer_bits, "codebook": "mcg",
            "tile_order": "sm70_colmajor", "scope": "glm53_routed_experts_only",
        },
        "text_config": text, "vision_config": vision,
    }


def mhc(prefix, hidden):
    rows = HC_MULT * (2 + HC_MULT)
    for site in ("attn", "ffn"):
        yield f"{prefix}hc_{site}_fn", "F16", [rows, HC_MULT * hidden]
        yield f"{prefix}hc_{site}_base", "F32", [rows]
        yield f"{prefix}hc_{site}_scale", "F32", [3]


def kda(prefix, hidden):
    inner = KDA_HEADS * KDA_DIM
    for x in "qkv":
        yield f"{prefix}{x}_proj.weight", "F16", [inner, hidden]
        yield f"{prefix}{x}_conv1d.weight", "F16", [inner, 1, CONV_KERNEL]
    for x in "fg":
        yield f"{prefix}{x}_a_proj.weight", "F16", [KDA_DIM, hidden]
        yield f"{prefix}{x}_b_proj.weight", "F16", [inner, KDA_DIM]
    yield f"{prefix}b_proj.weight", "F16", [KDA_HEADS, hidden]
    yield f"{prefix}A_log", "F32", [KDA_HEADS]
    yield f"{prefix}dt_bias", "F32", [inner]
    yield f"{prefix}o_norm.weight", "F16", [KDA_DIM]
    yield f"{prefix}o_proj.weight", "F16", [hidden, inner]


def dsa(prefix, hidden):
    yield f"{prefix}q_a_proj.weight", "F16", [Q_LORA, hidden]
    yield f"{prefix}q_a_layernorm.weight", "F16", [Q_LORA]
    yield f"{prefix}q_b_proj.weight", "F16", [MLA_HEADS * NOPE, Q_LORA]
    yield f"{prefix}kv_a_proj_with_mqa.weight", "F16", [KV_LORA, hidden]
    yield f"{prefix}kv_a_layernorm.weight", "F16", [KV_LORA]
    yield f"{prefix}kv_b_proj.weight", "F16", [MLA_HEADS * (NOPE + V_DIM), KV_LORA]
    yield f"{prefix}o_proj.weight", "F16", [hidden, MLA_HEADS * V_DIM]
    indexer = prefix + "indexer."
    yield f"{indexer}wq_b.weight", "F16", [INDEX_HEADS * INDEX_DIM, Q_LORA]
    yield f"{indexer}wk.weight", "F16", [INDEX_DIM, hidden]
    yield f"{indexer}weights_proj.weight", "F16", [INDEX_HEADS, hidden]
    yield f"{indexer}k_norm.weight", "F16", [INDEX_DIM]
    yield f"{indexer}k_norm.bias", "F16", [INDEX_DIM]
    yield f"{indexer}index_kpool_compress_ape", "F16", [KPOOL, INDEX_DIM]
    yield f"{indexer}index_kpool_compress_gate", "F16", [INDEX_DIM, hidden]


def mlp(prefix, hidden, inner):
    yield f"{prefix}gate_proj.weight", "F16", [inner, hidden]
    yield f"{prefix}up_proj.weight", "F16", [inner, hidden]
    yield f"{prefix}down_proj.weight", "F16", [hidden, inner]


def moe(prefix, hidden, experts, bits):
    yield f"{prefix}gate.weight", "F16", [experts, hidden]
    yield f"{prefix}gate.e_score_correction_bias", "F32", [experts]
    yield from mlp(prefix + "shared_experts.", hidden, EXPERT_INNER)
    for part, (rows, cols) in (("gate", (hidden, EXPERT_INNER)), ("up", (hidden, EXPERT_INNER)),
                               ("down", (EXPERT_INNER, hidden))):
        stem = f"{prefix}experts.exl3_{part}_"
        yield stem + "trellis", "I16", [experts, rows // 16, cols // 16, 16 * bits]
        yield stem + "suh", "F16", [experts, rows]
        yield stem + "svh", "F16", [experts, cols]


def vision(hidden):
    prefix = "model.visual."
    yield f"{prefix}patch_embed.proj.weight", "F16", [VISION_HIDDEN, 3, 2, 14, 14]
    yield f"{prefix}patch_embed.proj.bias", "F16", [VISION_HIDDEN]
    for i in range(VISION_DEPTH):
        block = f"{prefix}blocks.{i}."
        for norm, size in (("norm1", VISION_HIDDEN), ("norm2", VISION_HIDDEN), ("attn.q_norm", 64),
                           ("attn.k_norm", 64)):
            yield f"{block}{norm}.weight", "F16", [size]
        for name, out, inner in (("attn.qkv", 3 * VISION_HIDDEN, VISION_HIDDEN),
                                 ("attn.proj", VISION_HIDDEN, VISION_HIDDEN),
                                 ("mlp.gate_proj", VISION_INNER, VISION_HIDDEN),
                                 ("mlp.up_proj", VISION_INNER, VISION_HIDDEN),
                                 ("mlp.down_proj", VISION_HIDDEN, VISION_INNER)):
            yield f"{block}{name}.weight", "F16", [out, inner]
            yield f"{block}{name}.bias", "F16", [out]
    yield f"{prefix}post_layernorm.weight", "F16", [VISION_HIDDEN]
    yield f"{prefix}downsample.weight", "F16", [hidden, VISION_HIDDEN, 2, 2]
    yield f"{prefix}downsample.bias", "F16", [hidden]
    yield f"{prefix}merger.proj.weight", "F16", [hidden, hidden]
    yield f"{prefix}merger.post_projection_norm.weight", "F16", [hidden]
    yield f"{prefix}merger.post_projection_norm.bias", "F16", [hidden]
    yield f"{prefix}merger.gate_proj.weight", "F16", [MERGER_INNER, hidden]
    yield f"{prefix}merger.up_proj.weight", "F16", [MERGER_INNER, hidden]
    yield f"{prefix}merger.down_proj.weight", "F16", [hidden, MERGER_INNER]


def all_tensors(args):
    hidden = HIDDEN
    prefix = "model.language_model."
    yield "lm_head.weight", "F16", [args.vocab, hidden]
    yield prefix + "embed_tokens.weight", "F16", [args.vocab, hidden]
    for i in range(args.layers + 1):
        at = f"{prefix}layers.{i}."
        yield at + "input_layernorm.weight", "F16", [hidden]
        yield at + "post_attention_layernorm.weight", "F16", [hidden]
        if i == args.layers:
            for name in ("enorm", "hnorm", "shared_head.norm"):
                yield f"{at}{name}.weight", "F16", [hidden]
            yield at + "eh_proj.weight", "F16", [hidden, 2 * hidden]
            yield from dsa(at + "self_attn.", hidden)
        else:
            yield from mhc(at, hidden)
            yield from (dsa if is_dsa(i) else kda)(at + "self_attn.", hidden)
        if i < DENSE_LAYERS and i < args.layers:
            yield from mlp(at + "mlp.", hidden, DENSE_INNER)
        else:
            yield from moe(at + "mlp.", hidden, args.experts, bits_of(i, args.layers))
    yield prefix + "norm.weight", "F16", [hidden]
    yield from vision(hidden)


def tensor_bytes(tensor):
    _, dtype, shape = tensor
    return DTYPE_BYTES[dtype] * math.prod(shape)


def split_into_shards(tensors):
    shards, size = [[]], 0
    for tensor in tensors:
        if shards[-1] and size + tensor_bytes(tensor) > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor_bytes(tensor)
    return shards


def write_shard(path, tensors, fill):
    header, at = {}, 0
    for tensor in tensors:
        name, dtype, shape = tensor
        end = at + tensor_bytes(tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if not fill:
            file.truncate(8 + len(text) + at)
            return at
        # A fresh turn of one random block each time: cheap, and no two blocks are the same. Turns are even, and of
        # every second byte a bit is cleared, so that numbers of 16 and 32 bits are finite and below 2.
        mask = int.from_bytes(b"\xff\xbf" * (FILL_BLOCK // 2), "little")
        block = (int.from_bytes(os.urandom(FILL_BLOCK), "little") & mask).to_bytes(FILL_BLOCK, "little")
        left, turn = at, 0
        while left > 0:
            turn = (turn + 4098) % FILL_BLOCK
            piece = block[turn:] + block[:turn]
            file.write(piece[:min(left, FILL_BLOCK)])
            left -= FILL_BLOCK
        file.flush()
        os.fsync(file.fileno())
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the checkpoint is written; made if it is missing")
    parser.add_argument("--layers", type=int, default=45, help="layers of the trunk, at least 4 (default 45)")
    parser.add_argument("--experts", type=int, default=288, help="routed experts, at least 8 (default 288)")
    parser.add_argument("--vocab", type=int, default=154880, help="size of the vocabulary (default 154880)")
    parser.add_argument("--fill", action="store_true", help="write random bytes instead of leaving a hole")
    args = parser.parse_args()
    if args.layers < 4 or args.experts < 8:
        sys.exit("expected --layers of at least 4 and --experts of at least 8")
    os.makedirs(args.folder, exist_ok=True)
    with open(os.path.join(args.folder, "config.json"), "w") as file:
        json.dump(make_config(args), file, indent=1)
    shards = split_into_shards(all_tensors(args))
    weight_map, total = {}, 0
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += write_shard(os.path.join(args.folder, name), tensors, args.fill)
        weight_map.update({tensor[0]: name for tensor in tensors})
    with open(os.path.join(args.folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)
    print(f"{args.folder}: {len(weight_map)} tensors, {total / 1e9:.2f} GB in {len(shards)} shards")


if __name__ == "__main__":
    main()
