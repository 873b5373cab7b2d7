"""fsdp_plan end to end: what is on which stream, counts that users know, speed, formulas, pictures."""

import json
import re
import resource
import subprocess

import xml.etree.ElementTree

import programs

work = programs.folder("plan")


def plan(*arguments):
    return programs.run("fsdp_plan", *arguments, status=0)


def plan_json(*arguments):
    return json.loads(plan("--json", *arguments).stdout)


def streams():
    for name in ("7b", "70b"):
        model = ["--model", f"llama2-{name}", "--ranks", "8", "--numel-to-wrap", "1e8", "--print-model"]
        process = plan(*model)
        accepted = programs.ROOT / "tests" / "golden" / "accept"
        golden = (accepted / f"llama2-{name}.numel-to-wrap-1e8.tree.txt").read_text()
        assert process.stdout.startswith(golden)  # the tree, byte for byte, and then the table
        rest = process.stdout[len(golden) :]
        assert rest.startswith("\nplanned for a CPU") and "Verified: yes" in rest and not process.stderr
    process = plan()
    assert "Verified: yes" in process.stdout and not process.stderr
    process = plan("--print-program", "--print-model", "--ranks", "2", "--wrap", "block")
    parts = "FullyShardedDataParallel(", "\n# position, ", "\n     0 host ", "\nplanned for", "Verified: yes"
    order = [process.stdout.index(part) for part in parts]
    assert order == sorted(order) and not process.stderr
    assert not plan("--json").stderr


def legend_of_the_program():
    """Whatever is in the list is explained above it."""
    options = ["--print-program", "--ranks", "2", "--wrap", "block", "--param-dtype", "bf16"]
    shown = plan(*options).stdout.splitlines()
    legend = " ".join(line for line in shown if line.startswith("# "))
    listed = [line for line in shown if re.match(r" *\d+ [a-z_]+ +[a-z_]+ ", line)]
    letters = set(re.findall(r" ([a-z]) \w", " ".join(line.split(" | ")[0] for line in listed)))
    assert letters == {"r", "w", "u"} and all(f" {letter} " in legend for letter in letters), legend
    assert any("+fsdp*" in line for line in listed) and "+fsdp*N" in legend and "[a:b]" in legend
    reasons = set(re.findall(r"\d+\((\w+)\)", " ".join(listed)))
    assert reasons == {"data", "reuse", "policy"} and all(reason in legend for reason in reasons)


def what_it_planned_for():
    assert "planned for a CPU, parameters in fp32; for a GPU add --backend cuda" in plan().stdout
    assert "planned for a GPU, parameters in bf16\n" in plan("--backend", "cuda").stdout
    alone = {"ranks_per_node": 1, "across_nodes": None}
    assert plan_json()["planned_for"] == {"device": "cpu", "param_dtype": "fp32"} | alone
    assert plan_json("--backend", "cuda")["planned_for"] == {"device": "cuda", "param_dtype": "bf16"} | alone


def ranks_and_their_batch():
    arguments = ["--ranks", 12, "--ranks-per-node", 4, "--strategy", "hybrid", "-b", 3, "-s", 10]
    arguments += ["--grad-accum", 2]
    report, text = plan_json(*arguments), plan(*arguments).stdout
    assert report["mesh"] == {"data": 3, "fsdp": 4}
    assert report["batch"] == {"parts": 12, "sequences": 72, "tokens": 720}
    assert report["planned_for"]["ranks_per_node"] == 4 and report["planned_for"]["across_nodes"] == "data"
    assert "on nodes of 4 ranks: data across nodes\n" in text
    assert "12 ranks (data=3, fsdp=4), strategy hybrid" in text
    assert "micro-batch of 3 x 10 tokens per rank, 2 per step" in text
    assert plan_json("--ranks", 12)["planned_for"]["across_nodes"] == "fsdp"  # the second node has four
    one_node = plan("--ranks", 4).stdout
    assert "across nodes" not in one_node


