"""--sharding, --shard and --extra-data-axis end to end: the same training as on one rank, the same plans as
the strategies', files that read back, checkpoints across placements, and one clear message for what is
wrong."""

import json
import pathlib

import programs

work = programs.folder("sharding")
FILES = programs.ROOT / "tests" / "golden" / "accept" / "sharding"
FSDP, FSDP_TP, FSDP_TP_CP, SHORT = (
    str(FILES / f"llama-{name}.yaml") for name in ("fsdp", "fsdp-tp", "fsdp-tp-cp", "fsdp-tp-short")
)


def run(*arguments, **options):
    return programs.run(*arguments, status=0, **options).stdout


def plan(*arguments, ranks=4):
    return run("fsdp_plan", "--ranks", ranks, *arguments)


def plan_json(*arguments, ranks=4):
    return json.loads(plan("--json", *arguments, ranks=ranks))


def losses(name, ranks, *arguments):
    """Of a global batch of 24 sequences."""
    path = work / f"{name}.jsonl"
    batch = 24 // programs.batch_parts(ranks, arguments)
    size = ["-s", "32", "-b", batch, "--max-steps", "4", "--lr", "1e-2", "--threads", "1"]
    out = run("fsdp_train", *size, "--log", path, *arguments, ranks=ranks)
    return [line["loss"] for line in programs.log_of(path)], out


PARTS = {
    "sums": "model.layers.*.self_attn.o_proj.weight: [null, tensor]\n"
    "model.layers.*.mlp.down_proj.weight: [null, tensor]\n",
    "residual": "model.layers.*: [[data, fsdp], null, tensor]\n",
    "pieces": "model.layers.*: [[data, fsdp], tensor, null]\nlm_head.weight: [fsdp, null]\n",
    "head": "lm_head.weight: [tensor, null]\n",
}


def part(name):
    return written(f"{name}.yaml", PARTS[name])


def rest_follows():
    """Weights without a line: what fsdp-tp says follows from a part of it, to the hash."""
    common = ["--model", "llama2-7b", "--mesh", "data=2,tensor=4", "--wrap", "block", "--strategy", "no"]
    expected = plan_json(*common, "--sequence-parallel", "off", ranks=8)
    for name in ("sums", "head"):
        found = plan_json(*common, "--sharding", part(name), ranks=8)
        assert found == expected, name
    printed = plan(*common, "--sharding", part("sums"), "--print-sharding", ranks=8)
    for line, decider in (
        ("model.layers.*.mlp.down_proj.weight: [null, tensor]", "given (" + part("sums") + ":2)"),
        ("model.layers.*.mlp.gate_proj.weight: [tensor, null]",
         "forward from model.layers.*.post_attention_layernorm"),
        ("model.embed_tokens.weight: [tensor, null]", "backward from model.layers.*.input_layernorm"),
        ("model.norm.weight: [null]", "replicated"),
    ):
        assert any(x.startswith(line) and x.endswith("# " + decider) for x in printed.splitlines()), printed
    # The strategies of all operators are a file from which the same program follows.
    strategies = plan(*common, "--sharding", part("sums"), "--print-strategies", ranks=8)
    assert "model.layers.*.mlp.down_proj: [[2, 4], [1, 4]]" in strategies, strategies
    assert f"# linear, given ({part('sums')}:2)" in strategies, strategies
    again = written("strategies.yaml", strategies)
    assert plan_json(*common, "--op-strategies", again, ranks=8) == expected
    # A residual stream stored in columns, too; what must move is said.
    stored = plan("--mesh", "fsdp=2,tensor=2", "--sharding", part("residual"), "--print-sharding")
    assert "model.layers.*.self_attn.o_proj.weight: [null, tensor]" in stored, stored
    pieces = ["--mesh", "fsdp=2,tensor=2", "--sharding", part("pieces")]
    process = programs.run("fsdp_plan", "--ranks", 4, *pieces, status=0)
    assert "warning: no strategy of model.layers.*.self_attn.rope suits" in process.stderr, process.stderr
    # It is said once for all layers, also what is said first.
    queries = "".join(f"model.layers.*.self_attn.{name}_proj: [[data, fsdp], tensor, null]\n"
                      for name in "qkv")  # fmt: skip
    for cut in (part("pieces"), written("queries.yaml", queries)):
        process = programs.run("fsdp_plan", "--ranks", 4, "--mesh", "fsdp=2,tensor=2", "--sharding", cut)
        said = [line for line in process.stderr.splitlines() if "no strategy of" in line]
        assert said and len(set(said)) == len(said), process.stderr
    # With the products that read the pieces, the rest of sequence parallelism follows.
    cut = PARTS["pieces"]
    for name in ("self_attn.q_proj", "mlp.gate_proj"):
        cut += f"model.layers.*.{name}.weight: [tensor, null]\n"
    cut = ["--mesh", "fsdp=2,tensor=2", "--sharding", written("cut.yaml", cut)]
    strategies = plan(*cut, "--print-strategies")
    for line in ("self_attn.attention: [[2, 2]]", "self_attn.o_proj: [[2, 2], [1, 2]]",
                 "mlp.down_proj: [[2, 2], [1, 2]]"):  # fmt: skip
        assert f"model.layers.*.{line}" in strategies, (line, strategies)


