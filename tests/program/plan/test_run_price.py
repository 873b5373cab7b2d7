"""What a whole run takes: hours, GPU hours and cost by hand from the priced step; the global batch that a
search finds; several machines and several plans in one table; a profile's memory as the limit of its plans.
"""
import json
import re

import cpu_profile
import programs

work = programs.folder("run_price")
TINY = ("--model", "tiny", "--ranks", 2, "-s", 64)
A100 = ("--profile", "a100-40")


def plan(*arguments, status=0):
    return programs.run("fsdp_plan", *arguments, timeout=600, status=status)


def read(*arguments, status=0):
    return json.loads(plan(*arguments, "--json", status=status).stdout)


def close(a, b):
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def lengths():
    """Steps by tokens, by data and epochs, by steps; the least of them counts."""
    data = work / "text.txt"
    data.write_bytes(bytes(range(97, 107)) * 1001)  # 10,010 bytes: 156 samples of 64 and a target
    priced = (*TINY, *A100, "--price", "-b", 2, "--grad-accum", 2)  # 8 sequences, 512 tokens a step
    cases = [(("--tokens", 512 * 1000), 1000), (("--tokens", 512 * 1000 + 1), 1001), (("--max-steps", 7), 7),
             (("--data", data), 156 // 8), (("--data", data, "--num-epochs", 3), 3 * (156 // 8)),
             (("--data", data, "--eval-split", 16), 140 // 8), (("--data", data, "--max-steps", 2), 2),
             (("--tokens", 512, "--max-steps", 2), 1)]  # fmt: skip
    for arguments, steps in cases:
        time = read(*priced, *arguments, "--gpu-hour", 2.5)["time"]
        hours = steps * time["step_ms"] / 3.6e6
        assert time["steps"] == steps and time["tokens"] == 512 * steps, (arguments, time)
        assert close(time["hours"], hours) and close(time["gpu_hours"], 2 * hours), time
        assert close(time["cost"], 2 * hours * 2.5), time
    assert "hours" not in read(*priced)["time"]
    assert read(*priced, "--tokens", 1e6)["time"]["cost"] is None
    line = [row for row in plan(*priced, "--tokens", 1e9).stdout.splitlines() if row.startswith("run:")]
    assert len(line) == 1 and "1,953,125 steps, 1,000,000,000 tokens: " in line[0], line
    line = [row for row in plan(*priced, "--tokens", 1e13).stdout.splitlines() if row.startswith("run:")]
    assert "e+" not in line[0] and int(line[0].split(" hours")[0].split()[-1].replace(",", "")) > 1000, line
    long = ("--model", "llama-1b", "--wrap", "block", *A100, "--ranks", 8, "--grad-accum", 256, "--price")
    step_ms = read(*long)["time"]["step_ms"]
    assert step_ms > 1e4 and f"price on a100-40: {step_ms / 1e3:.2f} s a step" in plan(*long).stdout, step_ms
    # Short runs have digits enough to multiply, and what is less than a step is said.
    line = next(row for row in plan(*priced, "--tokens", 1e5, "--gpu-hour", 2.5).stdout.splitlines()
                if row.startswith("run:"))  # fmt: skip
    gpu_hours, cost = (float(line.split(end)[0].split()[-1]) for end in (" GPU hours", "\0"))
    assert abs(cost / gpu_hours - 2.5) < 0.02 and "e-" not in line, line
    less = "note: --tokens 500 (command line) is less than one step of 512 tokens"
    assert less in plan(*priced, "--tokens", 500).stderr and not plan(*priced, "--tokens", 512).stderr
    noted = plan(*TINY, *A100, "--price", "--threads", 7, "--resize-embeddings", 256).stderr
    assert "note: --threads 7 (command line) has no effect on the price: profile a100-40 is of a GPU" in noted
    assert "--resize-embeddings 256 (command line) has no effect: the model has 256 tokens already" in noted
    for unknown, words in (("--gpu-hour", "is for a run, and nothing says how long"),
                           ("--num-epochs", "counts passes over --data, which is not given")):  # fmt: skip
        refused = plan(*priced, unknown, 3, status=2).stderr
        assert f"{unknown} 3 (command line) {words}" in refused, refused
    for unused in ("--tokens", "--gpu-hour"):
        refused = plan(*TINY, unused, 5, status=2).stderr
        assert f"{unused} (command line) has no effect without a price" in refused, refused


def documents():
    """Rows of documents as fsdp_train makes them, counted by hand: 160 of 25 bytes and an end, of which two
    fit into a row of 64, then 40 of 100 bytes, of two rows each."""
    data = work / "documents.jsonl"
    lengths = [25] * 160 + [100] * 40
    data.write_text("".join(json.dumps({"text": "a" * length}) + "\n" for length in lengths))
    priced = (*TINY, *A100, "--price", "-b", 2, "--grad-accum", 2, "--data", data)  # 8 rows a step
    cut = ("--long-documents", "cut")
    for how, rows in ((("off",), 160 + 80), (("off", *cut), 160 + 40), (("best-fit", *cut), 80 + 40),
                      (("best-fit", "--long-documents", "drop"), 80)):  # fmt: skip
        steps = read(*priced, "--packing", *how)["time"]["steps"]
        assert steps == rows // 8, (how, steps)


def pairs(row, positions, window):
    """Of a query at one of the positions and a key that it sees, in a row of 64 with one document."""
    return sum(min(query + 1 if query < row else 1, window) for query in positions)


def work_of_documents():
    """What documents leave of attention, how unequal ranks are, and attention's time by both: pairs counted
    one by one. Each document is a row, and they are one step: the longest are in its first micro-batch."""
    data, rows, whole = work / "work.jsonl", [60, 60, 60, 10], range(64)
    data.write_text("".join(json.dumps({"text": "a" * length}) + "\n" for length in rows))
    profile = cpu_profile.write(work / "cpu.yaml", 2)
    profile.write_text(profile.read_text().replace("launch_us: 0.2", "launch_us: 0.0001"))
    priced = ("--profile", profile, "--backend", "cpu", "--ranks", 2, "-s", 64,
              "--price", "--data", data, "--packing", "off", "--tokenizer", "bytes")  # fmt: skip
    windowed = programs.make_model(
        work / "windowed",
        programs.CONFIG | {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                           "sliding_window": 7, "vocab_size": 256}, weights=False)  # fmt: skip
    for model, window in (("tiny", 64), (windowed, 7)):
        of = {row: pairs(row, whole, window) for row in rows}
        documents = [pairs(row, range(row), window) if window == 64 else of[row] for row in rows]
        left = sum(documents) / (len(rows) * pairs(64, whole, window))
        mean = of[60] + (of[60] + of[10]) / 2
        parts = [[*range(0, 16), *range(48, 64)], range(16, 48)]
        of_parts = [[pairs(row, part, window) for part in parts] for row in rows]
        context = sum(map(max, of_parts)) / (sum(map(sum, of_parts)) / 2)
        for mesh, most, in_group in ((("--grad-accum", 2), 2 * of[60] / mean, 1),
                                     (("--grad-accum", 4, "--context-parallel", 2), context, context)):
            arguments = (*priced, "--model", model, *mesh)
            found = read(*arguments)
            expected = {"attention_left": left, "most_of_a_rank": most, "most_in_a_context_group": in_group}
            told = found["documents"]
            assert told.keys() == expected.keys(), told
            assert all(close(told[name], expected[name]) for name in expected), (told, expected)
            masked, plain = (one["time"]["parts_ms"]["attention"]
                             for one in (found, read(*arguments, "--document-mask", "off")))
            assert abs(masked / plain / (left * most) - 1) < 0.02, (mesh, masked, plain, left * most)
            assert ("times the mean" in plan(*arguments).stderr) == (most > 1.001), mesh
    # Weights: a fifth of what is seen are rows of 10, a part of which is held out.
    for length in (10, 60):
        (work / f"{length}.jsonl").write_text((json.dumps({"text": "a" * length}) + "\n") * 40)
    mixed = ("--data", f"{work}/10.jsonl:0.2,{work}/60.jsonl:0.8", "--eval-split", 8)
    for model, window in (("tiny", 64), (windowed, 7)):
        found = read(*priced[:-6], *mixed, *priced[-4:], "--model", model, "-b", 4)["documents"]
        of = {row: pairs(row, range(row) if window == 64 else whole, window) for row in (10, 60)}
        left = (0.2 * of[10] + 0.8 * of[60]) / pairs(64, whole, window)
        assert close(found["attention_left"], left), (found, left)
    # Bytes are not tokens: lengths of text that the model's tokenizer would make others are refused.
    refused = plan(*A100, "--model", "llama2-7b", "--ranks", 2, "--price", "--data", data, status=3).stderr
    assert "bytes" in refused, refused


def batches():
    """The least batch near the best of its doublings, each searched alone; a batch that is given stays."""
    search = ("--search", *TINY[:4], "-s", 8192, *A100)
    found = read(*search, "--tokens", 1e9)
    chosen = found["global_batch"]
    rates = {}
    for halvings in range(10):
        batch = 512 >> halvings  # 4,194,304 tokens are 512 sequences
        rates[batch] = read(*search, "--global-batch", batch)["plans"][0]["tokens_per_s"]
    assert chosen in rates and rates[chosen] >= 0.95 * rates[512], (chosen, rates)
    assert chosen == 1 or rates[chosen // 2] < 0.95 * rates[512], (chosen, rates)
    best = found["plans"][0]
    steps = -(-(10**9) // (chosen * 8192))
    assert best["steps"] == steps and close(best["hours"], steps * best["step_ms"] / 3.6e6), best
    assert any("global batch" in note for note in found["notes"]), found["notes"]
    assert read(*search, "--global-batch", 4)["global_batch"] == 4
    assert read(*search, "-b", 3)["global_batch"] == 6
    # Data that does not fill a step of the batch that was given.
    data = work / "few.txt"
    data.write_bytes(b"seven rows of 64 and a target " * 15)
    search = ("--search", *TINY, *A100, "--data", data)
    for given, remedy in ((("--global-batch", 8), " or the batch (--global-batch)"),
                          (("-b", 4), ", --batch-size or --grad-accum")):  # fmt: skip
        message = plan(*search, *given, status=3).stderr
        assert message.endswith(f"give more, or lower --seq-length{remedy}\n"), message
    assert read(*search, "--global-batch", 2)["plans"][0]["steps"] == 3


def batches_of_little():
    """A batch that is looked for is no larger than what the data fill, or --tokens are."""
    data = work / "little.txt"
    data.write_bytes(bytes(range(97, 107)) * 45)  # 450 bytes: 7 samples of 64 and a target
    search = ("--model", "tiny", "-s", 64, "--ranks", 2, *A100, "--search")
    for words, batch in ((("--data", data), 4), (("--data", data, "--eval-split", 4), 2),
                         (("--tokens", 640), 8),
                         (("--tokens", 640, "--data", data), 4)):  # fmt: skip
        found = read(*search, *words)
        assert found["global_batch"] <= batch and found["plans"][0]["steps"] >= 1, (words, found)
        told = f"with {batch}, which the run's data or --tokens fill"
        assert any(told in note for note in found["notes"]), found
    assert plan(*search, "--data", data, "--global-batch", 8, status=3).stderr


def faster():
    """Offloaded states are slow with few sequences: what a larger batch or bf16 states give is said."""
    search = ("--search", "--model", "llama-1b", "--ranks", 2, "-s", 128, *A100, "--memory-limit", 5e9)
    found = read(*search, "--global-batch", 2)
    notes = " ".join(found["notes"])
    assert "--global-batch 32768" in notes, found["notes"]
    dtypes = ("--master-dtype", "bf16", "--moment-dtype", "bf16", "--reduce-dtype", "bf16")
    for words in (("--global-batch", 32768), (*dtypes, "--global-batch", 2)):
        rate = read(*search, *words)["plans"][0]["tokens_per_s"]
        said = " ".join(str(w) for w in words if "--global-batch" not in dtypes or w != 2)
        noted = (" ".join(dtypes) if words[0] == "--master-dtype" else said) in notes
        assert noted == (found["plans"][0]["tokens_per_s"] < 0.6 * rate), (words, rate, found["notes"])
    assert not read(*search[:3], "--ranks", 2, "--profile", "h100-sxm", "--model", "tiny", "-s", 8192,
                    "--global-batch", 512)["notes"]  # fmt: skip


def machines():
    """A row for each, as a search or a price by itself gives it; what fits nowhere has the reason."""
    listed = "2 a100-40 @1.5, 4 h100-sxm"
    common = ("--model", "tiny", "-s", 64, "--global-batch", 8)
    rows = read(*common, "--machines", listed, "--tokens", 1e6, "--gpu-hour", 3)["machines"]
    for row, (ranks, profile, hour) in zip(rows, [(2, "a100-40", 1.5), (4, "h100-sxm", 3)], strict=True):
        alone = read("--search", *common, "--ranks", ranks, "--profile", profile)["plans"][0]
        assert row["step_ms"] == alone["step_ms"] and row["ranks"] == ranks, (row, alone)
        assert row["command"] == alone["command"] and row["global_batch"] == 8, (row, alone)
        hours = -(-(10**6) // 512) * alone["step_ms"] / 3.6e6
        assert close(row["cost"], hours * ranks * hour), row
    given = ("--model", "tiny", "-s", 64, "-b", 3)
    rows = read(*given, "--machines", listed, "--price")["machines"]
    alone = read(*given, "--ranks", 4, "--profile", "h100-sxm", "--price")["time"]
    assert rows[1]["step_ms"] == alone["step_ms"] and rows[1]["command"] is None, rows
    rows = read("--model", "llama2-7b", "--machines", "1 a100-40, 8 b200", "-b", 1, "--price")["machines"]
    assert not rows[0]["fits"] and "the memory of profile a100-40" in rows[0]["reason"], rows
    # Where none fits there is nothing to compare; what is wrong on one of them names it.
    for how, said in ((("--price",), "does not fit"), (("-b", 1), "nothing fits")):
        none = plan("--model", "llama3-70b", "--machines", "1 a100-40", *how, status=4)
        assert said in none.stdout and "error: --machines '1 a100-40' (command line): " in none.stderr, none
    message = plan(*given, "--machines", listed, "--price", "--mesh", "fsdp=2", status=2).stderr
    assert "error: 4 h100-sxm of --machines: --mesh fsdp=2 " in message, message
    table = plan(*given, "--machines", listed, "--price").stdout
    assert table.startswith("tiny: 803,968 parameters, sequences of 64 tokens\n"), table
    assert "a100-40" in table and "h100-sxm" in table and len(table.splitlines()) == 5, table
    # Which one, in a line: how much faster, and up to which ratio of prices also cheaper; or at which cost.
    slow, fast = (row["tokens_per_s"] for row in read(*given, "--machines", listed, "--price")["machines"])
    names = ("4 h100-sxm", "2 a100-40") if fast > slow else ("2 a100-40", "4 h100-sxm")
    ratio = max(fast, slow) / min(fast, slow)
    of_a_rank = fast / slow / 2 if fast > slow else slow / fast * 2
    answer = f"{names[0]}: {ratio:.2f} times the tokens/s of {names[1]}, "
    cheaper = f"and cheaper if a rank's hour costs less than {of_a_rank:.2f} times as much"
    assert table.splitlines()[-1] == answer + cheaper, (answer + cheaper, table)
    rows = read(*given, "--machines", listed, "--price", "--tokens", 1e6, "--gpu-hour", 3)["machines"]
    paid = plan(*given, "--machines", listed, "--price", "--tokens", 1e6, "--gpu-hour", 3).stdout
    costs = [row["cost"] for row in rows][:: -1 if fast > slow else 1]
    assert f"{answer}for {costs[0] / costs[1]:.2f} times the cost\n" in paid, paid
    # A number with underscores is the same number.
    last = [plan(*given, "--machines", f"{ranks} h100-sxm, 8 a100-80", "--price").stdout.splitlines()[-1]
            for ranks in ("16", "1_6")]  # fmt: skip
    assert last[0] == last[1].replace("1_6 ", "16 "), last
    for bad in ("a100-40", "8", "8 a100-40 @", "8 a100-40 @-1", "x a100-40", "8 a100-40,"):
        assert "--machines '" in plan("--machines", bad, status=2).stderr, bad
    assert "about one machine" in plan("--machines", listed, "--ranks", 4, status=2).stderr
    # A file's own machine gives way, as a saved plan names one.
    saved = work / "saved.yaml"
    saved.write_text("model: tiny\nseq-length: 64\nranks: 8\nranks-per-node: 8\nprofile: h100-sxm\n")
    rows = read("--config", saved, "--machines", listed, "--price")["machines"]
    assert [row["ranks"] for row in rows] == [2, 4] and all(row["fits"] for row in rows), rows


def compared():
    """Files of options with prices: as each by itself."""
    for name, text in (("a", "wrap: block\n"), ("b", "wrap: none\nprofile: h100-sxm\n")):
        (work / f"{name}.yaml").write_text(text)
    files = ("--compare", work / "a.yaml", work / "b.yaml")
    priced = (*TINY, *A100, "--price", "--tokens", 1e6, "--gpu-hour", 2)
    rows = read(*TINY, *files, "--price", "--tokens", 1e6, "--gpu-hour", 2, *A100)["plans"]
    for row, wrap in zip(rows, ("block", "none"), strict=True):
        time = read(*priced, "--wrap", wrap)["time"]  # the command line's profile wins
        assert (row["step_ms"], row["cost"]) == (time["step_ms"], time["cost"]), (row, time)
    heads = plan(*TINY, *files, "--price", *A100).stdout.splitlines()[0]
    assert "step" in heads and "tokens/s" in heads and "hours" not in heads, heads
    # A file's own price stands in its row alone, whichever is first.
    (work / "c.yaml").write_text("wrap: block\nprice: on\nranks: 4\nprofile: h100-sxm\n")
    for order in (("a", "c"), ("c", "a")):
        paths = [work / f"{name}.yaml" for name in order]
        heads, *rows = plan(*TINY, "--compare", *paths).stdout.splitlines()
        cells = {row.split()[0]: row.split()[-2:] for row in rows}
        assert heads.split()[-2:] == ["step", "tokens/s"] and cells["a"] == ["-", "-"], (heads, rows)
        assert cells["c"][1].replace(",", "").isdigit(), rows
    # What a plan among others cannot be asked for is refused in a file too.
    for line in ("machines: 8 h100-sxm", "search: on\nprofile: h100-sxm", "self-test: on", "print-model: on",
                 "memory-profile: m.svg"):  # fmt: skip
        (work / "d.yaml").write_text(line + "\n")
        wrong = plan(*TINY, "--compare", work / "a.yaml", work / "d.yaml", status=2).stderr
        assert f"--{line.split(':')[0]} ({work / 'd.yaml'}:1)" in wrong and "--compare" in wrong, wrong
    # What does not fit says why; status 4 if nothing does.
    text = plan(*TINY, *files, "--memory-limit", "1MB", status=4)
    for name in ("a", "b"):
        assert re.search(rf"\n\n{name}:\n    .*1,000,000 bytes", text.stdout), text.stdout
    assert "none of these plans fits, for the reasons printed" in text.stderr, text.stderr
    rows = read(*TINY, *files, "--memory-limit", "1MB", status=4)["plans"]
    assert all(not row["fits"] and "1,000,000 bytes" in row["reason"] for row in rows), rows
    wrong = plan(*files, "--machines", "8 h100-sxm", status=2).stderr
    assert 'a file may name its own machine, as in "ranks: 8" and "profile: h100-sxm"' in wrong, wrong


def limits():
    """A plan is refused where the profile's device, or a rank's share of its host, has not the memory."""
    for arguments in (("--price",), ("--print-model",)):
        refused = plan("--model", "llama3-8b", *A100, *arguments, status=4).stderr
        assert "but the memory of profile a100-40 allows 40,000,000,000 bytes" in refused, refused
    assert not read("--model", "llama3-8b", *A100, "--price", status=4)["fits"]
    host = ("--model", "llama3-70b", "--wrap", "block", "--recompute", "block", "--cpu-offload", "on",
            "--profile", "h100-sxm")  # fmt: skip
    # 70,553,706,496 parameters, 16 bytes each of states and gradients: 1.13 TB in a node of 2 TB, not in that
    # of an A100 of 40 GB, which has 1 TB; and by rank, an eighth.
    assert plan(*host, "--ranks", 8).returncode == 0
    refused = plan(*host[:-1], "a100-40", "--ranks", 8, status=4).stderr
    allowed = "the host memory of a node of profile a100-40 over 8 ranks allows 125,000,000,000"
    assert allowed in refused, refused


programs.run_tests([lengths, documents, work_of_documents, batches, batches_of_little, faster,
                    machines, compared, limits])
