"""Routed experts end to end: meshes with the axis expert, torchprime's sharding file for Mixtral as it is,
and checkpoints and exports that know no mesh."""

import json

import programs

work = programs.folder("experts")
MIXTRAL = str(programs.ROOT / "tests" / "golden" / "accept" / "sharding" / "mixtral-fsdp.yaml")


def run(*arguments, **options):
    return programs.run(*arguments, status=0, **options).stdout


def plan_json(*arguments, ranks=4):
    return json.loads(run("fsdp_plan", "--ranks", ranks, "--backend", "cpu", "--json", *arguments))


def losses(name, ranks, *arguments):
    """Of a global batch of 24 sequences."""
    path = work / f"{name}.jsonl"
    batch = 24 // programs.batch_parts(ranks, arguments)
    size = ["--model", "tiny-mixtral", "-s", "16", "-b", batch, "--threads", "1"]
    size += ["--max-steps", "4", "--lr", "1e-2", "--log", path]
    run("fsdp_train", *size, *arguments, ranks=ranks)
    return [line["loss"] for line in programs.log_of(path)]


def trains_as_one_rank(expected):
    cases = [
        (4, ["--sharding", MIXTRAL, "--wrap", "block"]),
        (8, ["--sharding", MIXTRAL, "--mesh", "data=2,fsdp=4"]),
        (4, ["--expert-parallel", "4", "--wrap", "block"]),
        (6, ["--mesh", "fsdp=2,expert=3", "--expert-capacity", "0.5", "--strategy", "grad_op"]),
        (8, ["--mesh", "expert=2,context=2,tensor=2", "--recompute", "block"]),
        (4, ["--sharding", "fsdp-tp", "--mesh", "expert=2,tensor=2"]),
        (4, ["--sharding", MIXTRAL, "--wrap", "block", "--expert-blocks", "3"]),
        (6, ["--mesh", "fsdp=2,expert=3", "--wrap", "block", "--expert-blocks", "2", "--recompute", "block"]),
    ]
    for i, (ranks, arguments) in enumerate(cases):
        found = losses(f"case{i}", ranks, *arguments)
        assert programs.close(found, expected), (arguments, found, expected)


def waves_repeat_what_lies_otherwise():
    """Columns that tensor cuts of gate and up alone are gathered in each wave."""
    path = work / "halves.yaml"
    lines = [f'"model.layers.*.block_sparse_moe.experts.w{w}": [expert, null, {axis}]\n'
             for w, axis in ((1, "tensor"), (3, "tensor"), (2, "null"))]  # fmt: skip
    path.write_text("".join(lines))
    mesh = ["--mesh", "fsdp=1,expert=2,tensor=2", "--expert-capacity", "0.5", "--sharding", path]
    return losses("halves", 4, *mesh)