def plans_as_strategies():
    """Nothing but the names differs: the program is the strategy's, to the hash."""
    model = ["--model", "llama2-7b", "--wrap", "block"]
    full, hybrid = plan_json(*model), plan_json(*model, "--strategy", "hybrid", "--mesh", "data=2,fsdp=2")
    same = [
        (full, ["--sharding", FSDP, "--mesh", "fsdp=4"]),
        (full, ["--sharding", FSDP]),
        (full, ["--sharding", FSDP_TP, "--mesh", "4,1"]),
        (full, ["--sharding", FSDP_TP_CP, "--mesh", "fsdp=4,tensor=1,context=1"]),
        (full, ["--sharding", "fsdp"]),
        (full, ["--sharding", "fsdp-tp", "--mesh", "4,1"]),
        (full, ["--sharding", "fsdpv2"]),
        (hybrid, ["--sharding", FSDP, "--mesh", "data=2,fsdp=2,tensor=1"]),
        (hybrid, ["--sharding", FSDP_TP_CP, "--mesh", "data=2,fsdp=2"]),
        (hybrid, ["--sharding", "fsdp", "--mesh", "data=2,fsdp=2"]),
        (hybrid, ["--sharding", "fsdpv2", "--mesh", "data=2,fsdp=2", "--extra-data-axis", "data"]),
    ]
    for expected, arguments in same[:: programs.stride(3)]:
        assert plan_json(*model, *arguments) == expected, arguments
    for strategy in ("grad_op", "zero1"):
        expected = plan_json(*model, "--strategy", strategy)
        assert plan_json(*model, "--strategy", strategy, "--sharding", FSDP) == expected, strategy
    short = plan_json(*model, "--sharding", SHORT, "--mesh", "data=2,fsdp=2")
    assert len(short["units"]) == len(hybrid["units"]) + 32  # the norms of each layer are replicated
    assert short["comm"]["by_axis"]["data+fsdp"] > hybrid["comm"]["by_axis"]["data+fsdp"]
    wrapped = plan_json("--model", "llama2-7b", "--sharding", "fsdpv2")
    assert len(wrapped["units"]) == 33  # layers, and the root with the rest