def what_does_not_fit_is_shown():
    arguments = ["--model", "llama2-7b", "--ranks", "8", "--memory-limit", "10GB"]
    for asked in ([], ["--print-model"], ["--json"])[:: programs.stride(2)]:
        process = programs.run("fsdp_plan", *arguments, *asked, status=4)
        programs.check_message(process, "fsdp_plan", ())
        if asked == ["--json"]:
            report = json.loads(process.stdout)
            assert report["fits"] is False and report["memory"]["arena_bytes"] > 10e9
        else:
            assert "arena, allocated" in process.stdout and "Verified: yes" in process.stdout, process.stdout
    assert plan_json("--memory-limit", "1GB")["fits"] is True
    # What is advised can be added as it is written, to a mesh with replicas too.
    arguments = ["--model", "llama2-7b", "--ranks", "4", "--wrap", "block", "--prefetch", "0", "-s", "64"]
    for mesh in ("data=2,fsdp=2", "data=2,tensor=2")[:: programs.stride(2)]:
        limited = [*arguments, "--strategy", "hybrid", "--mesh", mesh, "--memory-limit", "32GB"]
        message = programs.refused("fsdp_plan", *limited, status=4)
        advice = re.search("or add (.*), which needs", message)[1].split()
        assert "--strategy" in advice, message
        assert plan_json(*limited, *advice)["fits"] is True, message
    for limit, said in (("50GB", "--accumulate reduce"), ("35GB", "--strategy full"))[:: programs.stride(2)]:
        limited = [*arguments, "--strategy", "zero1", "--grad-accum", "2", "--memory-limit", limit]
        message = programs.refused("fsdp_plan", *limited, status=4)
        advice = re.search("or add (.*), which needs ([0-9.]+) GB", message)
        assert said in advice[1], message
        followed = plan_json(*limited, *advice[1].split())
        assert followed["fits"] is True, message
        assert abs(followed["memory"]["arena_bytes"] / 1e9 - float(advice[2])) < 0.1, message


def other_meshes_are_advised():
    """Where all else has been done, ranks share sequences or layers; a step stays the same."""
    common = ["--wrap", "block", "--prefetch", "0", "--recompute", "block", "--backend", "cuda",
              "--ranks", "16", "--ranks-per-node", "8", "--memory-limit", "40GB", "-s", "131072"]  # fmt: skip
    long = [*common, "--model", "llama3-70b", "--cpu-offload", "--offload-activations", "block_inputs"]
    whole = [*common, "--model", "llama3-8b", "--strategy", "zero1"]
    priced = [*long, "--profile", "a100-40"]  # a rank has 125 GB of its node's 1 TB
    for options, axis in ((long, "context=2"), (priced, "context=4"), (whole, "tensor=4")):
        message = programs.refused("fsdp_plan", *options, status=4)
        advice = re.search("or add (--mesh .*), which needs", message)[1].split()
        assert axis in advice[1], message
        followed = plan_json(*options, *advice)
        sizes = dict(size.split("=") for size in advice[1].split(","))
        assert int(sizes["data"]) * int(sizes["fsdp"]) * int(advice[3]) == 16, message
        assert followed["fits"] is True, message


def rows_with_padding_fit_an_int():
    """Kernels count rows in ints: those that chunks of equal size add count too. And more sequences times
    heads than a grid has blocks along y are no problem."""
    most = ["--ranks", 3, "--context-parallel", 3, "-s", 16777213, "-b"]
    assert "Verified: yes" in plan(*most, 127).stdout
    programs.refused("fsdp_plan", *most, 128, parts=["16777218 tokens (with padding)"])
    many = ["--backend", "cuda", "--model", "gpt2", "-b", 8192, "-s", 16, "--ranks", 8]
    assert "Verified: yes" in plan(*many).stdout


def what_looks_like_a_mistake_is_told():
    assert not plan("-s", 4096).stderr
    assert "note: sequences of 4097 tokens are longer than the 4096 positions" in plan("-s", 4097).stderr
    dense = ["--price", "--profile", "h100-sxm", "--imbalance", 3]
    programs.refused("fsdp_plan", *dense, parts=["--imbalance (command line)", "experts, and this has none"])


def long_sequences():
    """70B on 64 ranks at 131,072 tokens: each rank of eight saves an eighth, and a unit's gathers stay."""
    model = ["--model", "llama3-70b", "--ranks", "64", "--backend", "cuda", "-s", "131072", "--wrap", "block",
             "--recompute", "block"]  # fmt: skip
    whole, part = plan_json(*model), plan_json(*model, "--context-parallel", "8")
    assert whole["activations"]["kept_bytes"] == 8 * part["activations"]["kept_bytes"] > 0
    gathered = [report["memory"]["by_category"]["gathered"] for report in (whole, part)]
    assert gathered[0] == gathered[1]
    assert part["memory"]["peak_bytes"] < 80e9 < 200e9 < whole["memory"]["peak_bytes"]


