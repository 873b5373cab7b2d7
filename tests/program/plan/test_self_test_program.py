"""--self-test: plans of every family, strategy and kind of mesh pass, on one line; what it does not go with
is refused; fsdp_train does it on one rank before the first step."""

import json
import re

import programs

work = programs.folder("self_test")

# What the twin of each plan is: layers, mesh, micro-batches, parameters. Counted by hand: a Llama's layer has
# 9 parameters, and three are no layer's; Qwen's has 3 biases or 2 norms more, GPT-2's 12, and four are no
# layer's.
PASSING = [
    ("--model llama3-405b --ranks 16384 --tensor-parallel 16 -s 8192 --backend cuda",
     (2, "data=1,fsdp=2,tensor=4", 1, 21)),
    ("--model llama2-70b --ranks 64 --strategy hybrid --recompute block:5 -s 4096",
     (4, "data=2,fsdp=2", 1, 39)),
    ("--model gpt2 --ranks 6 --context-parallel 2 --tensor-parallel 3 -s 1024",
     (2, "data=1,fsdp=1,tensor=3,context=2", 1, 28)),
    ("--model mistral-7b --ranks 3 --strategy no --grad-accum 64 -s 8192", (2, "data=3,fsdp=1", 3, 21)),
    ("--model qwen2.5-7b --ranks 8 --cpu-offload on --grad-clip 0 -s 512 -b 8",
     (2, "data=1,fsdp=2", 1, 27)),
    ("--model qwen3-8b --ranks 32 --sharding fsdp-tp --tensor-parallel 8 -s 512 --wrap block "
     "--accumulate local --grad-accum 2", (2, "data=1,fsdp=2,tensor=2", 2, 25)),
    ("--ranks 4 --offload-activations block_inputs --prefetch 2 -s 1 -b 1", (3, "data=1,fsdp=2", 1, 30)),
    ("--model gpt2 --ranks 4 --context-parallel 2 --document-mask on --grad-accum 2",
     (2, "data=1,fsdp=2,context=2", 2, 28)),
    ("--strategy zero1 --ranks 8 -s 33 -b 7", (2, "data=1,fsdp=2", 1, 21)),
    ("--model tiny-qwen3-moe --ranks 8 --mesh fsdp=2,expert=2,tensor=2 -s 64",
     (2, "data=1,fsdp=2,expert=2,tensor=2", 1, 25)),
    # Where gradients of a router's correction bias would be are loads, which count what pads sequences and
    # outweigh all gradients: they are compared where the bias moves by them.
    ("--model tiny-glm4-moe --ranks 4 --context-parallel 2 -s 257", (3, "data=1,fsdp=2,context=2", 1, 45)),
    ("--model tiny-glm4-moe --ranks 2 --tensor-parallel 2 -s 256 --router-bias-rate 0.01",
     (3, "data=1,fsdp=1,tensor=2", 1, 47)),
    # Means over the rows of each micro-batch, and over those of each rank.
    ("--model tiny-mixtral --ranks 4 --router-aux-coef 0.02 --router-z-coef 0.01 --grad-accum 2 -s 64",
     (2, "data=1,fsdp=2", 2, 21)),
    ("--model tiny-mixtral --ranks 6 --router-aux-coef 0.02 --aux-loss rank --router-z-coef 0.01 -s 64 "
     "--mesh fsdp=3,tensor=2 --sequence-parallel off --grad-accum 2", (2, "data=1,fsdp=3,tensor=2", 2, 21)),
    ("", (2, "data=1,fsdp=1", 1, 21)),
]
LINE = re.compile(r"self-test: (\d+) layers on (\d+) ranks? \((\S+)\) train as on one: (\d+) steps of (\d+) "
                  r"micro-batch(?:es)?, losses, norms, all (\d+) gradients(?: \((\d+) of them zero\))? and "
                  r"an evaluation; largest difference (\S+) \((.+)\)$")


def plan(*arguments, **options):
    return programs.run("fsdp_plan", *arguments, **options)


def tested(*arguments):
    return plan(*arguments, "--self-test", status=0)