def prints_read_back():
    cases = [
        [],
        ["--strategy", "no"],
        ["--strategy", "hybrid", "--mesh", "data=2,fsdp=2"],
        ["--strategy", "zero1", "--mesh", "fsdp=2,tensor=2"],
        ["--sharding", FSDP, "--mesh", "data=2,fsdp=2"],
        ["--sharding", SHORT, "--mesh", "a=1,data=2,fsdp=2", "--shard", "lm_head.weight=[[1, 2], null]"],
        ["--sharding", "fsdpv2", "--mesh", "replica=2,fsdp=2", "--extra-data-axis", "replica"],
        ["--sharding", "fsdp", "--shard", "model.layers.1.mlp=[fsdp, ~, ~]; model.norm.weight=[~]"],
        ["--sharding", "fsdp", "--shard", "lm_head.weight=[~, fsdp]", "--shard", "model.norm.weight=[~]"],
        ["--mesh", "fsdp=2,tensor=2"],
        ["--mesh", "fsdp=2,tensor=2", "--sequence-parallel", "off"],
        ["--mesh", "context=2,tensor=2"],
        ["--mesh", "tensor=4", "--model", "gpt2"],
        ["--mesh", "fsdp=2,tensor=2", "--model", "tiny-qwen3-moe"],
        ["--sharding", "fsdp-tp", "--mesh", "data=2,tensor=2"],
        ["--sharding", FSDP_TP, "--mesh", "fsdp=2,tensor=2"],
        ["--sharding", SHORT, "--mesh", "fsdp=2,tensor=2"],
        ["--sharding", FSDP_TP_CP, "--mesh", "context=2,tensor=2"],
        ["--sharding", FSDP_TP_CP, "--mesh", "fsdp=2,context=2"],
        *(["--sharding", part(name), "--mesh", "fsdp=2,tensor=2"] for name in PARTS),
        ["--sharding", part("sums"), "--mesh", "tensor=4"],
        # The sum that one norm takes of pieces is gathered for the next.
        ["--sharding",
         written("post.yaml", "model.layers.*.post_attention_layernorm: [fsdp, tensor, null]\n"),
         "--mesh", "fsdp=2,tensor=2"],
    ]
    for i, arguments in enumerate(cases):
        text = plan("--wrap", "block", *arguments, "--print-sharding")
        (work / f"printed{i}.yaml").write_text(text)
        mesh = arguments[arguments.index("--mesh") :][:2] if "--mesh" in arguments else []
        keeps = arguments[:2] if arguments[:1] == ["--strategy"] else []
        keeps += arguments[-2:] if "--model" in arguments else []
        again = ["--wrap", "block", *mesh, *keeps, "--sharding", work / f"printed{i}.yaml"]
        # Who decided what stands behind weights that had no line; now they all have.
        lines = [line.split("  #")[0].rstrip() + "\n" for line in text.splitlines()]
        assert plan("--print-sharding", *again) == "".join(lines), text
        first, second = plan_json("--wrap", "block", *arguments), plan_json(*again)
        first.pop("placement_hint"), second.pop("placement_hint")  # of files alone
        assert second == first, arguments


def moved_activations_are_printed():
    """An output stored in columns is gathered for every product that reads it, and the plan says so."""
    arguments = ["--sharding", FSDP_TP, "--mesh", "fsdp=2,tensor=2", "--seq-length", "64"]
    made = plan_json(*arguments)
    rows = {(r["module"], r["value"], r["to"]): r for r in made["redistributions"] if not r["backward"]}
    y = rows["model.layers.*.input_layernorm", "y_columns", "whole"]
    # 64 rows of 64 of tiny's 128 channels in fp32, in each of 4 layers, to one other rank
    assert (y["count"], y["sent_bytes"], y["axes"]) == (4, 4 * 64 * 64 * 4, "tensor"), y
    sums = rows["model.layers.*.mlp.down_proj", "mlp", "columns"]
    assert (sums["from"], sums["sent_bytes"]) == ("partial sums", 4 * 64 * 64 * 4), sums
    assert "--sharding fsdp-tp" in made["placement_hint"], made["placement_hint"]
    assert "y_columns" in plan(*arguments) and "columns -> whole" in plan(*arguments)
    assert plan_json("--sharding", "fsdp-tp", "--mesh", "fsdp=2,tensor=2")["placement_hint"] is None
    assert plan_json()["redistributions"] == []


def starts_print_the_same():
    if programs.WITH_MPI:
        printed = run("fsdp_train", "--dry-run", "--print-sharding", "--sharding", "fsdp", ranks=2)
        assert printed == plan("--print-sharding", "--sharding", "fsdp", ranks=2)