def several_in_one_table():
    files = []
    common = "model: llama2-7b\nranks: 16\nwrap: block\nbackend: cuda\n"
    for name, text in (
        ("full", "strategy: full\n"),
        ("whole", "strategy: no\n"),
        ("mixed", "strategy: hybrid\nmesh: data=2,fsdp=8\n"),
        ("state", "strategy: zero1\n"),
    ):
        files.append(work / f"{name}.yaml")
        files[-1].write_text(common + text)
    # The command line wins over each file, as it does over one.
    common = ["--seq-length", "512", "--memory-limit", "80GB"]
    process = plan("--compare", *files, *common)
    assert not process.stderr, process.stderr
    other = plan("--compare", *files[:2], "--ranks", 8, "--wrap", "block").stderr.splitlines()
    assert other == [f"fsdp_plan: note: {file}: given otherwise on the command line: --ranks 16 → 8"
                     for file in files[:2]], other  # fmt: skip
    table, reason = (part.splitlines() for part in process.stdout.split("\n\n"))
    assert reason[0] == "whole:" and "80,000,000,000 bytes" in reason[1] and len(reason) == 2, reason
    columns = "name strategy mesh device valley peak arena host sent instructions fits"
    assert table[0].split() == columns.split()
    rows = [line.split() for line in table[1:]]
    assert [row[0] for row in rows] == ["full", "whole", "mixed", "state"]
    assert len({len(line.rsplit(None, 1)[0]) for line in table}) == 1  # its columns are straight
    assert [row[1] for row in rows] == ["full", "no", "hybrid", "zero1"]
    assert [row[2] for row in rows] == ["data=1,fsdp=16", "data=16,fsdp=1", "data=2,fsdp=8", "data=1,fsdp=16"]
    assert [row[-1] for row in rows] == ["yes", "no", "yes", "yes"]
    limited = json.loads(plan("--json", "--compare", *files, *common).stdout)["plans"]
    entries = json.loads(plan("--json", "--compare", *files, *common[:2]).stdout)["plans"]
    for entry, limited_entry, file in zip(entries, limited, files):
        alone = plan_json("--config", file, *common[:2])
        memory = alone["memory"]
        for key in ("valley_bytes", "peak_bytes", "arena_bytes", "host_bytes"):
            assert entry[key] == memory[key], (file, key)
        assert entry["sent_bytes"] == sum(alone["comm"]["by_axis"].values())
        assert entry["instructions"] == alone["program"]["instructions"]
        assert limited_entry["fits"] == (memory["arena_bytes"] <= 80e9) and entry["name"] == file.stem
    files[1].write_text("strategy: zero9\n")
    programs.refused("fsdp_plan", "--compare", *files, parts=["whole.yaml:1", "zero9"])
    programs.refused("fsdp_plan", "--compare", work / "none.yaml", status=3)


def output_is_whole_or_fails():
    """A plan, its JSON or its help that a full disk cuts off is status 3, not a short file in silence."""
    for program, arguments in (("fsdp_plan", []),
                               ("fsdp_plan", ["--json"]), ("fsdp_plan", ["--print-program"]),
                               ("fsdp_plan", ["--help"]),
                               ("fsdp_plan", ["--compare", work / "full.yaml"]),
                               ("fsdp_export", ["--help"]),
                               ("fsdp_profile", ["--help"])):  # fmt: skip
        with open("/dev/full", "w") as full:
            process = subprocess.run([programs.BIN / program, *arguments], stdout=full, text=True,
                                     stderr=subprocess.PIPE)  # fmt: skip
        (message,) = programs.errors(process, program)
        assert process.returncode == 3 and "standard output cannot be written" in message, process