def numbers_of(line):
    match = LINE.match(line)
    assert match, line
    layers, ranks, mesh, steps, micro_batches, gradients, idle, largest, _ = match.groups()
    product = 1
    for axis in mesh.split(","):
        product *= int(axis.split("=")[1])
    assert int(ranks) == product <= 16 and int(steps) >= 2 and float(largest) <= 1e-5, line
    return (int(layers), mesh, int(micro_batches), int(gradients)), int(idle or 0)


def passing():
    for options, expected in PASSING[::programs.stride(3)]:
        process = tested(*options.split())
        found, idle = numbers_of(process.stdout.splitlines()[-1])
        assert set(found[1].split(",")) == set(expected[1].split(",")), (options, found)
        assert found[0] == expected[0] and found[2:] == expected[2:], (options, found, expected)
        # With one token to a sequence, queries and keys have no gradient, and nothing else ever has none.
        assert idle == (6 if "-s 1 " in options else 0), (options, process.stdout)


# Whose gradient was once summed over both axes where it is made in parts over one of them.
TWO_AXES = "lm_head.weight: [b, null]\nmodel.norm: [[data, fsdp], [a, b], null]\n"


# A router's rows lie in pieces, and its loss of each sequence reads those of whole ones.
ROUTERS = ("model.embed_tokens: [[fsdp, expert], a, null]\n"
           "model.layers.*: [[fsdp, expert], a, null]\n"
           "model.layers.*.post_attention_layernorm: [[fsdp, expert], a, null]\n"
           "model.layers.*.mlp.gate.weight: [null, null]\n")


# Rules by name, one of a layer by itself, operators by counts and by ranks, a vocabulary that nothing
# divides, and a file as printed.
def files():
    rules = work / "rules.yaml"
    rules.write_text("input: [[data, fsdp], null]\n"
                     "model.layers.*.mlp.gate_proj.weight: [tensor, fsdp]\n"
                     "model.layers.*.mlp.up_proj.weight: [tensor, fsdp]\n"
                     "model.layers.*.mlp.down_proj.weight: [fsdp, tensor]\n"
                     "model.layers.9.self_attn.q_proj.weight: [tensor, fsdp]\n"
                     "lm_head.weight: [tensor, null]\n")
    operators = work / "operators.yaml"
    operators.write_text("model.layers.*.self_attn.q_proj: [[2, 1], [4@1, 1]]\n"
                         "model.layers.*.mlp.up_proj: [[2, 1], [4, 1]]\n")
    # Tokens are cut over the second axis by the batch and over the first by the sequence, which leaves one
    # product's outputs cut over the first: its weight is gathered over both.
    gathered = work / "gathered.yaml"
    gathered.write_text("model.layers.*.self_attn.q_proj: [[2@1, 1, 1], [1, 1]]\n")
    # Two products read one value: the gradient of one is in parts over an axis, that of the other over two.
    readers = work / "readers.yaml"
    readers.write_text("model.layers.*.mlp.gate.weight: [a, null]\n"
                       "model.layers.*.mlp.experts.gate_up_proj: [null, [a, tensor], null]\n"
                       "model.layers.*.mlp.experts.down_proj: [null, null, [a, tensor]]\n")
    # Queries, keys and values in parts, which have biases: each is added to the whole sum.
    parts = work / "parts.yaml"
    parts.write_text("".join(f"model.layers.*.self_attn.{name}_proj.weight: [null, tensor]\n"
                             for name in "qkv"))
    two_axes = work / "two_axes.yaml"
    two_axes.write_text(TWO_AXES)
    model = programs.make_model(work / "model", programs.CONFIG | {"vocab_size": 32001}, weights=False)
    one_head = programs.CONFIG | {"num_key_value_heads": 1}
    one_head = programs.make_model(work / "one_head", one_head, weights=False)
    mesh = ["--ranks", 8, "--mesh", "fsdp=2,tensor=4"]
    cases = [["--model", "llama2-7b", *mesh, "--sharding", rules],
             ["--model", "qwen2.5-7b", "--ranks", 2, "--mesh", "fsdp=1,tensor=2", "--sharding", parts],
             ["--model", "tiny", "--ranks", 4, "--mesh", "fsdp=1,a=2,b=2", "--sharding", two_axes],
             ["--ranks", 4, "-s", 32, "--mesh", "fsdp=2,a=2", "--op-strategies", gathered],
             ["--model", "tiny-mixtral", "--ranks", 4, "--mesh", "a=2,fsdp=1,tensor=2",
              "--sharding", readers],
             ["--model", "llama2-7b", *mesh, "--sharding", rules,
              "--shard", "model.norm=[[data, fsdp], tensor, null]"],
             ["--model", "llama2-7b", "--ranks", 8, "--op-strategies", operators],
             ["--model", "llama2-7b", *mesh, "--op-strategies", operators],
             ["--model", model, "--ranks", 12, "--mesh", "fsdp=3,tensor=4"],
             ["--model", one_head, "--ranks", 2, "--tensor-parallel", 2],
             ["--ranks", 4, "--mesh", "fsdp=2,tensor=2", "--sharding", "fsdp-tp",
              "--extra-data-axis", "tensor"]]
    # Attention on the queries of one of two axes that cut rows: the other one cuts heads, or nothing of it.
    pieces = work / "pieces.yaml"
    for attention, weight in (("null", "null, null"), ("[a, tensor]", "null, a")):
        pieces.write_text("transformer.h.*.ln_1: [null, tensor, null]\n"
                          "transformer.h.*.ln_2: [null, [a, tensor], null]\n"
                          f"transformer.h.*.attn: [null, {attention}, null]\n"
                          f"transformer.h.*.attn.c_attn.weight: [{weight}]\n")
        mesh = ["--mesh", "a=2,fsdp=1,tensor=2"]
        process = tested("--model", "gpt2", "--ranks", 4, *mesh, "--sharding", pieces)
        numbers_of(process.stdout.splitlines()[-1])
    for arguments in cases[::programs.stride(2)]:
        numbers_of(tested(*arguments).stdout.splitlines()[-1])
    process = tested(*cases[0], "--print-sharding")
    assert "self-test" not in process.stdout, process
    numbers_of(process.stderr.splitlines()[-1])
    printed = work / "printed.yaml"
    printed.write_text(process.stdout)
    tested("--model", "llama2-7b", "--ranks", 8, "--mesh", "fsdp=2,tensor=4", "--sharding", printed)