def trains_as_one_rank():
    expected, _ = losses("one", None)
    cases = [
        (4, ["--sharding", FSDP, "--mesh", "data=2,fsdp=2,tensor=1", "--wrap", "block"]),
        (6, ["--sharding", FSDP, "--mesh", "fsdp=3,data=2", "--strategy", "grad_op"]),
        (4, ["--sharding", FSDP_TP, "--mesh", "4,1"]),
        (4, ["--sharding", SHORT, "--mesh", "data=2,fsdp=2", "--wrap", "block", "--strategy", "zero1"]),
        (6, ["--sharding", FSDP_TP_CP, "--mesh", "data=3,fsdp=2", "--wrap", "block", "--cpu-offload"]),
        (8, ["--sharding", SHORT, "--mesh", "data=2,fsdp=4", "--wrap", "block", "--strategy", "no"]),
        (6, ["--sharding", "fsdpv2", "--mesh", "replica=3,fsdp=2", "--extra-data-axis", "replica"]),
        (6, ["--sharding", FSDP_TP, "--mesh", "fsdp=2,tensor=3"]),
        (8, ["--sharding", FSDP_TP, "--mesh", "tensor=4,fsdp=2", "--wrap", "block"]),
        (4, ["--sharding", FSDP_TP_CP, "--mesh", "fsdp=2,context=2"]),
        (6, ["--sharding", FSDP_TP_CP, "--mesh", "tensor=2,context=3", "--wrap", "block"]),
        (8, ["--sharding", FSDP_TP_CP, "--mesh", "fsdp=2,tensor=2,context=2", "--cpu-offload"]),
        (4, ["--sharding", SHORT, "--mesh", "data=1,fsdp=2,tensor=2"]),
        (8, ["--sharding", SHORT, "--mesh", "data=2,fsdp=2,tensor=2", "--wrap", "block"]),
        (4, ["--sharding", part("sums"), "--mesh", "fsdp=2,tensor=2", "--wrap", "block"]),
        (8, ["--sharding", part("residual"), "--mesh", "fsdp=2,tensor=4"]),
        (4, ["--sharding", part("pieces"), "--mesh", "data=2,tensor=2"]),
    ]
    for i, (ranks, arguments) in enumerate(cases):
        found, out = losses(f"case{i}", ranks, *arguments)
        assert programs.close(found, expected), (arguments, found, expected)
        assert f"sharding {arguments[1]}, " in out, out


TWO_AXES = {
    # A gather over a and b whose reader makes parts of the gradient over b alone.
    "gathered": "lm_head.weight: [b, null]\nmodel.norm: [[data, fsdp], [a, b], null]\n",
    # A sum over b that ends in rows over a and b, and a list in another order than the mesh's.
    "scattered": "input: [[data, fsdp], null]\n"
    "model.layers.*.mlp.gate_proj.weight: [b, null]\n"
    "model.layers.*.mlp.up_proj.weight: [b, null]\n"
    "model.layers.*.mlp.down_proj.weight: [null, b]\n"
    "model.layers.*.mlp: [[data, fsdp], [b, a], null]\n",
    # Columns over a and b, of which the next product has b alone.
    "columns": "model.layers.*.self_attn.o_proj.weight: [null, b]\n"
    "model.layers.*.mlp.gate_proj.weight: [[a, b], null]\n"
    "model.layers.*.mlp.up_proj.weight: [[a, b], null]\n"
    "model.layers.*.mlp.down_proj.weight: [null, b]\n",
}


def two_axes_cut_one_dimension():
    expected, _ = losses("alone", None)
    for name, text in TWO_AXES.items():
        arguments = ["--mesh", "fsdp=1,a=2,b=2", "--sharding", written(f"{name}.yaml", text)]
        found, _ = losses(name, 4, "-b", "24", *arguments)
        assert programs.close(found, expected), (name, found, expected)
    printed = plan("--print-sharding", *arguments[:2], "--sharding", work / "scattered.yaml")
    assert "model.layers.*.mlp: [[data, fsdp], [a, b], null]" in printed, printed


def checkpoints_go_anywhere():
    """Saved with units of one module over different axes; resumed by a strategy, and exported."""
    expected, _ = losses("plain", None)
    save = ["--save-dir", work, "-e", "run", "--wrap", "block"]
    losses("saved", 4, *save, "--ckpt-freq", "2", "--sharding", SHORT, "--mesh", "data=2,fsdp=2")
    newest = max((work / "run").rglob("checkpoint.json"), key=lambda path: path.stat().st_mtime)
    manifest = json.loads(newest.read_text())
    assert {"model.layers.0 (fsdp)", "model.layers.0 (replicated)"} <= {u["path"] for u in manifest["units"]}
    oldest = min((work / "run").rglob("checkpoint.json"), key=lambda path: path.stat().st_mtime)
    hybrid = ["--sharding", FSDP, "--mesh", "data=2,fsdp=2"]
    for name, ranks, arguments in (("a", None, []), ("b", 4, hybrid)):
        resumed = ["--save-dir", work, "-e", name, "--resume", oldest.parent, *arguments]
        found, _ = losses(f"resumed-{name}", ranks, *resumed)
        assert programs.close(found, expected[2:]), (name, found, expected)
    run("fsdp_export", newest.parent, "--to", work / "exported")
    tensors = programs.read_safetensors(work / "exported" / "model.safetensors")
    assert tensors["model.layers.0.input_layernorm.weight"][1] == [128]