def waves_are_counted():
    """Rows beyond the first wave, waves that have them, and what the fullest rank has over the mean, as the
    experts of every token say."""
    losses("waves", 4, "--expert-parallel", "4", "--expert-capacity", "0.5", "--routing-record",
           work / "waves.routes")  # fmt: skip
    lines = programs.log_of(work / "waves.jsonl")
    numbers = memoryview((work / "waves.routes").read_bytes()[96:]).cast("H")
    tokens, layers, slots, experts = 24 * 16, 2, 2, 8
    assert len(numbers) == len(lines) * tokens * layers * slots
    room = tokens * slots // 4 // 2
    later = max(room, -(-(tokens * 2 - room) // 3))  # two experts of a rank, at most both of each token
    for step, line in enumerate(lines):
        greatest = []  # rows of the fullest of four ranks over the mean
        for layer in range(layers):
            rows = [0] * 4
            for token in range(tokens):
                first = ((step * tokens + token) * layers + layer) * slots
                for expert in numbers[first:first + slots]:
                    rows[expert * 4 // experts] += 1
            beyond = [max(0, count - room) for count in rows]
            assert line["moe/overflow_rows"][layer] == sum(beyond) > 0, (step, layer, rows, line)
            assert line["moe/waves"][layer] == sum(-(-count // later) for count in beyond), (step, rows, line)
            greatest.append(max(rows) * 4 / sum(rows))
        imbalance = sum(greatest) / layers
        assert imbalance > 1.01 and abs(line["moe/imbalance"] - imbalance) < 1e-6, (greatest, line)
    one = programs.log_of(work / "one.jsonl")
    assert all(abs(line["moe/imbalance"] - 1) < 1e-6 for line in one), one
    assert "moe/waves" not in (work / "one.jsonl").read_text()


def the_file_is_the_strategy():
    """Nothing but the names differs: the program is the strategy's, to the hash."""
    model = ["--model", "mixtral-8x7b", "--wrap", "block"]
    assert plan_json(*model, "--sharding", MIXTRAL) == plan_json(*model)


def the_batch_may_name_the_axis():
    mesh = ["--model", "tiny-mixtral", "--sharding", "fsdp", "--mesh", "fsdp=2,expert=2"]
    assert plan_json(*mesh, "--extra-data-axis", "expert")["verified"]


def experts_are_sharded_apart():
    """Experts over fsdp, what else a layer has over expert as well; what is sent over which axes."""
    made = plan_json("--model", "tiny-mixtral", "--mesh", "fsdp=2,expert=2", "--wrap", "block", "-s", "8")
    axes = {unit["path"]: unit for unit in made["units"] if unit["path"].startswith("model.layers.0")}
    assert len(axes) == 2, axes
    # 8 rows a rank and micro-step, 64 channels, 2 experts each, in fp32: x, y, d_y and d_x; experts, weights
    # and the weights' gradient; in each of 2 layers.
    rows, layers = 8, 2
    expected = layers * (4 * rows * 64 * 4 + 3 * rows * 2 * 4)
    assert made["comm"]["by_axis"]["expert"] == expected, made["comm"]


def checkpoints_go_anywhere():
    save = ["--save-dir", work, "--ckpt-freq", "4", "--wrap", "block"]
    losses("saved", 4, *save, "-e", "four", "--expert-parallel", "4")
    four = next((work / "four").rglob("checkpoint.json")).parent
    # Resumed on other ranks at its last step: what is exported from there is what was saved.
    run("fsdp_export", four, "--to", work / "exported")
    losses("resumed", 3, *save, "-e", "three", "--resume", four, "--mesh", "fsdp=3", "--max-steps", "5")
    resumed = losses("again", 4, *save, "-e", "again", "--resume", four, "--mesh", "expert=2,tensor=2",
                     "--max-steps", "5")
    found = json.loads((work / "resumed.jsonl").read_text().splitlines()[-1])["loss"]
    assert abs(found - resumed[-1]) <= 2e-5 * found, (found, resumed)
    tensors = programs.read_safetensors(work / "exported" / "model.safetensors")
    assert tensors["model.layers.1.block_sparse_moe.experts.7.w2.weight"][1] == [64, 96]
    # Weights of the export, on a mesh that cuts experts unevenly.
    model = ["--model", work / "exported", "--init", "weights", "--tokenizer", "bytes",
             "--max-steps", "1"]
    one = losses("exported-one", None, *model)
    assert programs.close(losses("exported-three", 3, *model, "--expert-parallel", "3"), one)


def blocks_are_nothing_to_a_checkpoint():
    """Saved with blocks of experts, and without, and resumed the other way: equal to the bit at the end."""
    made = ["--mesh", "fsdp=2,expert=2", "--wrap", "block", "--grad-clip", "0", "--save-dir", work,
            "--ckpt-freq", "2"]  # fmt: skip
    blocks = ["--expert-blocks", "3"]  # of the four experts of a rank
    found = {}
    for name, first, then in (("without", [], []), ("to", [], blocks), ("from", blocks, [])):
        losses(f"{name}-first", 4, *made, "-e", f"blocks-{name}", "--max-steps", "2", *first)
        found[name] = losses(f"{name}-then", 4, *made, "-e", f"blocks-{name}", *then)
        saved = work / f"blocks-{name}" / "step-00000004"
        run("fsdp_export", saved, "--to", work / f"exported-{name}")
    weights = {name: (work / f"exported-{name}" / "model.safetensors").read_bytes() for name in found}
    assert found["without"] == found["to"] == found["from"], found
    assert weights["without"] == weights["to"] == weights["from"]


def a_block_is_a_unit():
    """Of each layer's experts, three weights of 64 x 96 each: 8 experts in 3 blocks."""
    made = plan_json("--model", "tiny-mixtral", "--wrap", "block", "--expert-blocks", "3")
    units = [unit for unit in made["units"] if "expert block" in unit["path"] and "layers.1" in unit["path"]]
    assert [unit["numel"] for unit in units] == [n * 3 * 64 * 96 for n in (2, 3, 3)], units
    one = plan_json("--model", "tiny-mixtral", "--wrap", "block")
    assert made["comm"] == one["comm"], (made["comm"], one["comm"])  # as many bytes
    assert made["memory"]["peak_bytes"] < one["memory"]["peak_bytes"]


def refused(parts, *arguments):
    process = programs.run("fsdp_plan", "--ranks", 4, "--backend", "cpu", *arguments)
    messages = programs.errors(process, "fsdp_plan")
    assert process.returncode in (2, 3, 4) and len(messages) == 1, (arguments, process.stderr)
    for part in parts:
        assert part in messages[0], (part, messages[0])


def what_is_wrong_is_named():
    for option, value in (("mesh", "fsdp=2,expert=2"), ("expert-parallel", "2"), ("expert-blocks", "2")):
        refused([f"--{option} {value} (command line) ", "routed experts, and ", " has none"],
                "--model", "tiny", f"--{option}", value)  # fmt: skip
    refused(["--expert-capacity 2", "as many routed rows", "--expert-parallel"], "--model", "tiny-mixtral",
            "--expert-capacity", "2")
    rule = ["--model", "tiny-mixtral", "--sharding", "fsdp", "--shard"]
    w1, w3 = (f"model.layers.*.block_sparse_moe.experts.{name}" for name in ("w1", "w3"))
    refused(["w3", "w1", "one stacked weight"], *rule, f"{w1}=[~, ~, fsdp]", "--shard", f"{w3}=[~, ~, ~]")
    blocks = ["--model", "tiny-mixtral", "--wrap", "block", "--expert-blocks"]
    refused(["--expert-blocks 9", "8 experts", "at most 8"], *blocks, "9")
    refused(["--expert-blocks 3", "a rank has 2", "at most 2"], *blocks, "3", "--expert-parallel", "4")
    refused(["--expert-blocks 2", "--wrap", "--wrap block"], *blocks, "2", "--wrap", "none")
    refused(["out of range"], *rule, "model.layers.*[1]=[fsdp, ~, ~]")
    (work / "strategies.yaml").write_text("model.layers.*.self_attn.o_proj: [[2, 2], [1, 2]]\n")
    refused(["--op-strategies", "routed experts"], "--model", "tiny-mixtral", "--op-strategies",
            work / "strategies.yaml")


def room_is_made_for_what_fits():
    """Less room where all rows that a rank's experts can be sent do not fit."""
    words = ["--model", "tiny-mixtral", "--mesh", "fsdp=1,expert=4", "-s", "256", "-b", "2", "--wrap",
             "block"]  # fmt: skip
    need = {size: plan_json(*words, "--expert-capacity", size)["memory"]["peak_bytes"]
            for size in ("0", "2", "1.25", "1")}
    room = 1.01  # of the peak an arena takes: less than what the next capacity saves
    assert need["0"] > room * need["2"] > room**2 * need["1.25"] > room**3 * need["1"], need
    # 4 ranks x 512 rows, 2 experts of a rank, both of each row at most; 1,024 if all get as many.
    for most, rows in (("0", "4,096"), ("2", "2,048"), ("1.25", "1,280"), ("1", "1,024")):
        limit = ["--memory-limit", int(room * need[most])]
        said = run("fsdp_plan", "--ranks", 4, "--backend", "cpu", *words, *limit)
        assert f"Experts: room for {rows} of the 4,096 routed rows" in said, (most, said)
        assert (most == "0") == ("further wave" not in said), said
    refused(["on the device"], *words, "--memory-limit", int(room * need["1"]), "--expert-capacity", "0")


the_file_is_the_strategy()
room_is_made_for_what_fits()
experts_are_sharded_apart()
a_block_is_a_unit()
the_batch_may_name_the_axis()
what_is_wrong_is_named()
if programs.WITH_MPI:
    alone = losses("one", None)
    trains_as_one_rank(alone)
    assert programs.close(waves_repeat_what_lies_otherwise(), alone)
    waves_are_counted()
    checkpoints_go_anywhere()
    blocks_are_nothing_to_a_checkpoint()