def streams():
    routers = work / "routers.yaml"
    routers.write_text(ROUTERS)
    # What enters a layer is a sum in columns, into which the layer before drops elements.
    columns = work / "columns.yaml"
    columns.write_text("model.layers.*: [fsdp, null, a]\n")
    # Norms of pieces of other axes than the stream's: the twin saves what the plan's layers save.
    norms = work / "norms.yaml"
    norms.write_text("model.layers.*.input_layernorm: [fsdp, [a, b], null]\n"
                     "model.layers.*.post_attention_layernorm: [fsdp, b, null]\n"
                     "model.norm: [fsdp, [a, b], null]\n" + "".join(
                         f"model.layers.*.{name}_proj.weight: [fsdp, null]\n"
                         for name in ("self_attn.k", "self_attn.o", "mlp.gate", "mlp.down")))
    # Positions are added to an embedding that was cut; what is dropped is dropped of their sum.
    embedded = work / "embedded.yaml"
    embedded.write_text("transformer.wte: [null, a, null]\n")
    # OLMoE's norms take all heads, and q, k and v side by side are not gathered: they are left whole.
    whole = work / "whole.yaml"
    whole.write_text("model.embed_tokens.weight: [a, null]\n")
    # What blocks of experts make is gathered for a product that takes it whole: all blocks are made again.
    blocks = work / "blocks.yaml"
    blocks.write_text("model.layers.*.mlp.experts.gate_up_proj: [null, a, null]\n"
                      "model.layers.*.mlp.experts.down_proj: [null, null, null]\n")
    # One layer's stream in columns: those before it are recomputed before their turn, of what is offloaded.
    layer = work / "layer.yaml"
    layer.write_text("model.layers.2.mlp.down_proj: [[2@2, 2@1, 1], [2@4, 1]]\n")
    for arguments in (["--model", "gpt2", "--ranks", 2, "--mesh", "fsdp=1,a=2", "-s", 24, "--dropout", 0.1,
                       "--sharding", embedded],
                      ["--model", "tiny-olmoe", "--ranks", 2, "--mesh", "fsdp=1,a=2", "--sharding", whole],
                      ["--model", "tiny-qwen3-moe", "--ranks", 2, "--mesh", "fsdp=1,a=2", "-s", 16,
                       "--wrap", "block", "--sharding", blocks, "--expert-blocks", 2,
                       "--recompute", "block"],
                      ["--ranks", 8, "--mesh", "fsdp=2,a=2,b=2", "-s", 3, "-b", 2, "--sharding", norms,
                       "--recompute", "linear"],
                      ["--ranks", 8, "--mesh", "a=2,fsdp=2,context=2", "-s", 16, "--op-strategies", layer,
                       "--recompute", "block", "--offload-activations", "gather"],
                      ["--model", "tiny-mixtral", "--ranks", 4, "--mesh", "a=2,expert=2", "-b", 3, "-s", 21,
                       "--sharding", routers, "--router-aux-coef", 0.1, "--aux-loss", "sequence"],
                      ["--ranks", 2, "--mesh", "fsdp=1,a=2", "-s", 16, "--sharding", columns,
                       "--dropout", 0.1, "--offload-activations", "block_inputs"]):
        numbers_of(tested(*arguments).stdout.splitlines()[-1])


