"""Reference decoder for EXL3 (exllamav3 trellis) weights. numpy only, clear before fast.

Notation: K bits per weight, tile = 16x16 weights, t = trellis position 0..255,
(r, c) = row (input dim) and column (output dim) inside the tile, y = x @ W.

Everything up to and including `inner_matrix` is integer / fp16 arithmetic with one rounding per
weight and must match any other decoder bit for bit.
"""
import numpy as np

MCG_MULT, MUL1_MULT = 0xCBAC1FED, 0x83DCD12D        # also the values of the .mcg / .mul1 marker tensors
DEF_MULT, DEF_ADD = 89226354, 64248484              # default ("3inst") codebook
COLMAJOR_MARKER = 0x70C0                            # value of the optional per-tensor .tile_order tensor
HAD = 128


# ---------------------------------------------------------------- tile orders
def tile_order(name: str) -> np.ndarray:
    """perm[t] = r * 16 + c: which tile element trellis position t holds."""
    t = np.arange(256)
    if name in ("colmajor", "sm70_colmajor"):
        return (t % 16) * 16 + t // 16
    if name in ("sm80", "standard"):
        lane, j = t // 8, t % 8                      # 8 positions per mma.m16n8k16 lane
        r = 2 * (lane % 4) + (j & 1) + 8 * ((j >> 1) & 1)
        c = lane // 4 + 8 * (j >> 2)
        return r * 16 + c
    raise ValueError(f"unknown EXL3 tile order {name!r}")


def position(order: str, r: int, c: int) -> int:
    """Closed form of the inverse permutation (used by kernels)."""
    if order in ("colmajor", "sm70_colmajor"):
        return 16 * c + r
    lane = (c & 7) * 4 + ((r & 7) >> 1)
    return lane * 8 + (c >> 3) * 4 + (r >> 3) * 2 + (r & 1)


# ---------------------------------------------------------------- bit stream
def words32(trellis: np.ndarray) -> np.ndarray:
    """int16 [..., 16K] -> uint32 [..., 8K]; bit 0 of the stream is the MSB of word 0."""
    w = np.ascontiguousarray(trellis).view(np.uint16).astype(np.uint32)
    return w[..., 0::2] | (w[..., 1::2] << 16)      # == plain little-endian uint32 load


