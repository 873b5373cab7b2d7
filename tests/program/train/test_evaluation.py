"""Evaluation while training: each held-out sample once whatever the ranks, and training as if it were not."""

import json
import math

import programs
from prepared import prepare_good

work = programs.folder("evaluation")
COMMON = ("--max-steps", "4", "--lr", "1e-3", "--wrap", "block")
RANKS = ((1, 2) if programs.SLOW else (1, 2, 3)) if programs.WITH_MPI else (None,)


def train(name, *arguments, ranks=None, status=0, seq=32):
    log = work / f"{name}.jsonl"
    process = programs.run("fsdp_train", *COMMON, "-s", seq, "--log", log, *arguments, ranks=ranks,
                           status=status)
    return process, programs.log_of(log)


def evaluated(lines):
    return [(line["global_step"], line["eval_loss"]) for line in lines if "eval_loss" in line]


def prompts(count):
    """Documents with prompts, which the loss does not count, of unequal lengths."""
    records = [
        {"instruction": f"Count to {i}.", "input": "", "output": " ".join(map(str, range(i % 17 + 1)))}
        for i in range(count)
    ]
    return json.dumps(records)


# 7 samples divide by none of the global batches below, so that the last batch is filled up.
text = work / "held_out.txt"
text.write_text("".join(chr(97 + i * i % 26) for i in range(7 * 32 + 1)))
alpaca = work / "held_out.json"
alpaca.write_text(prompts(20))
tokens = work / "held_out.tok"
prepare_good(tokens, alpaca)

# Training does not notice: the same losses to the bit, while the evaluation's change as it learns.
_, plain = train("plain", "-b", "2")
process, watched = train("watched", "-b", "2", "--eval-data", text, "--eval-freq", "1")
assert [line["loss"] for line in plain] == [line["loss"] for line in watched]
assert [line["grad_norm"] for line in plain] == [line["grad_norm"] for line in watched]
found = evaluated(watched)
assert [step for step, _ in found] == [1, 2, 3, 4] and len({loss for _, loss in found}) == 4
for line in watched:
    assert math.isclose(line["eval_perplexity"], math.exp(line["eval_loss"]), rel_tol=1e-9)
    assert line["time/evaluation"] > 0
assert process.stdout.count("evaluation after step") == 4 and "perplexity" in process.stdout
assert not evaluated(plain)

# Without a frequency it evaluates at the end alone.
_, lines = train("end", "-b", "2", "--eval-data", text)
assert evaluated(lines) == found[-1:], evaluated(lines)

# The same mean over the counted targets on any number of ranks, with prompts that do not count.
for data, seq in ((text, 32), (tokens, 256))[:: programs.stride(2)]:
    results = []
    for ranks in RANKS:
        global_batch = 6 // (ranks or 1)
        options = ("-b", global_batch, "--eval-data", data)
        _, lines = train(f"ranks{ranks}", *options, ranks=ranks, seq=seq)
        results += [loss for _, loss in evaluated(lines)]
    assert len(results) == len(RANKS)
    assert all(abs(r - results[0]) <= 1e-5 * results[0] for r in results), results
    # Nor does it depend on how micro-batches cut it.
    _, lines = train("cut", "-b", "2", "--grad-accum", "3", "--eval-data", data, seq=seq)
    assert abs(evaluated(lines)[0][1] - results[0]) <= 1e-5 * results[0], (lines, results)

# A part held out of the training data: fewer steps per epoch, the same samples on any number of ranks.
whole = train("whole", "-b", "6")[1][0]["num_batches_remaining"]
results = []
for ranks in RANKS:
    options = ("-b", 6 // (ranks or 1), "--eval-split", "0.1", "--eval-freq", "2")
    _, lines = train(f"split{ranks}", *options, ranks=ranks)
    assert [step for step, _ in evaluated(lines)] == [2, 4]
    assert abs(lines[0]["num_batches_remaining"] - 0.9 * whole) <= 2
    results.append([loss for _, loss in evaluated(lines)])
for row in results:
    assert all(abs(a - b) <= 1e-5 * b for a, b in zip(row, results[0])), results
process, _ = train("count", "-b", "6", "--eval-split", "40")
assert "evaluate:  only at the end (--eval-freq 0), on 40 samples held out" in process.stdout, process.stdout

# What cannot be.
for arguments, status, part in (
    (("--eval-freq", "2"), 2, "--eval-freq 2"),
    (("--eval-data", text, "--eval-split", "3"), 2, "--eval-split 3"),
    (("--eval-split", "2.5"), 2, "--eval-split 2.5"),
    (("--eval-split", "1e9"), 2, "--eval-split 1e+09"),
    (("--eval-split", "-1"), 2, "--eval-split"),
    (("--eval-data", work / "none.txt"), 3, "none.txt"),
):
    programs.refused("fsdp_train", *COMMON, *arguments, status=status, parts=[part])

# What would make an evaluation fit has no micro-batches.
large = ("--model", "tiny", "--init", "random", "-b", 64, "-s", 1024, "--memory-limit", "100MB", "--dry-run")
programs.refused("fsdp_eval", *large, status=4, parts=["add --batch-size 16, which"])
