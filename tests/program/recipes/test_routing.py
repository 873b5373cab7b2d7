"""Routed models in whole runs: the experts of each token in a file and taken from it again, on other ranks
and in bf16; auxiliary losses that are the same on any mesh; loads in the log and on the terminal; the rule
that moves correction biases, in what is exported; and what is refused."""

import json
import struct
import subprocess

import programs

work = programs.folder("routing")
SEQ, BATCH, STEPS = 24, 4, 3
COMMON = ["--backend", "cpu", "-s", SEQ, "--max-steps", STEPS, "--lr", "1e-3", "--lr-schedule", "constant",
          "--save-dir", work, "--log-freq", 1]  # fmt: skip
HEADER = 96


def train(name, *options, ranks=1, status=0):
    """The log of a run with one global batch, and what it printed."""
    ranks = ranks if programs.WITH_MPI else 1
    process = programs.run("fsdp_train", *COMMON, "-b", BATCH // ranks, "-e", name, *options,
                           ranks=ranks if ranks > 1 else None, status=status)
    if status:
        return process.stderr
    return programs.log_of(work / name / "log.jsonl"), process.stdout


def close(a, b, tolerance):
    return abs(a / b - 1) <= tolerance


def check_agree(own, other, tolerance, keys=("loss", "grad_norm", "moe/aux_loss", "moe/z_loss")):
    for a, b in zip(own, other, strict=True):
        for key in keys:
            assert close(a[key], b[key], tolerance), (key, a[key], b[key])


def experts_of(path, layers, slots):
    """The numbers of a record, checked to be of whole steps."""
    data = path.read_bytes()
    assert data[:8] == b"fsdprout" and struct.unpack("<6q", data[8:56])[1:3] == (layers, slots)
    numbers = struct.unpack(f"<{(len(data) - HEADER) // 2}H", data[HEADER:])
    assert len(numbers) == STEPS * BATCH * SEQ * layers * slots
    return numbers