def states(trellis: np.ndarray) -> np.ndarray:
    """int16 [..., 16K] -> uint32 [..., 256]: the 16-bit trellis state at every position."""
    w = words32(trellis).astype(np.uint64)
    nw = w.shape[-1]
    K = nw // 8
    end = (np.arange(256) + 1) * K                   # the state ends (exclusive) at stream bit (t+1)K
    start = (end - 16) % (32 * nw)                   # tail-biting: indices wrap modulo 256K bits
    a, b = w[..., start // 32], w[..., (start // 32 + 1) % nw]
    return (((a << np.uint64(32)) | b) >> (48 - start % 32).astype(np.uint64)).astype(np.uint32) & 0xFFFF


def pack(st: np.ndarray, K: int) -> np.ndarray:
    """states [..., 256] -> int16 [..., 16K]. Only the low K bits of each state are stored."""
    sym = st.astype(np.uint32) & ((1 << K) - 1)
    bits = (sym[..., None] >> np.arange(K - 1, -1, -1, dtype=np.uint32)) & 1
    bits = bits.reshape(*sym.shape[:-1], 16 * K, 16)
    h = (bits << np.arange(15, -1, -1, dtype=np.uint32)).sum(-1).astype(np.uint16)
    h = h.reshape(*h.shape[:-1], 8 * K, 2)[..., ::-1]            # swap halves of every 32-bit word
    return np.ascontiguousarray(h.reshape(*sym.shape[:-1], 16 * K)).view(np.int16)


def is_valid_walk(st: np.ndarray, K: int) -> bool:
    """True if consecutive (cyclic) states overlap in 16-K bits, i.e. can be packed without loss."""
    prev = np.roll(st, 1, axis=-1)
    return bool(np.all((st.astype(np.uint32) >> K) == (prev.astype(np.uint32) & ((1 << (16 - K)) - 1))))


# ---------------------------------------------------------------- codebooks
def _half(u: np.ndarray) -> np.ndarray:
    return u.astype(np.uint16).view(np.float16).astype(np.float32)


def codebook(st: np.ndarray, cb: str) -> np.ndarray:
    """16-bit states -> float16 values; cb in {'mcg', 'mul1', '3inst'}."""
    s = st.astype(np.uint64)
    if cb == "mul1":
        x = (s * MUL1_MULT) & 0xFFFFFFFF
        total = sum((x >> np.uint64(8 * i)) & np.uint64(0xFF) for i in range(4)) + np.uint64(0x6400)
        scale, bias = _half(np.array([0x1EEE])), _half(np.array([0xC931]))
        return (_half(total) * scale + bias).astype(np.float16)  # fp16 FMA: exact product, one rounding
    if cb == "mcg":
        x = s * MCG_MULT
    elif cb == "3inst":
        x = s * DEF_MULT + DEF_ADD
    else:
        raise ValueError(cb)
    x = ((x & np.uint64(0xFFFFFFFF)) & np.uint64(0x8FFF8FFF)) ^ np.uint64(0x3B603B60)
    return (_half(x & np.uint64(0xFFFF)) + _half(x >> np.uint64(16))).astype(np.float16)


# ---------------------------------------------------------------- matrices
def tiles_to_matrix(tiles: np.ndarray) -> np.ndarray:
    kt, nt = tiles.shape[:2]
    return np.ascontiguousarray(tiles.reshape(kt, nt, 16, 16).transpose(0, 2, 1, 3)).reshape(kt * 16, nt * 16)


def matrix_to_tiles(m: np.ndarray) -> np.ndarray:
    k, n = m.shape
    return np.ascontiguousarray(m.reshape(k // 16, 16, n // 16, 16).transpose(0, 2, 1, 3)).reshape(k // 16, n // 16, 256)


def inner_matrix(trellis: np.ndarray, cb: str = "mcg", order: str = "sm80") -> np.ndarray:
    """int16 [k/16, n/16, 16K] -> float16 [k, n] in the rotated basis."""
    vals = codebook(states(trellis), cb)
    tiles = np.empty_like(vals)
    tiles[..., tile_order(order)] = vals
    return tiles_to_matrix(tiles)


def hadamard(n: int = HAD) -> np.ndarray:
    h = np.ones((1, 1))
    while h.shape[0] < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def had_rows(m: np.ndarray) -> np.ndarray:           # blockwise H on the left (input dimension)
    return (hadamard() @ m.reshape(-1, HAD, m.shape[1])).reshape(m.shape)


def had_cols(m: np.ndarray) -> np.ndarray:           # blockwise H on the right (output dimension)
    return (m.reshape(m.shape[0], -1, HAD) @ hadamard()).reshape(m.shape)


def unpack_signs(bits: np.ndarray) -> np.ndarray:
    """Legacy .su/.sv (int16 bit field, LSB first, 1 = negative) -> float16 +-1."""
    b = (np.ascontiguousarray(bits).view(np.uint16)[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    return (1.0 - 2.0 * b.reshape(-1)).astype(np.float16)


def reconstruct(trellis, suh, svh, cb: str = "mcg", order: str = "sm80") -> np.ndarray:
    """Full weight in float64: W = diag(suh) . H . inner . H . diag(svh)."""
    w = had_cols(had_rows(inner_matrix(trellis, cb, order).astype(np.float64)))
    return suh.astype(np.float64)[:, None] * w * svh.astype(np.float64)[None, :]


def forward(x, trellis, suh, svh, cb="mcg", order="sm80", bias=None) -> np.ndarray:
    """The factored evaluation a kernel uses; float64, no intermediate rounding."""
    z = had_cols(x.astype(np.float64) * suh.astype(np.float64))
    y = had_cols(z @ inner_matrix(trellis, cb, order).astype(np.float64)) * svh.astype(np.float64)
    return y if bias is None else y + bias


# ---------------------------------------------------------------- re-encoding between tile orders
def viterbi(tile: np.ndarray, K: int, cb: str) -> np.ndarray:
    """256 target values in position order -> 256 states (tail-biting, two passes)."""
    E, nb = 1 << (16 - K), 1 << K                    # edge = low 16-K bits of a state
    edge = np.arange(E)
    st = (np.arange(nb)[:, None] << (16 - K)) | edge[None, :]    # [branch, edge] -> state
    prev, val = st >> K, codebook(st, cb).astype(np.float32)

    def run(first, fixed):
        cost, back = np.zeros(E, np.float32), np.empty((256, E), np.int64)
        if fixed is not None:
            cost = np.full(E, np.inf, np.float32)
            cost[fixed] = 0.0
        for i in range(256):
            p = (first + i) % 256
            c = cost[prev] + (val - np.float32(tile[p])) ** 2
            b = c.argmin(0)
            cost, back[p] = c[b, edge], prev[b, edge]
        return cost, back

    cost, back = run(128, None)                      # pass 1: free ends, starts mid-tile
    e = int(cost.argmin())
    for p in list(range(127, -1, -1)):               # walk back to the edge in front of position 0
        e = int(back[p][e])
    start = e
    _, back = run(0, start)                          # pass 2: forced to start and end in that edge
    out = np.empty(256, np.uint32)
    for p in range(255, -1, -1):
        q = int(back[p][e])
        out[p], e = (q << K) | e, q
    return out


def convert_order(trellis, src: str, dst: str, cb: str = "mcg") -> np.ndarray:
    """LOSSY: decode in `src` order and re-run Viterbi in `dst` order."""
    K = trellis.shape[-1] // 16
    t = matrix_to_tiles(inner_matrix(trellis, cb, src))[..., tile_order(dst)]
    return np.stack([[pack(viterbi(x, K, cb), K) for x in row] for row in t])


def strip_major(trellis: np.ndarray, strip: int = 2) -> np.ndarray:
    """LOSSLESS load-time reorder: [k/16, n/16, 16K] -> [n/(16 strip), k/16, strip, 16K]."""
    kt, nt, w = trellis.shape
    return np.ascontiguousarray(trellis.reshape(kt, nt // strip, strip, w).transpose(1, 0, 2, 3))