def takes_every_option_of_training():
    """A training command, or its file of options, is planned unchanged."""
    names = {program: set(re.findall(r"--[a-z][a-z0-9-]+", programs.run(program, "--help").stdout))
             for program in ("fsdp_train", "fsdp_plan")}  # fmt: skip
    assert len(names["fsdp_train"]) > 40
    assert names["fsdp_train"] - {"--auto", "--print-config"} <= names["fsdp_plan"]
    (work / "run.yaml").write_text("tensorboard: events\nbind: off\nlog: log.jsonl\nckpt-freq: 5\n")
    plan("--config", work / "run.yaml", "--comm-timeout", "60", "--set", "allow-shared-gpu=on",
         "--nccl-register", "off")


def gpu_memory_beside_the_arena():
    """1 GB, and 0.3 GB for each communicator (a set of axes and a stream), count against a limit."""
    cases = ((1, (), 0), (4, (), 2), (4, ("--mesh", "data=2,fsdp=2"), 4), (4, ("--strategy", "no"), 1))
    for ranks, more, communicators in cases[:: programs.stride(2)]:
        if "--mesh" in more:
            more += ("--strategy", "hybrid")
        arguments = ("--model", "llama-1b", "--wrap", "block", "--ranks", ranks, *more)
        assert plan_json(*arguments)["memory"]["reserve_bytes"] == 0  # on a CPU
        arguments += ("--backend", "cuda")
        memory = plan_json(*arguments)["memory"]
        reserve = 1_000_000_000 + 300_000_000 * communicators
        assert memory["reserve_bytes"] == reserve, (ranks, more, memory)
        assert re.search(rf"reserve, not measured +{reserve / 1e9:.2f} GB", plan(*arguments).stdout)
        refused = programs.run("fsdp_plan", *arguments, "--memory-limit", "1GB")
        least = int(re.search(r"needs ([0-9,]+) bytes", refused.stderr).group(1).replace(",", ""))
        assert memory["peak_bytes"] <= least - reserve <= memory["arena_bytes"]
        plan(*arguments, "--memory-limit", least)
        refused = programs.run("fsdp_plan", *arguments, "--memory-limit", least - 1)
        assert refused.returncode == 4 and "of it beside the arena" in refused.stderr, refused.stderr


def unit_counts():
    cases = (("llama2-7b", "1e8", 36), ("llama2-70b", "1e8", 323), ("llama2-7b", "5e7", 67),
             ("llama2-7b", "2e8", 33))
    cases += (("llama2-7b", "1e9", 2), ("llama2-7b", "1e10", 1), ("llama3-405b", "1e8", 634))
    for model, numel, count in cases[:: programs.stride(3)]:
        report = plan_json("--model", model, "--ranks", "8", "--numel-to-wrap", numel)
        assert len(report["units"]) == count, (model, numel, len(report["units"]))
    assert report["model"]["parameters"] == sum(unit["numel"] for unit in report["units"])


def shape_of_the_json():
    report = plan_json("--model", "llama2-7b", "--ranks", "8")
    assert report["model"]["parameters"] == 6738415616
    assert set(report["units"][0]) == {"path", "class", "numel", "padded_numel"}
    memory = {"valley_bytes", "peak_bytes", "arena_bytes", "peak_at", "host_bytes", "by_category"}
    assert memory <= set(report["memory"])
    comm = {"all_gather_bytes", "reduce_scatter_bytes", "all_reduce_bytes", "scalar_bytes", "by_axis"}
    assert comm == set(report["comm"])
    assert {"instructions", "hash"} <= set(report["program"])
    assert report["verified"] is True


def redistributions_are_by_axis():
    """More ranks on tensor than key/value heads: of what goes over tensor, all but the head's statistics (12
    bytes a row and rank) and gradients are listed, under the axes that were given."""
    mesh = ["--ranks", "16", "--mesh", "fsdp=2,tensor=4,context=2", "--wrap", "block", "-s", "64"]
    report = plan_json(*mesh)
    listed = {}
    for row in report["redistributions"]:
        listed[row["axes"]] = listed.get(row["axes"], 0) + row["sent_bytes"]
    sent = report["comm"]["by_axis"]
    assert set(listed) == {"tensor", "context"}
    assert set(sent) == {*listed, "fsdp+context", "fsdp+tensor+context"}
    kept = plan_json(*mesh, "--offload-activations", "gather")  # nothing is gathered again
    assert listed["context"] == kept["comm"]["by_axis"]["context"] < sent["context"]
    hidden, keys, layers, rows = 128, 32, 4, 32
    norms = (2 * layers + 1) * hidden * 4 // 4  # their shards of fp32
    replicas = layers * 2 * keys * hidden * 4 // 4
    sums = 2 * norms * 3 // 4 + 2 * replicas // 2
    assert sent["tensor"] == listed["tensor"] + 12 * rows * 3 + sums, (sent, listed, sums)