def refused(status, parts, *arguments, ranks=4):
    programs.refused("fsdp_plan", "--ranks", ranks, *arguments, status=status, parts=parts)


def written(name, text):
    (work / name).write_text(text)
    return str(work / name)


def what_is_wrong_is_named():
    names = written("names.yaml", "model.layers.*.self_attn.o_proj_weight: [fsdp, null]\n"
                    "model.norm.weight: [fsdp]\nnonsense: [fsdp]\n")
    hint = "did you mean model.layers.*.self_attn.o_proj.weight?"
    refused(3, ["names.yaml:1", hint, '"nonsense"', "names.yaml:3", "lists all names"], "--sharding", names)
    for name, text, parts in (
        ("syntax", "model.norm.weight: [fsdp\nx: 1\n", ["syntax.yaml:2", "not valid YAML"]),
        ("nested", "\nlm_head.weight: [[fsdp, [data]], null]\n", ["nested.yaml:2", "another list"]),
        ("scalar", "lm_head.weight: fsdp\n", ["scalar.yaml:1", "not a list"]),
        ("rank", "lm_head.weight: [fsdp]\n", ["rank.yaml:1", "1 entry", "2 dimensions"]),
        ("axis", "lm_head.weight: [model, null]\n", ["axis.yaml:1", '"model"', "data, fsdp, tensor"]),
        ("twice", "lm_head.weight: [fsdp, fsdp]\n", ["twice.yaml:1", "fsdp twice"]),
        ("number", "lm_head.weight: [7, null]\n", ["number.yaml:1", "index 7"]),
        ("again", "lm_head.weight: [fsdp, null]\nlm_head.weight: [null, null]\n", ["again.yaml:2", "line 1"]),
        ("index", "'model.layers.*[1]': [fsdp, null, null]\n", ["index.yaml:1", "out of range"]),
        ("both", "lm_head: [0, null, null]\n'lm_head[0]': [0, null, null]\n", ["both.yaml:2", "both.yaml:1"]),
        ("list", "- lm_head.weight\n", ["list.yaml:1", "not a list of rules"]),
        ("two", "lm_head.weight: [fsdp, null]\n---\na: 1\n", ["two.yaml:3", "second document"]),
    ):
        refused(3, parts, "--sharding", written(f"{name}.yaml", text))
    refused(3, ["nowhere.yaml", "cannot be opened", "fsdpv2"], "--sharding", work / "nowhere.yaml")
    refused(2, ["axis data has 2 ranks", "data=1"], "--sharding", FSDP_TP, "--mesh", "data=2,fsdp=2")
    unused = ["axis tensor has 2 ranks", "nothing lies", "--sharding fsdp-tp"]
    refused(2, unused, "--sharding", "fsdp", "--mesh", "2,2")
    refused(2, ["'LlamaMLP' twice", "wrapped once"], "--wrap", "module:LlamaMLP,Linear,LlamaMLP")
    refused(2, ["needs a mesh with an axis fsdp"], "--sharding", "fsdpv2", "--mesh", "data=4")
    refused(2, ["6 ranks", "there are 4"], "--sharding", "fsdp", "--mesh", "fsdp=3,data=2")
    refused(2, ["--extra-data-axis data"], "--sharding", FSDP, "--extra-data-axis", "data")
    refused(3, ["--extra-data-axis", '"x"'], "--sharding", "fsdp", "--extra-data-axis", "x")
    refused(2, ["batch lies over it already"], "--sharding", "fsdp", "--extra-data-axis", "fsdp")
    for preset in ("fsdp", "fsdp-tp"):
        refused(2, ["sequence lies over it already"], "--sharding", preset, "--extra-data-axis", "context",
                "--context-parallel", "2")
    for spec in ("[[data, fsdp], null, null]", "[[data, fsdp], null, context]"):
        file = written("part.yaml", f"input: [[data, fsdp], context]\nmodel.layers.*.mlp: {spec}\n")
        parts = ["part.yaml:2", "does not cut the sequence over context", "dimension 1"]
        refused(3, parts, "--sharding", file, "--mesh", "fsdp=2,context=2")
    cut = ["--sharding", "fsdp-tp", "--mesh", "2,2", "--shard"]
    refused(3, ["--shard", "q_proj.weight", "cut them alike", "tensor"], *cut,
            "model.layers.0.self_attn.q_proj.weight=[~, fsdp]")
    refused(3, ["--shard", "model.norm.weight", "whole on every rank"], *cut, "model.norm.weight=[tensor]")
    refused(2, ["--shard", "not given"], "--shard", "lm_head.weight=[fsdp, null]")
    refused(2, ["--shard", "NAME=SPEC"], "--sharding", "fsdp", "--shard", "lm_head.weight")
    refused(2, ["--shard", "not a list"], "--sharding", "fsdp", "--shard", "lm_head.weight=fsdp")
    refused(3, ["--shard", "differs from the batch", "data+fsdp"], "--mesh", "data=2,fsdp=2",
            "--sharding", "fsdp", "--shard", "lm_head=[null, null, null]")
    refused(2, ["--shard", "is empty"], "--sharding", "fsdp", "--shard", "lm_head.weight=")
    refused(2, ["--shard", "64 levels deep; give a list"], "--sharding", "fsdp", "--shard",
            "lm_head.weight=" + 70 * "[")
    refused(2, ["--mesh 'a-b=2,fsdp=2'", "letters, digits and _"], "--mesh", "a-b=2,fsdp=2")
    refused(2, ["axis replica has 2 ranks", "--extra-data-axis replica"], "--mesh", "replica=2,fsdp=2")
    cut = "model.layers.*.self_attn.{}_proj.weight: {}\n"
    apart = written("apart.yaml", cut.format("k", "[tensor, null]") + cut.format("v", "[null, null]"))
    parts = ["apart.yaml:2", "v_proj.weight is cut otherwise than", "k_proj.weight", "apart.yaml:1"]
    refused(3, parts, "--mesh", "fsdp=2,tensor=2", "--sharding", apart)
    whole = written("whole.yaml", "input: [null, null]\nmodel.norm: [fsdp, null, tensor]\n")
    refused(3, ["whole.yaml:2", "which lies over no axis"], "--mesh", "fsdp=2,tensor=2", "--sharding", whole)
    heads = written("heads.yaml", "".join(cut.format(name, "[tensor, null]") for name in "qkv"))
    parts = ["heads.yaml:", "self_attn.qk_norm takes what", "self_attn.q_proj makes"]
    refused(3, parts, "--model", "tiny-olmoe", "--mesh", "fsdp=2,tensor=2", "--sharding", heads)
    # Parts of several outputs side by side are not a part of each.
    sums = "model.layers.*.mlp.{}_proj.weight: [null, tensor]\n"
    sums += "model.layers.*.mlp.{}_proj: [fsdp, null, tensor]\n"
    both = written("both_sums.yaml", sums.format("gate", "gate") + sums.format("up", "up"))
    parts = ["both_sums.yaml:2", "model.layers.0.mlp.gate_proj is a sum", "side by side"]
    refused(3, parts, "--mesh", "fsdp=2,tensor=2", "--sharding", both)
    refused(2, ["--print-sharding", "--print-model"], "--print-sharding", "--print-model")