def check_records():
    losses = ["--router-aux-coef", 0.02, "--router-z-coef", 0.01]
    model = ["--model", "tiny-qwen3-moe", *losses]
    own, text = train("alone", *model, "--routing-record", work / "alone.bin")
    numbers = experts_of(work / "alone.bin", 2, 4)
    # What the log says of loads, from the file.
    for step, line in enumerate(own):
        part = numbers[step * len(numbers) // STEPS : (step + 1) * len(numbers) // STEPS]
        for layer in range(2):
            counts = [0] * 8
            for row in range(0, len(part), 8):
                chosen = part[row + 4 * layer : row + 4 * layer + 4]
                assert len(set(chosen)) == 4
                for expert in chosen:
                    counts[expert] += 1
            assert close(line["moe/load_max"][layer], max(counts) * 8 / sum(counts), 1e-6)
    # Any mesh chooses the same, what is recomputed does too, and a run that is told to does.
    meshes = [
        (["--strategy", "full"], 4),
        (["--strategy", "no", "--recompute", "block"], 2),
        (["--strategy", "hybrid", "--mesh", "data=2,fsdp=2", "--routing-replay", work / "alone.bin"], 4),
    ]
    for number, (options, ranks) in enumerate(meshes):
        again = work / f"again{number}.bin"
        log, _ = train(f"again{number}", *model, *options, "--routing-record", again, ranks=ranks)
        check_agree(log, own, 1e-5)
        # Rows are counted once, also where their choice is part of what is recomputed.
        assert [line["moe/load_max"] for line in log] == [line["moe/load_max"] for line in own], options
        assert again.read_bytes() == (work / "alone.bin").read_bytes(), options
    # A sequence that the mesh pads: what the padding chooses is not recorded, and not replayed.
    odd = ["--model", "tiny-qwen3-moe", "-s", SEQ - 1]
    train("padded", *odd, "--routing-record", work / "padded.bin")
    padded = ["--context-parallel", 2, "--tensor-parallel", 2] if programs.WITH_MPI else []
    replay = ["--routing-replay", work / "padded.bin"]
    for name, replayed in (("padded_own", []), ("padded_replayed", replay)):
        again = work / f"{name}.bin"
        programs.run("fsdp_train", *COMMON, *odd, "-b", BATCH, "-e", name, *padded, *replayed,
                     "--routing-record", again, ranks=4 if padded else None, status=0)  # fmt: skip
        assert again.read_bytes() == (work / "padded.bin").read_bytes(), name
    # In bf16 rounding chooses others, but for a run that replays.
    bf16 = ["--param-dtype", "bf16"]
    replayed, _ = train("bf16", *model, *bf16, "--routing-replay", work / "alone.bin", "--routing-record",
                        work / "bf16.bin", ranks=2)  # fmt: skip
    check_agree(replayed, own, 2e-3, ("loss",))
    assert (work / "bf16.bin").read_bytes() == (work / "alone.bin").read_bytes()


def check_bf16():
    """Routers of fp32 in a model of bf16, with logits that are gathered before they choose."""
    for model in ("tiny-glm4-moe", "tiny-qwen3-moe"):
        options = ["--model", model, "--param-dtype", "bf16", "--router-dtype", "fp32"]
        own, _ = train(f"bf16_own_{model}", *options)
        if programs.WITH_MPI:
            programs.run("fsdp_train", *COMMON, *options, "-b", BATCH, "-e", f"bf16_{model}",
                         "--tensor-parallel", 2, ranks=2, status=0)  # fmt: skip
            check_agree(programs.log_of(work / f"bf16_{model}" / "log.jsonl"), own, 2e-3, ("loss",))


def check_unwritten():
    """A record that cannot be written costs itself; one that is there stays, as where a run is refused."""
    kept = work / "kept.bin"
    before = b"fsdprout as it was"
    kept.write_bytes(before)
    arguments = " ".join(map(str, [programs.BIN / "fsdp_train", *COMMON, "-b", BATCH, "--model",
                                   "tiny-qwen3-moe", "--routing-record", kept, "--max-steps"]))  # fmt: skip
    for steps, limit, status, said in ((2, "unlimited", 2, "--trace-steps"), (90, 4096, 0, "kept.bin")):
        options = f" --trace {work}/trace.json" if status else "-s 384 -b 8"  # 49 kB of a record each
        process = subprocess.run(["bash", "-c", f"ulimit -f {limit}; exec {arguments} {steps} {options}"],
                                 capture_output=True, text=True, timeout=400, check=False)  # fmt: skip
        lines = [line for line in process.stderr.strip().splitlines() if " replaces --max-steps" not in line]
        assert process.returncode == status, (process.returncode, process.stderr)
        assert len(lines) == 1 and said in lines[0] and "broken" not in lines[0], process.stderr
        assert status or "File too large" in lines[0], process.stderr
        assert kept.read_bytes() == before and not list(work.glob("kept.bin?*")), list(work.iterdir())


def check_resumed():
    """A run that resumes continues its record, also one that a kill left; or begins one that says so."""
    model = ["--model", "tiny-qwen3-moe"]
    whole, kept, part = (work / f"{name}.bin" for name in ("whole", "kept", "part"))
    train("whole", *model, "--routing-record", whole)
    expected = whole.read_bytes()
    train("kept", *model, "--routing-record", kept, "--max-steps", 2, "--ckpt-freq", 1)
    text = train("kept", ranks=2)[1]
    assert f"{kept} is continued: steps 1 to 2 are those it has" in text, text
    assert kept.read_bytes() == expected
    # As a kill leaves it, with a step more than was saved.
    kept.rename(f"{kept}.tmp")
    text = train("kept", "--resume", "step-1")[1]
    assert "steps 1 to 1" in text and kept.read_bytes() == expected, text
    # What cannot be continued stays, and is named.
    for lost in (b"as it was", expected[:-1000][: len(expected) // 3], expected[:32] + bytes(64)):
        kept.write_bytes(lost)
        message = train("kept", "--resume", "step-2", status=3)
        assert str(kept) in message and "would be lost" in message and "another FILE" in message, message
        assert kept.read_bytes() == lost
    # A record of the steps from there on is of no use to a run that makes those before.
    text = train("kept", "--resume", "step-2", "--routing-record", part)[1]
    assert "it begins with step 3" in text, text
    header, step = expected[: HEADER - 8] + struct.pack("<q", 2), (len(expected) - HEADER) // STEPS
    assert part.read_bytes() == header + expected[HEADER + 2 * step :]
    replay = ["--routing-replay", part, "--routing-record", work / "again.bin"]
    message = train("kept", "--resume", "step-1", *replay, status=3)
    assert "begins after step 2" in message and "this run after step 1" in message, message
    train("kept", "--resume", "step-2", *replay)
    assert (work / "again.bin").read_bytes() == part.read_bytes()


def check_losses():
    """Of each rank's rows the loss is another one than of all, and on one rank the same."""
    model = ["--model", "tiny-mixtral", "--router-aux-coef", 0.5]
    both = [train(f"one_{kind}", *model, "--aux-loss", kind)[0] for kind in ("micro", "rank")]
    check_agree(*both, 0, ("loss", "moe/aux_loss"))
    four = [train(f"four_{kind}", *model, "--aux-loss", kind, ranks=4)[0] for kind in ("micro", "rank")]
    check_agree(four[0], both[0], 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
    if programs.WITH_MPI:
        assert not close(four[1][0]["moe/aux_loss"], both[0][0]["moe/aux_loss"], 1e-4)
    # The mean over micro-batches: of one row each, those that four ranks have as their own.
    parts, _ = train("parts", *model, "-b", 1, "--grad-accum", 4)
    if programs.WITH_MPI:
        check_agree(parts, four[1], 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
    # Of each sequence: any ranks and micro-batches.
    sequence = [*model, "--aux-loss", "sequence"]
    whole, _ = train("sequence", *sequence)
    others = train("sequence_four", *sequence, "--recompute", "block", ranks=4)[0]
    check_agree(others, whole, 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
    others = train("sequence_parts", *sequence, "-b", 2, "--grad-accum", 2)[0]
    check_agree(others, whole, 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
    # On ranks that share sequences, columns or experts, also where these pad sequences.
    if programs.WITH_MPI:
        tensor = ["--tensor-parallel", 2, "--sequence-parallel", "off"]
        for mesh in (["--expert-parallel", 2, *tensor], ["--context-parallel", 2]):
            other = train("mesh" + mesh[0], *model, *mesh, "-b", 2, ranks=4)[0]
            check_agree(other, both[0], 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
        odd = train("odd", *model, "-s", 23)[0]
        for parts in (2, 4):
            context = ["-b", 4, "--context-parallel", parts]
            other = train(f"odd{parts}", *model, "-s", 23, *context, ranks=parts)[0]
            check_agree(other, odd, 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
        message = train("pieces", *model, "--tensor-parallel", 2, ranks=2, status=2)
        assert "losses with tensor=2" in message and "--sequence-parallel off" in message, message
    # An evaluation, and a run that goes on with another coefficient, are of the same model.
    text = work / "text.txt"
    text.write_text("some text of more tokens than a sample " * 9)
    programs.run("fsdp_eval", "--save-dir", work, "-e", "one_micro", "--data", text, status=0)
    going = train("one_micro", *model, "--router-aux-coef", 0.1, "--max-steps", 4)[1]
    assert "--router-aux-coef 0.5 → 0.1" in going, going
    train("sequence_of_none", "--model", "tiny-mixtral", "--aux-loss", "sequence", status=2)
    plain, _ = train("plain", "--model", "tiny-mixtral")
    assert "moe/aux_loss" not in plain[0] and len(plain[0]["moe/load_max"]) == 2
    assert close(plain[0]["loss"] + 0.5 * both[0][0]["moe/aux_loss"], both[0][0]["loss"], 1e-6)


def write_documents():
    """A step's documents of 2 to SEQ + 1 tokens, for as many steps as are made."""
    path = work / "documents.jsonl"
    texts = ["routed"[i % 5 :] * 4 + "abcdefgh"[: i % 7] for i in range(BATCH * STEPS)]
    texts = [text[: 2 + 7 * i % SEQ] for i, text in enumerate(texts)]
    assert len({len(text) for text in texts}) > 8
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return ["--data", path, "--packing", "off"]


def check_padding():
    """Rows that hold no token count in no loss of routers: longer rows of the same documents change nothing,
    whatever ranks and micro-batches have of them."""
    data = write_documents()
    losses = ["--model", "tiny-qwen3-moe", "--router-aux-coef", 0.5, "--router-z-coef", 0.01, *data]
    longer = ["-s", SEQ + 7]
    for kind in ("micro", "sequence", "rank"):
        model = [*losses, "--aux-loss", kind]
        own, _ = train(f"short_{kind}", *model)
        check_agree(train(f"long_{kind}", *model, *longer)[0], own, 1e-5)
        if not programs.WITH_MPI:
            continue
        if kind == "rank":
            own, _ = train("short_four", *model, ranks=4)
        meshes = {"data": [], "expert": ["--expert-parallel", 2, "--expert-capacity", 0.5]}
        if kind == "sequence":
            # Without the z-loss: a mean over each micro-batch's tokens, of which one has more than the other.
            model += ["--router-z-coef", 0]
            whole, _ = train("short_whole", *model)
            parts, _ = train("longer_parts", *model, *longer, "-b", 2, "--grad-accum", 2)
            check_agree(parts, whole, 1e-5, ("loss", "grad_norm", "moe/aux_loss"))
            model = model[:-2]
        if kind == "micro":
            meshes["context"] = ["--context-parallel", 2, "-b", 2]
            meshes["tensor"] = ["--tensor-parallel", 2, "--sequence-parallel", "off", "-b", 2]
        for name, mesh in meshes.items():
            other, _ = train(f"{name}_{kind}", *model, *longer, *mesh, ranks=4)
            check_agree(other, own, 1e-5)
    # Nor where correction biases are moved; with rows that the ranks of tensor have pieces of.
    options = ["--model", "tiny-glm4-moe", "--router-bias-rate", 0.25, *data]
    tensor = ["--tensor-parallel", 2, "-b", 2]
    moved = []
    for name, ranks, extra in (("s", 1, []), ("l", 1, longer), ("t", 4, [*longer, *tensor])):
        train(f"bias_{name}", *options, *(extra if ranks == 1 or programs.WITH_MPI else longer), ranks=ranks)
        programs.run("fsdp_export", work / f"bias_{name}", "--to", work / f"bias_{name}_out", status=0)
        moved.append(biases_of(work / f"bias_{name}_out"))
    assert moved[0] == moved[1] == moved[2] and any(value for row in moved[0].values() for value in row)


def check_micro_batches():
    """Documents go to micro-batches by their work, and to the same ones on any ranks: each has losses."""
    path = work / "lengths.jsonl"
    texts = ["routed"[i % 5 :] * (1 + i * i % 7) for i in range(400)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--model", "tiny-mixtral", "--data", path, "--packing", "best-fit", "--router-aux-coef", 0.5]
    own, _ = train("parts_1", *options, "-b", 4, "--grad-accum", 2)
    for ranks in (2, 4):
        each = ["-b", 4 // (ranks if programs.WITH_MPI else 1), "--grad-accum", 2]
        other, _ = train(f"parts_{ranks}", *options, *each, ranks=ranks)
        check_agree(other, own, 1e-6, ("loss", "grad_norm", "moe/aux_loss"))


def biases_of(folder):
    tensors = programs.read_safetensors(folder / "model.safetensors")
    return {name: programs.floats(tensor)[1] for name, tensor in tensors.items()
            if name.endswith("e_score_correction_bias")}


def check_biases():
    """After a step each bias has moved by the rate, down where its expert had more rows than the mean."""
    options = ["--model", "tiny-glm4-moe", "--max-steps", 1]
    moved = {}
    for name, ranks, rate in (("still", 1, 0), ("one", 1, 0.25), ("four", 4, 0.25)):
        extra = ["--routing-record", work / f"{name}.bin", "--router-bias-rate", rate]
        train(name, *options, *extra, ranks=ranks)
        programs.run("fsdp_export", work / name, "--to", work / f"{name}_out", status=0)
        moved[name] = biases_of(work / f"{name}_out")
    assert moved["one"] == moved["four"] and len(moved["one"]) == 2
    # Routers stay in fp32, as Transformers keeps them.
    out = work / "one_bf16"
    programs.run("fsdp_export", work / "one", "--to", out, "--dtype", "bf16", status=0)
    for name, (dtype, _, _) in programs.read_safetensors(out / "model.safetensors").items():
        assert dtype == ("F32" if ".mlp.gate." in name else "BF16"), (name, dtype)
    assert biases_of(out) == moved["one"]
    assert not any(value for row in moved["still"].values() for value in row)
    numbers = struct.unpack(f"<{BATCH * SEQ * 4}H", (work / "one.bin").read_bytes()[HEADER:])
    for layer, name in enumerate(sorted(moved["one"])):
        counts = [0] * 8
        for row in range(0, len(numbers), 4):
            for expert in numbers[row + 2 * layer : row + 2 * layer + 2]:
                counts[expert] += 1
        mean = sum(counts) / 8
        expected = [0.25 * ((count < mean) - (count > mean)) for count in counts]
        assert list(moved["one"][name]) == expected, (moved["one"][name], counts)


def check_refused():
    file = work / "alone.bin"
    (work / "short.bin").write_bytes(file.read_bytes()[:-1000])
    (work / "twice.bin").write_bytes(file.read_bytes()[:HEADER] + bytes(file.stat().st_size - HEADER))
    (work / "other.bin").write_bytes(b"no record, though as long as its header is" + bytes(100))
    # Of another program, which knows no hash of the data.
    (work / "unknown.bin").write_bytes(file.read_bytes()[:56] + bytes(40) + file.read_bytes()[HEADER:])
    text = work / "text.txt"
    text.write_text("other data " * 400)
    model = ["--model", "tiny-qwen3-moe"]
    unknown, _ = train("unknown", *model, "--routing-replay", work / "unknown.bin", "--seed", 3)
    # Version 1 has no numbers of the data.
    first = struct.pack("<8sq", b"fsdprout", 1) + file.read_bytes()[16:56] + bytes(8)
    (work / "first.bin").write_bytes(first + file.read_bytes()[HEADER:])
    of_first, _ = train("first", *model, "--routing-replay", work / "first.bin", "--seed", 3)
    check_agree(of_first, unknown, 0, ("loss", "grad_norm"))
    cases = [
        ([*model, "--routing-replay", file, "--seed", 3], "its --seed is 0, and this run's 3", str(file)),
        ([*model, "--routing-replay", file, "--data", text], "its hash of the data is"),
        ([*model, "--routing-replay", file, "--eval-split", 0.1], "its number of held-out samples is 0"),
        ([*model, "--routing-record", text], f"--routing-record {text}", "would be lost; give another FILE"),
        ([*model, "--routing-record", "/dev/null"], "/dev/null", "would be lost"),
        (["--model", "tiny", "--router-aux-coef", 1], "--router-aux-coef", "no routed experts|has none"),
        (["--model", "tiny", "--routing-record", file], "--routing-record", "has none"),
        ([*model, "--router-bias-rate", 1e-3], "--router-bias-rate", "no correction bias"),
        ([*model, "--routing-replay", work / "none.bin"], "none.bin", "cannot be read"),
        ([*model, "--routing-replay", work / "other.bin"], "other.bin", "no file of --routing-record"),
        ([*model, "--routing-replay", work / "twice.bin"], "twice.bin", "sends a token to expert 0 twice"),
        ([*model, "--routing-replay", work / "short.bin"], "short.bin", "2 steps, and this run makes 3"),
        (["--model", "tiny-olmoe", "-b", 2, "--routing-replay", file], "sequences of a step is 4", "2"),
        (["--model", "tiny-mixtral", "--routing-replay", file], "experts of a token is 4", "this run's 2"),
        ([*model, "--aux-loss", "world"], "--aux-loss", "micro"),
    ]
    for options, *parts in cases:
        process = programs.run("fsdp_train", *COMMON, "-b", BATCH, *options)
        message = "".join(programs.errors(process, "fsdp_train"))
        assert process.returncode in (2, 3), (options, process.returncode, process.stderr)
        for part in parts:
            assert any(one in message for one in part.split("|")), (options, part, process.stderr)
    assert text.read_text() == "other data " * 400


check_records()
check_bf16()
check_unwritten()
check_resumed()
check_losses()
check_padding()
check_micro_batches()
check_biases()
check_refused()