def formulas():
    """Padded parameters P over F shards: 12 P / F bytes of state, and what the collectives send."""
    ranks = 8
    model = ["--model", "llama2-7b", "--ranks", str(ranks), "--wrap", "block"]
    full = plan_json(*model)
    padded = sum(unit["padded_numel"] for unit in full["units"])
    assert full["memory"]["valley_bytes"] == 12 * padded // ranks
    assert full["comm"]["reduce_scatter_bytes"] == 4 * padded * (ranks - 1) // ranks
    grad_op = plan_json(*model, "--strategy", "grad_op")
    assert grad_op["comm"]["all_gather_bytes"] == 4 * padded * (ranks - 1) // ranks
    assert full["comm"]["all_gather_bytes"] <= 2 * grad_op["comm"]["all_gather_bytes"]
    # Parameters whole, the state sharded: 2 P and 12 P / F. Gradients are reduced once a step.
    zero1 = plan_json(*model, "--strategy", "SHARD_OPTIMIZER", "--param-dtype", "bf16", "--grad-accum", 4)
    assert zero1["memory"]["valley_bytes"] == 2 * padded + 12 * padded // ranks
    assert zero1["comm"]["all_gather_bytes"] == 2 * padded * (ranks - 1) // ranks
    assert zero1["comm"]["reduce_scatter_bytes"] == 4 * padded * (ranks - 1) // ranks
    each = plan_json(*model, "--strategy", "zero1", "--grad-accum", 4, "--accumulate", "reduce")
    assert each["comm"]["reduce_scatter_bytes"] == 4 * zero1["comm"]["reduce_scatter_bytes"]
    assert each["comm"]["all_gather_bytes"] == 2 * zero1["comm"]["all_gather_bytes"]  # in fp32
    no = plan_json(*model, "--strategy", "no")
    padded = sum(unit["padded_numel"] for unit in no["units"])
    assert no["comm"]["all_reduce_bytes"] == 2 * 4 * padded * (ranks - 1) // ranks
    assert no["comm"]["all_gather_bytes"] == no["comm"]["reduce_scatter_bytes"] == 0
    hybrid = plan_json(*model, "--strategy", "hybrid", "--mesh", "data=2,fsdp=4")["comm"]
    by_axis = hybrid.pop("by_axis")
    assert set(by_axis) == {"fsdp", "data", "data+fsdp"} and sum(by_axis.values()) == sum(hybrid.values())
    assert by_axis["data"] == hybrid["all_reduce_bytes"] and by_axis["data+fsdp"] == hybrid["scalar_bytes"]
    peaks = [report["memory"]["peak_bytes"] for report in (full, grad_op, no)]
    assert peaks == sorted(peaks) and len(set(peaks)) == 3
    offload = plan_json(*model, "--cpu-offload")
    memory = offload["memory"]
    assert memory["valley_bytes"] < 1e6 and memory["host_bytes"] > 12 * padded // ranks
    hybrid = plan_json("--model", "llama2-7b", "--ranks", "16", "--wrap", "block", "--strategy", "hybrid")
    assert hybrid["memory"]["valley_bytes"] == full["memory"]["valley_bytes"]  # 8 ranks per node by default
    assert hybrid["comm"]["all_reduce_bytes"] > 0


def recomputed_blocks_keep_one_value():
    """A layer more keeps one value of N x C more where blocks are recomputed: the sum that enters it. What is
    kept is not computed into memory of its own again."""
    batch, seq, hidden = 4, 128, 64
    kept = []
    for layers in (8, 9, 12):
        folder = work / f"layers{layers}"
        config = dict(programs.CONFIG, num_hidden_layers=layers, hidden_size=hidden)
        programs.make_model(folder, config, weights=False)
        for width, dtype in ((4, "fp32"), (2, "bf16")):
            settings = ["--wrap", "block", "--recompute", "block", "--param-dtype", dtype]
            options = [*settings, "-b", batch, "-s", seq]
            memory = plan_json("--model", folder, "--ranks", 2, *options)["memory"]
            activations = memory["by_category"]["activations"]
            kept.append((dtype, layers, activations / (batch * seq * hidden * width)))
    by_layers = {(dtype, layers): values for dtype, layers, values in kept}
    for dtype in ("fp32", "bf16"):
        assert by_layers[dtype, 9] - by_layers[dtype, 8] == 1, by_layers
        assert by_layers[dtype, 12] - by_layers[dtype, 8] == 4, by_layers