def axes_of_one_rank_are_noted():
    """A file over axes that the mesh has not is no error, and does not do what it says: one note an axis."""
    rules = [line.split(":", 1)[1] for line in pathlib.Path(FSDP_TP_CP).read_text().splitlines()
             if ":" in line and not line.startswith("#")]  # fmt: skip
    named = {axis: sum(axis in rule for rule in rules) for axis in ("tensor", "context")}
    assert named["tensor"] > 10, named
    for mesh, noted in (([], ["tensor", "context"]), (["--mesh", "fsdp=2,tensor=2"], ["context"]),
                        (["--mesh", "fsdp=4,tensor=1,context=1"], [])):
        process = programs.run("fsdp_plan", "--ranks", 4, "--sharding", FSDP_TP_CP, *mesh)
        notes = [line for line in process.stderr.splitlines() if "has 1 rank" in line]
        wanted = [f"axis {axis}, named in {named[axis]} line{'s' * (named[axis] > 1)} of " for axis in noted]
        assert process.returncode == 0 and len(notes) == len(wanted), notes
        assert all(any(text in note for note in notes) for text in wanted), (notes, wanted)
    for options, noted in ((["fsdp-tp"], "axis tensor of --sharding fsdp-tp has 1 rank"),
                           (["fsdp-tp", "--tensor-parallel", 2], ""), (["fsdp-tp", "--mesh", "2,2"], ""),
                           (["fsdp"], ""), (["fsdp", "--mesh", "data=4,fsdp=1"], ""),
                           (["fsdp", "--strategy", "no"], "--strategy no (command line) gives the axis fsdp"),
                           (["fsdp", "--strategy", "no", "--mesh", "fsdp=4"], "")):
        process = programs.run("fsdp_plan", "--ranks", 4, "--sharding", *options, status=0)
        said = process.stderr
        assert bool(noted) == ("1 rank" in said) and noted in said, (options, said)
    out = run("fsdp_train", "-s", 32, "--max-steps", 1, "--sharding", FSDP_TP)
    assert out.count(f"note:      axis tensor, named in 17 lines of --sharding ") == 1, out


