"""What recipes ask of a run's length and learning rate: a part of an epoch, a warm-up that is a share of the
steps, a rate that stays and then decays; and of weight decay."""

import math

import programs

work = programs.folder("recipes")
STEPS = 10  # of an epoch
LR = 1e-2
text = work / "text.txt"
text.write_text("".join(chr(97 + i * i % 26) for i in range(STEPS * 2 * 16 + 1)))


def train(name, *arguments, status=0):
    common = ["-s", 16, "-b", 2, "--lr", LR, "--data", text, "--save-dir", work, "-e", name]
    process = programs.run("fsdp_train", *common, *arguments, status=status)
    if not status:
        process.lines = programs.log_of(work / name / "log.jsonl")
        process.rates = [line["lr"] for line in process.lines]
    return process


def close(found, wanted):
    return len(found) == len(wanted) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, wanted))


# Half an epoch, one and a half, and a part that leaves a part of a step, which is a whole one.
for epochs, steps in ((0.5, 5), (1.5, 15), (0.42, 5), (0.01, 1)):
    process = train(f"epochs-{epochs}", "--num-epochs", epochs)
    assert len(process.lines) == steps, (epochs, len(process.lines))
half = train("half", "--num-epochs", 0.5)
rest = train("half", "--num-epochs", 1)
whole = train("whole", "--lr-schedule", "constant")
assert "changed:   --num-epochs 0.5 → 1" in rest.stdout, rest.stdout
assert len(rest.lines) == STEPS
assert [line["epoch"] for line in rest.lines] == [line["epoch"] for line in whole.lines]

# A quarter of 20 steps rises, 30% of them fall to a tenth.
schedule = ("--lr-schedule", "wsd", "--warmup-ratio", "25%", "--lr-decay-ratio", 0.3, "--min-lr", LR / 10)
wsd = train("wsd", "--num-epochs", 2, *schedule)
rising = [LR * (i + 1) / 5 for i in range(5)]
falling = [LR * (1 - 0.9 * i / 6) for i in range(6)]
assert close(wsd.rates, rising + [LR] * 9 + falling), wsd.rates
ratio = train("ratio", "--lr-schedule", "constant_with_warmup", "--warmup-ratio", 0.21)
assert close(ratio.rates, [LR * (i + 1) / 3 for i in range(3)] + [LR] * 7), ratio.rates

# The first loss is before any update; a change is reported as such.
runs = [train(f"decay-{decay}", "--decay", decay, "--weight-decay", 10) for decay in ("all", "matrices")]
losses = [[line["loss"] for line in process.lines] for process in runs]
assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1], losses
process = train("decay-all", "--decay", "matrices", "--weight-decay", 10, "--num-epochs", 2)
assert "--decay all → matrices" in process.stdout, process.stdout

# What contradicts itself, or may have meant something else.
for arguments, parts in (
    (("--warmup-steps", "0.1"), ("--warmup-steps '0.1'", "--warmup-ratio takes a share")),
    (("--warmup-ratio", "0.1", "--warmup-steps", "3"), ("--warmup-ratio 0.1", "--warmup-steps 3")),
    (("--lr-decay-ratio", "0.2"), ("--lr-decay-ratio 0.2", "--lr-schedule wsd", "cosine")),
    (("--num-epochs", "0"), ("--num-epochs '0'", "above 0")),
    (("--lr-schedule", "inverse_sqrt"), ("cosine", "constant (constant_with_warmup)", "wsd")),
    (("--decay", "norms"), ("--decay 'norms'", "all, matrices")),
    (("--decay", "matrices", "--weight-decay", "0"), ("--decay matrices", "--weight-decay 0")),
):
    message = train("refused", *arguments, status=2).stderr
    assert all(part in message for part in parts), (arguments, message)
