"""What both sides of a comparison with PyTorch train with: the optimizer, and the samples of each step in the
order that fsdp_train draws them (runtime/data/sampler.h, runtime/base/random.h)."""
DATA_ORDER_STREAM = 0x5566c0ae6603f17b  # XXH64 of "data order", as runtime/data/sampler.c takes it
OPTIMIZER = {"lr": 1e-3, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "grad_clip": 1.0}


def philox(seed, stream, index):
    """The first word of Philox-4x32-10."""
    word = 0xFFFFFFFF
    c = [index & word, index >> 32, stream & word, stream >> 32]
    k = [seed & word, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & word, (p0 >> 32) ^ c[3] ^ k[1], p0 & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c[0]


def permute(seed, stream, size, index):
    half_bits = 1
    while half_bits < 31 and 1 << (2 * half_bits) < size:
        half_bits += 1
    mask, value = (1 << half_bits) - 1, index
    while True:
        left, right = (value >> half_bits) & mask, value & mask
        for turn in range(4):
            left, right = right, left ^ (philox(seed, stream ^ (turn << 61), right) & mask)
        value = left << half_bits | right
        if value < size:
            return value


def step_samples(args, sample_count, step):
    """The samples of a step, rank after rank."""
    batch = args.ranks * args.batch
    epoch, step = divmod(step, sample_count // batch)
    return [permute(0, DATA_ORDER_STREAM ^ epoch, sample_count, step * batch + i) for i in range(batch)]