def lines_without_effect_are_named():
    """Of outputs that no tensor is, of one product that are to be stored unlike, and of logits: one warning a
    line; not where the line says what is done anyway, nor of queries that attention takes in pieces."""
    weights = "".join(f"model.layers.*.self_attn.{name}_proj.weight: [x, null]\n" for name in "qkv")
    file = written("unfollowed.yaml", weights + "lm_head.weight: [x, null]\n"
                   "model.layers.*.mlp.act_fn: [null, null, x]\n"
                   "model.layers.*.self_attn.k_proj: [null, null, null]\n"
                   "model.rotary_emb: [null, x, null]\n"
                   "lm_head: [null, null, x]\n"
                   "'': [null, x, null]\n"
                   "model.layers.*.self_attn.v_proj: [null, null, x]\n"
                   "model.layers.*.mlp.down_proj: [null, null, x]\n"
                   "model.norm: [null, x, null]\n")
    own, other = "no tensor of this output's own", "stores it otherwise"
    expected = {5: ("model.layers.0.mlp.act_fn", own), 6: ("model.layers.0.self_attn.k_proj", other),
                7: ("model.rotary_emb", own), 9: ("", other)}  # fmt: skip
    mesh = ["--mesh", "fsdp=1,x=2"]
    process = programs.run("fsdp_plan", "--ranks", 2, "-s", 16, *mesh, "--sharding", file)
    found = [line for line in process.stderr.splitlines() if "is not followed" in line]
    assert process.returncode == 0 and len(found) == len(expected), found
    for line, (name, why) in expected.items():
        (text,) = [one for one in found if f'unfollowed.yaml:{line}: "{name}": [' in one]
        assert text.startswith("fsdp_plan: warning: ") and why in text, text
    mesh = ["--mesh", "fsdp=2,tensor=2,context=2"]
    process = programs.run("fsdp_plan", "--ranks", 8, *mesh, "--sharding", FSDP_TP_CP)
    assert process.returncode == 0 and "not followed" not in process.stderr, process.stderr
    if programs.WITH_MPI:
        process = programs.run("fsdp_train", "-s", 16, "--max-steps", 1, "--mesh", "fsdp=1,x=2", "--sharding",
                               file, ranks=2)  # fmt: skip
        found = [line for line in process.stderr.splitlines() if "fsdp_train: warning: " in line]
        assert sum("is not followed" in line for line in found) == len(expected), process.stderr


plans_as_strategies()
axes_of_one_rank_are_noted()
lines_without_effect_are_named()
rest_follows()
prints_read_back()
starts_print_the_same()
moved_activations_are_printed()
what_is_wrong_is_named()
if programs.WITH_MPI:
    trains_as_one_rank()
    two_axes_cut_one_dimension()
    checkpoints_go_anywhere()
print("sharding by names: as strategies, as one rank, read back, and refused by name")
