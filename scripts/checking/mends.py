"""What to change: each kernel's share of its price on an H200, and the first mends by milliseconds.

A mend is a kernel that takes longer than its price, a kernel of attention that was faster than the one that
the step runs, or time in which no kernel runs.
"""
import statistics

FIRST = 3
LEAST_MS = 0.1  # of a step: less is not listed
BETWEEN = 0.01  # of a step without a kernel: less is how launches are timed


def kernel_rows(kernels):
    """(label, milliseconds in a step, those of the price), the greatest loss first."""
    rows = [(line["label"], line["us"] * line["count"] / 1e3, line["price_us"] * line["count"] / 1e3)
            for line in kernels]
    return sorted(rows, key=lambda row: row[2] - row[1])


def other_attention(kernels, attention):
    """Mends by kernels that the step did not run; `attention`: microseconds by label, by kernel."""
    found = []
    for line in kernels:
        label = line["label"]
        timed = [(us[label], kernel) for kernel, us in attention.items() if label in us]
        if not timed:
            continue
        us, kernel = min(timed)
        gain = (line["us"] - us) * line["count"] / 1e3
        if gain > LEAST_MS:
            found.append((gain, f"{label} by {kernel}: {us:.0f} us in place of {line['us']:.0f}"))
    return found


def between_kernels(kernels, step_s):
    """The step's time beyond its kernels one after the other."""
    if not step_s:
        return []
    kernels_ms = sum(line["us"] * line["count"] for line in kernels) / 1e3
    gap = 1e3 * step_s - kernels_ms
    return [(gap, f"no kernel runs: a step takes {1e3 * step_s:.1f} ms, its kernels {kernels_ms:.1f}")] \
        if gap > BETWEEN * 1e3 * step_s else []


def lines_of(case, measured, attention, seconds):
    """`measured`: what bench_gpu --json wrote of all kernels; `seconds`: of the case's steps, empty if it was
    not trained."""
    kernels = [line for line in measured if "price_us" in line]
    rows = kernel_rows(kernels)
    step_s = statistics.median(seconds[3:]) if len(seconds) > 3 else None
    lines = [f"what to change: {case}, by the prices of --profile h200"]
    lines += [f"  {label:<66} {ms:8.2f} ms, {100 * price / ms:4.0f}% of the price's rate"
              for label, ms, price in rows if ms >= LEAST_MS]
    mends = [(ms - price, f"{label}: {ms:.1f} ms for {price:.1f}") for label, ms, price in rows if ms > price]
    mends += other_attention(kernels, attention) + between_kernels(kernels, step_s)
    mends.sort(key=lambda mend: -mend[0])
    return lines + [f"  {place}. {gain:.1f} ms to gain: {text}"
                    for place, (gain, text) in enumerate(mends[:FIRST], 1)]