def outputs():
    report = json.loads(tested("--ranks", 4, "--json").stdout)["self_test"]
    assert report["passed"] and report["ranks"] == 2 and report["gradients"] == 21, report
    assert 0 < report["largest_difference"] <= 1e-5, report
    assert "self_test" not in json.loads(plan("--ranks", 4, "--json").stdout)
    # A plan that does not fit is tested, too, and does not fit.
    process = plan("--ranks", 4, "--self-test", "--memory-limit", "1MB")
    assert process.returncode == 4 and LINE.search(process.stdout), process
    config = work / "run.yaml"
    config.write_text("self-test: on\nranks: 4\n")
    process = plan("--config", config)
    assert process.returncode == 0 and process.stdout.splitlines()[-1].startswith("self-test: "), process


def refused():
    config = work / "empty.yaml"
    config.write_text("ranks: 1\n")
    network = programs.ROOT / "tests/golden/strategies/boundary.yaml"
    given = programs.ROOT / "tests/golden/strategies/boundary.given.yaml"
    cases = [(["--graph", network, "--op-strategies", given, "--ranks", 8], "--graph"),
             (["--search", "--profile", "h100-sxm"], "--search"),
             (["--compare", config], "--compare"),
             (["--op-strategies", given, "--print-strategies"], "--print-strategies")]
    for arguments, named in cases:
        parts = ["--self-test (command line)", named]
        programs.refused("fsdp_plan", *arguments, "--self-test", parts=parts)
    losses = ["--aux-loss", "rank", "--router-aux-coef", 0.1]
    programs.refused("fsdp_plan", "--model", "tiny-mixtral", "--ranks", 4, "--context-parallel", 2, *losses,
                     "--self-test", parts=["--aux-loss micro"])
    programs.refused("fsdp_plan", "--self-test", "maybe", parts=["maybe"])


def training():
    arguments = ["-s", 16, "-b", 1, "--max-steps", 1, "--threads", 1]
    ranks = 2 if programs.WITH_MPI else None
    process = programs.run("fsdp_train", *arguments, "--self-test", ranks=ranks, status=0)
    lines = process.stdout.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("self-test: ")]
    numbers_of(lines[at])
    assert at < next(i for i, line in enumerate(lines) if line.startswith("step 1/1")), lines
    # It takes nothing of the run: the same memory and numbers as without it.
    assert [line for line in lines if line.startswith("memory: ")] == [
        line for line in programs.run("fsdp_train", *arguments, ranks=ranks).stdout.splitlines()
        if line.startswith("memory: ")]
    process = programs.run("fsdp_train", *arguments, "--self-test", "--dry-run", ranks=ranks)
    assert process.returncode == 0 and process.stdout.count("self-test: ") == 1, process


programs.run_tests([passing, files, streams, outputs, refused, training])