def saved_activations():
    """What layers save, by closed formulas in bytes of a token, and what is gained by not keeping it."""
    heads, C, F, layers, rows = 32, 4096, 11008, 32, 10 * 1024
    a_token = {"block_inputs": 2 * C, "rmsnorm": 2 * (2 * C + 4), "linear": 2 * 3 * C + 2 * 2 * F,
               "attention": 2 * C + 4 * heads, "residual": 2 * C, "swiglu": 2 * F}  # fmt: skip
    model = ["--model", "llama2-7b", "--backend", "cuda", "--ranks", "8", "-b", "10", "-s", "1024",
             "--wrap", "block"]
    whole = sum(a_token.values()) * rows * layers
    report = plan_json(*model)
    saved = report["activations"]
    assert report["memory"]["arena_bytes"] <= 55.6e9 and saved["kept_bytes"] == whole
    assert saved["layers"][0]["kept"] == list(a_token) and saved["recomputed_flops"] == 0
    # Norms and activations again: no gemm, and no layer kept more than its gemms and attention made.
    dropped = (a_token["rmsnorm"] + a_token["swiglu"]) * rows * layers
    few = ["--recompute", "rmsnorm,swiglu"]
    report = plan_json(*model, *few)
    saved = report["activations"]
    assert report["memory"]["arena_bytes"] <= 43.5e9 and saved["recomputed_flops"] == 0
    assert (saved["kept_bytes"], saved["recomputed_bytes"]) == (whole - dropped, dropped)
    # The first 8 layers whole.
    report = plan_json(*model, "--recompute", "rmsnorm,swiglu,block:8")
    first = (sum(a_token.values()) - a_token["block_inputs"]) * rows * 8
    assert report["memory"]["arena_bytes"] <= 37e9
    assert report["activations"]["recomputed_bytes"] == first + dropped * (layers - 8) // layers
    assert 0.06 < report["activations"]["recomputed_share"] < 0.07
    # The residual stream and attention to the host, but for the last layer, which would have no time.
    report = plan_json(*model, *few, "--offload-activations", "residual,attention")
    away = (a_token["block_inputs"] + a_token["residual"] + a_token["attention"]) * rows * (layers - 1)
    assert report["memory"]["arena_bytes"] <= 37e9
    assert report["activations"]["offloaded_bytes"] == away
    assert away <= report["memory"]["host_bytes"] < away + 1e6
    # A fetch over PCIe takes longer than all but the gemms; the residual stream enters a layer.
    cheaper = report["activations"]["layers"][0]["cheaper_recomputed"]
    assert "attention:self_attn" in cheaper and all(0 < ratio < 1 for ratio in cheaper.values())
    assert report["activations"]["layers"][-1]["offloaded"] == []
    # The figures of docs/usage.md are those of this plan.
    page = (programs.ROOT / "docs" / "usage.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| `(\S+)` \| (\S+ GB) \| ", page, re.M)
    assert len(rows) == 5
    for recomputed, offloaded, arena in rows:
        page = plan(*model, "--recompute", recomputed, "--offload-activations", offloaded).stdout
        planned = re.search(r"arena, allocated +(\S+ GB)", page).group(1)
        said = re.findall(r"^activations recomputed: (\S+); offloaded: (\S+)$", page, re.M)
        rules = (recomputed, offloaded)
        assert said == ([rules] if rules != ("none", "none") else []), said
        assert planned == arena, f"docs/usage.md: {recomputed}, {offloaded}: {arena}, but planned {planned}"
    # 70 billion parameters on 80 GB, with the states in bf16.
    large = ["--model", "llama2-70b", "--backend", "cuda", "--ranks", "8", "-b", "4", "-s", "4096",
             "--master-dtype", "bf16", "--moment-dtype", "bf16", "--reduce-dtype", "bf16",
             "--recompute", "block"]  # fmt: skip
    kept = plan_json(*large)["memory"]
    report = plan_json(*large, "--offload-activations", "block_inputs")
    inputs = 2 * 8192 * 4 * 4096 * 79
    assert report["memory"]["arena_bytes"] <= 78e9 < kept["arena_bytes"]
    assert report["activations"]["offloaded_bytes"] == inputs
    assert inputs <= report["memory"]["host_bytes"] < inputs + 1e6


