"""What to change: each kernel's share of its budget (bench/budget.py), and the first mends by milliseconds.

A mend is a kernel that takes longer than its budget, a kernel of attention that was faster than the one that
the step runs, or time in which no kernel runs.
"""
import statistics

import budget

FIRST = 3
LEAST_MS = 0.1  # of a step: less is not listed
BETWEEN = 0.01  # of a step without a kernel: less is how launches are timed


def kernel_rows(ops, measured):
    """(label, milliseconds in a step, those of the budget), the greatest loss first."""
    rows = [(op["label"], measured[op["label"]] * op["count"] / 1e3, 1e3 * budget.price_s(op) * op["count"])
            for op in ops if op["label"] in measured]
    return sorted(rows, key=lambda row: row[2] - row[1])


def other_attention(ops, measured, attention):
    """Mends by kernels that the step did not run; `attention`: microseconds by label, by kernel."""
    found = []
    for op in ops:
        label = op["label"]
        timed = [(us[label], kernel) for kernel, us in attention.items() if label in us]
        if label not in measured or not timed:
            continue
        us, kernel = min(timed)
        gain = (measured[label] - us) * op["count"] / 1e3
        if gain > LEAST_MS:
            found.append((gain, f"{label} by {kernel}: {us:.0f} us in place of {measured[label]:.0f}"))
    return found


def between_kernels(ops, measured, step_s):
    """The step's time beyond its kernels one after the other."""
    if not step_s or any(op["label"] not in measured for op in ops):
        return []
    kernels_ms = sum(measured[op["label"]] * op["count"] for op in ops) / 1e3
    gap = 1e3 * step_s - kernels_ms
    return [(gap, f"no kernel runs: a step takes {1e3 * step_s:.1f} ms, its kernels {kernels_ms:.1f}")] \
        if gap > BETWEEN * 1e3 * step_s else []


def lines_of(case, ops, measured, attention, seconds):
    """`measured`: microseconds by label; `seconds`: of the case's steps, empty if it was not trained."""
    rows = kernel_rows(ops, measured)
    step_s = statistics.median(seconds[3:]) if len(seconds) > 3 else None
    lines = [f"what to change: {case}, by the rates of bench/results/budget-h200.md"]
    lines += [f"  {label:<66} {ms:8.2f} ms, {100 * price / ms:4.0f}% of the budget's rate"
              for label, ms, price in rows if ms >= LEAST_MS]
    mends = [(ms - price, f"{label}: {ms:.1f} ms for {price:.1f}") for label, ms, price in rows if ms > price]
    mends += other_attention(ops, measured, attention) + between_kernels(ops, measured, step_s)
    mends.sort(key=lambda mend: -mend[0])
    return lines + [f"  {place}. {gain:.1f} ms to gain: {text}"
                    for place, (gain, text) in enumerate(mends[:FIRST], 1)]
