"""Errors of predicted steps: by source, by scale, in all, and of ratios within a source."""
import itertools
import statistics


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(errors):
    """Number, median and 90th percentile of |error|, mean error with its sign, share within 25%."""
    sizes = [abs(e) for e in errors]
    return (len(sizes), statistics.median(sizes), quantile(sizes, 0.9), statistics.fmean(errors),
            sum(s <= 0.25 for s in sizes) / len(sizes))


def scale_of(row):
    for limit in (8, 64, 512):
        if row.gpus <= limit:
            return f"up to {limit} GPUs"
    return "more GPUs"


def groups(results):
    """Names and errors of what has a score, in the order to print."""
    scored = [r for r in results if r.error is not None]
    named = [("trusted first", [r for r in scored if r.row.trusted()])]
    for key in sorted({(r.row.source, r.row.gpu) for r in scored}):
        named.append((f"{key[0]} {key[1]}", [r for r in scored if (r.row.source, r.row.gpu) == key]))
    for name in ("up to 8 GPUs", "up to 64 GPUs", "up to 512 GPUs", "more GPUs"):
        named.append((name, [r for r in scored if scale_of(r.row) == name]))
    named.append(("all", scored))
    return [(name, [r.error for r in members]) for name, members in named if members]


FACTORS = ("seq", "gpus", "recompute", "tp")
# What may differ too: more ranks of tensor parallelism are more GPUs where those that share data stay.
FOLLOWS = {"tp": ("gpus",)}


def _alike(row, factor):
    """What two rows of a pair have in common: all but the factor, and what follows from it."""
    same = [row.source, row.gpu, row.params - (row.seq * row.hidden if row.family == "mpt" else 0),
            row.compute_dtype, row.framework, row.cp]
    free = (factor, *FOLLOWS.get(factor, ()))
    return tuple(same + [getattr(row, f) for f in FACTORS if f not in free])


class Pair:
    """Tokens/s of the second over the first: predicted, published, error. Where values of the factor lie
    between the two rows' ones, they are no neighbours."""

    def __init__(self, factor, first, second, neighbours):
        self.factor, self.neighbours = factor, neighbours
        self.first, self.second = first.row.id, second.row.id
        self.predicted = second.tok_s_gpu / first.tok_s_gpu
        self.published = second.row.tok_s_gpu / first.row.tok_s_gpu
        self.error = self.predicted / self.published - 1


def ratios(results):
    """Every two priced rows of a source, GPU, model and framework that differ in one factor (and, where the
    source changed it too, in the micro-batch), by factor."""
    pairs = []
    priced = [r for r in results if r.predicted_ms]
    for factor in FACTORS:
        families = {}
        for r in priced:
            families.setdefault(_alike(r.row, factor), []).append(r)
        for members in families.values():
            values = sorted({getattr(r.row, factor) for r in members})
            members.sort(key=lambda r: (getattr(r.row, factor), r.row.gpus, r.row.micro_batch))
            for a, b in itertools.combinations(members, 2):
                steps = values.index(getattr(b.row, factor)) - values.index(getattr(a.row, factor))
                if steps:
                    pairs.append(Pair(factor, a, b, steps == 1))
    return pairs