def a_gpu_needs_none():
    report = plan_json("--model", "llama2-7b", "--ranks", "8", "--backend", "cuda", "--wrap", "block")
    cpu = plan_json("--model", "llama2-7b", "--ranks", "8", "--wrap", "block", "--param-dtype", "bf16")
    assert report["comm"] == cpu["comm"]  # bf16 is a GPU's default
    there, here = (r["memory"]["valley_by_category"] for r in (report, cpu))
    workspace = there.pop("workspace") - here.pop("workspace")
    assert there == here  # but for what the GPU's matrix products keep, a planned constant
    assert workspace == report["memory"]["valley_bytes"] - cpu["memory"]["valley_bytes"] > 0


def large_plans_take_little_memory():
    """How long they take is no test's: `time build/bin/fsdp_plan ...` on a quiet machine says it."""
    if programs.SLOW:
        return
    block = ["--wrap", "block"]
    mesh = ["--tensor-parallel", "8", "--context-parallel", "2"]
    for ranks, options in (("512", []), ("512", block), ("16384", mesh), ("16384", [*mesh, *block])):
        command = [str(programs.BIN / "fsdp_plan"), "--model", "llama3-405b", "--json", "--ranks", ranks]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1e6  # kB


def pictures():
    for name, arguments in (
        ("one", []),
        ("many", ["--cpu-offload", "--grad-accum", "4"]),
        ("away", ["--offload-activations", "attention"]),
    ):
        model = ["--model", "llama2-7b", "--ranks", "8", "--wrap", "block", *arguments]
        picture, series = work / f"{name}.svg", work / f"{name}.json"
        page = plan(*model, "--memory-profile", picture).stdout
        plan(*model, "--memory-profile", series)
        elements = xml.etree.ElementTree.parse(picture).iter()
        texts = [element.text or "" for element in elements if "text" in element.tag]
        for word in ("forward", "backward", "update", "activations", "gathered parameters",
                     "optimizer state"):
            assert any(word in text for text in texts), (name, word)
        profile = json.loads(series.read_text())
        peak, position = profile["device"]["peak_bytes"], profile["device"]["peak_position"]
        assert sum(bytes_at[position] for bytes_at in profile["device"]["bytes"].values()) == peak
        assert f"{peak:,}" in page
        assert ("bytes live on the host" in texts) == (name != "one"), name
        held = profile["host"]["bytes"]["activations"]
        assert (max(held) > 0) == (name == "away") and held[0] == held[-1] == 0
        # Halos are texts of their own: not every renderer knows paint-order.
        drawn = picture.read_text()
        assert "paint-order" not in drawn
        for label in re.findall(r'<text ([^>]*class="(?:peak|small)">[^<]*)</text>', drawn):
            assert label.replace('">', ' halo">', 1) in drawn, label
        assert drawn.count(' halo">') == len(re.findall(r'class="(?:peak|small)">', drawn)) >= 4
        marked = [text for text in texts if text.startswith(f"at instruction {position}: ")]
        assert len(marked) >= 1 and profile["instructions"][position] in marked[0]
        assert not list(work.glob("*.tmp"))


programs.run_tests([streams, legend_of_the_program, what_it_planned_for, ranks_and_their_batch,
                    what_does_not_fit_is_shown, other_meshes_are_advised, rows_with_padding_fit_an_int,
                    what_looks_like_a_mistake_is_told, long_sequences, several_in_one_table,
                    output_is_whole_or_fails, takes_every_option_of_training, gpu_memory_beside_the_arena,
                    unit_counts, shape_of_the_json, redistributions_are_by_axis, formulas,
                    recomputed_blocks_keep_one_value, saved_activations, a_gpu_needs_none,
                    large_plans_take_little_memory, pictures])
