"""A mix of data by weights: the same samples in the same steps on any ranks, a resumed run goes on exactly,
and other weights are another order."""

import programs
from prepared import ROOT

work = programs.folder("mix")
text = (ROOT / "runtime" / "data" / "builtin_text.txt").read_bytes()
(work / "a.txt").write_bytes(text[:1000])
(work / "b.txt").write_bytes(text[5000:9000])
MIX = f"{work}/a.txt:0.7,{work}/b.txt:0.3"


def train(name, *arguments, ranks=None, data=(MIX,), batch=12, status=0):
    common = ["-s", 32, "-b", batch // (ranks or 1), "--lr", "1e-2", "--lr-schedule", "constant"]
    process = programs.run("fsdp_train", *common, "--save-dir", work, "-e", name, "--data", *data, *arguments,
                           ranks=ranks, status=status)
    if not status:
        process.losses = programs.losses(work / name / "log.jsonl")
    return process


# 31 + 124 = 155 samples: 108 or 109 of an epoch's are of the 31, so that each comes three or four times.
once = train("once", "--num-epochs", 2)
assert len(once.losses) == 24, once.losses
line = f"mix:       70.3% of {work}/a.txt, 3.52 passes per epoch; 29.7% of {work}/b.txt, 0.371"
assert line in once.stdout, once.stdout
if programs.WITH_MPI:
    for ranks in (2, 4):
        spread = train(f"ranks{ranks}", "--max-steps", 6, ranks=ranks)
        assert all(abs(a - b) < 1e-4 * a for a, b in zip(spread.losses, once.losses)), ranks

# To the bit, in the middle of an epoch and of passes over the data.
train("parts", "--num-epochs", 2, "--max-steps", 5)
resumed = train("parts", "--max-steps", 24)
assert "--max-steps 5 → 24" in resumed.stdout and resumed.losses == once.losses, resumed.stdout

# Blanks between files and parts of samples that are held out; other weights, none.
train("held", "--eval-split", "0.1", "--max-steps", 2, data=MIX.split(","))
other = train("once", "--num-epochs", 3, data=(MIX.replace("0.7", "0.5"),))
assert "the data changed" in other.stdout, other.stdout
plain = train("plain", data=(MIX.replace(":0.7", "").replace(":0.3", ""),))
assert "mix:" not in plain.stdout and plain.losses != once.losses[:len(plain.losses)]
message = train("refused", "--eval-data", f"{work}/b.txt:1", status=2).stderr
assert "--eval-data" in message and "no weights" in message, message
process = programs.run("fsdp_eval", "-e", "plain", "--save-dir", work, "--data", MIX)
assert process.returncode == 2 and "--data" in process.stderr and "no weights" in process.stderr, process
message = train("refused", data=(f"{work}/a.txt:1", f"{work}/b.txt"), status=2).stderr
assert "b.txt has no weight, unlike the files before it" in message, message
