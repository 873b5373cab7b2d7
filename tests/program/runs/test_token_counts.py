"""What a run says of its tokens: real and learned ones beside all, what is padding, left out and cut off, and
the samples that fill no step. Counted again from the prepared file, whose reader is made from its format."""

import datetime
import json
import random
import re

import programs
from prepared import prepare_good

work = programs.folder("counts")
SEQ = 48
RANKS = 2 if programs.WITH_MPI else None


def train(data, *arguments, ranks=None, seq=SEQ):
    log = work / "log.jsonl"
    process = programs.run("fsdp_train", "-s", seq, "--log", log, "--data", data, *arguments, ranks=ranks,
                           status=0)
    warnings = [line for line in process.stderr.splitlines() if "warning: " in line]
    return process.stdout, warnings, programs.log_of(log)


def counts(tokens, seq):
    """Of each document as a sample: real positions, learned ones, and learned ones that are cut off."""
    starts = [*tokens.starts, len(tokens.ids)]
    result = []
    for begin, end in zip(starts, starts[1:]):
        counted = [tokens.learned[i] for i in range(begin + 1, end)]
        result.append((min(end - begin - 1, seq), sum(counted[:seq]), sum(counted[seq:])))
    return result


draw = random.Random(7)
records = [{"prompt": "a" * draw.randint(1, 20), "completion": "b" * draw.randint(1, 20)} for _ in range(24)]
path = work / "records.jsonl"
path.write_text("".join(json.dumps(record) + "\n" for record in records))
tokens = prepare_good(work / "alone.tok", path)
ALONE = (work / "alone.tok", "--packing", "off", "--long-documents", "cut")
documents = counts(tokens, SEQ)
assert len(documents) == 24 and all(lost == 0 for _, _, lost in documents)
real, learned = (sum(document[i] for document in documents) for i in (0, 1))

# An epoch of whole steps: its steps together are all samples, whatever the ranks.
for ranks, batch in ((None, 6), (RANKS, 3)):
    out, warnings, lines = train(*ALONE, "-b", batch, "--num-epochs", "2", "--log-freq", "1", ranks=ranks)
    assert len(lines) == 8 and "which leave out" not in out, out
    for epoch in (lines[:4], lines[4:]):
        assert sum(line["real_tokens"] for line in epoch) == real
        assert sum(line["learned_tokens"] for line in epoch) == learned
    for line in lines:
        seconds = line["time/total"] / 1e3
        assert abs(line["real_tokens_per_s"] * seconds - line["real_tokens"]) < 1e-6 * real
        assert abs(line["learned_tokens_per_s"] * seconds - line["learned_tokens"]) < 1e-6 * real
        assert abs(line["tokens_per_s"] * seconds - 6 * SEQ) < 1e-3
    for label, first, last in (("done:", 0, 8), *(("step ", i, i + 1) for i in range(8))):
        shown = [row for row in out.splitlines() if row.startswith(label)][first if label == "step " else 0]
        speeds = re.search(r"([\d,]+) tokens/s \(([\d,]+) real, ([\d,]+) learned\)", shown)
        every, here, there = (int(group.replace(",", "")) for group in speeds.groups())
        positions = 6 * SEQ * (last - first)
        assert (
            abs(here / every - sum(line["real_tokens"] for line in lines[first:last]) / positions) < 0.01
        ), shown
        assert (
            abs(there / every - sum(line["learned_tokens"] for line in lines[first:last]) / positions) < 0.01
        ), shown
    # More than a fifth is padding.
    share = 100 - 100 * real / (24 * SEQ)
    assert share > 20 and len(warnings) == 1, (share, warnings)
    assert f"{share:.0f}% of what is computed is padding" in warnings[0], warnings
    assert "--packing best-fit" in warnings[0], warnings

# The log has a clock, in order.
stamps = [datetime.datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00")) for line in lines]
assert stamps == sorted(stamps)
assert abs((datetime.datetime.now(datetime.timezone.utc) - stamps[-1]).total_seconds()) < 600

# What fills no step is said; samples without a target, and what is cut off, are warned of.
out, warnings, lines = train(*ALONE, "-b", "7")
assert "3 per epoch, which leave out 3 of 24 samples, others each time\n" in out, out
for seq in (8, 4):
    documents = counts(tokens, seq)
    kept = [document for document in documents if document[1] > 0]
    whole, lost = sum(document[1] for document in documents), sum(document[2] for document in documents)
    out, warnings, lines = train(*ALONE, "-b", "1", seq=seq)
    assert len(lines) == len(kept) < 24
    assert sum(line["learned_tokens"] for line in lines) == whole
    assert sum(line["real_tokens"] for line in lines) == sum(document[0] for document in kept)
    assert any(f"{24 - len(kept)} of 24 samples are left out" in warning for warning in warnings), warnings
    share = f"{100 * lost / (whole + lost):.0f}%"
    cut = f"{lost} of the {whole + lost} tokens to learn ({share}) lie behind the first {seq} "
    assert any(cut in warning for warning in warnings), (cut, warnings)
out, warnings, lines = train(*ALONE[:3], "--long-documents", "drop", "-b", "1", seq=8)
assert any("are of documents of more than 8 and are left out" in warning for warning in warnings), warnings

# Split, nothing is cut off.
out, warnings, lines = train(work / "alone.tok", "-b", "1", seq=8)
assert not any("cut off" in warning for warning in warnings), warnings
assert sum(line["learned_tokens"] for line in lines) == learned

# A stream has no padding, but splits documents of which parts are learned; no document is too long for it.
out, warnings, lines = train(work / "alone.tok", "--packing", "stream", "-b", "1", "--long-documents", "drop")
rows = (len(tokens.ids) - 1) // SEQ
split = sum(begin // SEQ < min((end - 2) // SEQ, rows - 1)
            for begin, end in zip(tokens.starts, [*tokens.starts[1:], len(tokens.ids)]))  # fmt: skip
assert len(warnings) == 1 and f"{split} of 24 documents are split" in warnings[0], (split, warnings)
assert "--long-documents drop (command line) has no effect" in out, out
assert all(line["real_tokens"] == SEQ for line in lines)
assert sum(line["learned_tokens"] for line in lines) == sum(tokens.learned[1 : len(lines) * SEQ + 1])
# Without prompts there is nothing to say.
text = work / "text.txt"
text.write_text("abc" * 100)
out, warnings, lines = train(text, "-b", "2", "--long-documents", "split")
assert not warnings and "real" not in out and "has no effect" not in out
assert all(line["real_tokens"] == line["learned_tokens"] == 2 * SEQ for line in lines)
lines = work / "lines.jsonl"
lines.write_text("".join(json.dumps({"text": "a" * n}) + "\n" for n in (1, 5, 1, 3)))
out, warnings, _ = train(lines, "-b", "1", seq=1)
assert len(warnings) == 1 and "documents' first tokens, which are not learned" in warnings[0], warnings
assert "prompt" not in warnings[0], warnings
print("ok")
