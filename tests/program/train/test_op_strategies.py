"""--op-strategies, --print-strategies and --graph: networks whose strategies can be written down, Llama from
two operators a layer and from its attention alone, and one clear message for what is wrong."""

import pathlib
import re

import programs

work = programs.folder("strategies")
FILES = programs.ROOT / "tests" / "golden" / "strategies"
MANY = programs.size(100000, 12000)  # more than the 10000 operators that are read
ATTENTION_RANKS = {"core_attention": 12, "fused_attention": 12}  # 2 x 3 x 2; all others have 8


def run(*arguments, **options):
    return programs.run(*arguments, status=0, **options).stdout


def write(name, text):
    path = work / name
    path.write_text(text)
    return str(path)


def lines_of(printed):
    """Strategies without who decided them, and what is redistributed."""
    kept = [line for line in printed.splitlines() if not line.startswith("# ") or "redistribut" in line]
    return [line if line.startswith("# ") else line.split("  #")[0].rstrip() for line in kept]


def networks():
    for given in sorted(FILES.glob("*.given.yaml")):
        name = given.name.removesuffix(".given.yaml")
        network = name.split(".")[0]
        ranks = ATTENTION_RANKS.get(network, 8)
        arguments = ["--ranks", ranks, "--graph", FILES / f"{network}.yaml"]
        printed = run("fsdp_plan", *arguments, "--op-strategies", given)
        expected = (FILES / f"{name}.expected.txt").read_text().splitlines()
        assert lines_of(printed) == expected, (name, printed)
        # What is printed is a file of strategies, from which the same follows.
        again = write(f"{name}.again.yaml", printed)
        assert lines_of(run("fsdp_plan", *arguments, "--op-strategies", again)) == expected, name


def deciders():
    arguments = ["--ranks", 8, "--graph", FILES / "boundary.yaml"]
    printed = run("fsdp_plan", *arguments, "--op-strategies", FILES / "boundary.given.yaml")
    assert "bias1: [[8, 1], [1]]                      # add, forward from fc1\n" in printed, printed
    assert "boundary.given.yaml:2)" in printed, printed
    behind = write("behind.yaml", "fc3: [[2, 1], [1, 4]]\n")
    printed = run("fsdp_plan", *arguments, "--op-strategies", behind)
    assert "# relu, backward from fc3\n" in printed, printed
    # Two operators without anything in common: the second one is not reached.
    apart = write("apart.yaml", "inputs: {x: [8, 8], y: [8, 8]}\n"
                  "operators:\n  a: {relu: [x]}\n  b: {relu: [y]}\n")
    first = write("first.yaml", "a: [[8, 1]]\n")
    printed = run("fsdp_plan", "--ranks", 8, "--graph", apart, "--op-strategies", first)
    assert "b: [[1, 1]]                               # relu, default\n" in printed, printed
    # Named axes: counts take them in their order, and 4 is the second one.
    mesh = ["--mesh", "fsdp=2,tensor=4"]
    wide = write("wide.yaml", "fc1: [[1, 1], [1, 4]]\n")
    printed = run("fsdp_plan", *arguments, *mesh, "--op-strategies", wide)
    assert printed.startswith("# 8 ranks: fsdp=2, tensor=4\n") and "act1: [[1, 4]]" in printed, printed


def ranks_of_counts():
    """What counts alone would put on other ranks is printed with its ranks, and reads back as the same."""
    graph = write("mean.yaml", "inputs: {x: [8, 8]}\noperators:\n  a: {relu: [x]}\n"
                  "  m: {reduce_mean: [a], axis: 0}\n  r: {relu: [m]}\n")
    given = write("mean.given.yaml", "a: [[2, 4]]\n")
    for arguments in ([], ["--mesh", "2,4"], ["--mesh", "a=2,b=2,c=2"]):
        plan = ["fsdp_plan", "--ranks", 8, "--graph", graph, *arguments, "--op-strategies"]
        printed = run(*plan, given)
        # With one axis of 4 ranks no other reading is possible.
        assert ("r: [[4]]" if arguments[1:] == ["2,4"] else "r: [[4@1]]") in printed, printed
        assert lines_of(run(*plan, write("mean.again.yaml", printed))) == lines_of(printed), printed
    apart = write("apart.given.yaml", "r: [[2@4+2@1]]\nm: [[2@2, 4]]\n")
    printed = run("fsdp_plan", "--ranks", 8, "--graph", graph, "--op-strategies", apart)
    assert "m: [[2@2, 2@4+2@1]]" in printed and "r: [[2@4+2@1]]" in printed, printed
    assert "redistribution in all: 0 bytes" in printed, printed
    for count, expected in {
        "4@3": "bad.yaml:1: \"r\": 4@3: the mesh has no axes of 4 ranks that lie 3 apart",
        "2@3": "2@3: the mesh has no axes of 2 ranks that lie 3 apart",
        "4@4": "4@4: the mesh has no axes",
        "2@1+2@1": "2@1: the mesh has no axes",
        "2@": "\"2@\": neither a count nor counts and how many ranks apart",
        "2@1+": "neither a count nor counts",
        "0@1": "neither a count nor counts",
        "2@-1": "neither a count nor counts",
        "+".join(["1024@1"] * 3): "above any number of ranks",
        "+".join(["1@1"] * 11): "above any number of ranks",
        "2@1@1": "neither a count nor counts",
        "1024@1+2048@1": "above any number of ranks",
        "16@1": "16 slices of a dimension (p) of 8 items",
    }.items():
        bad = write("bad.yaml", f"r: [[{count}]]\n")
        refuses(expected, "--graph", graph, "--op-strategies", bad)
    bad = write("bad.yaml", "m: [[2@1, 2@1]]\n")
    refuses("2@1: the mesh has no|something else is cut over", "--graph", graph, "--op-strategies", bad)


def integers():
    line = "model.layers.{}.mlp.down_proj: [[{}], [1, {}]]\n"
    given = write("integers.yaml", line.format("*", "2, 4", 4) + line.format(1, "2, 2", 2))
    printed = run("fsdp_plan", "--ranks", 8, "--op-strategies", given, "--print-strategies")
    assert "model.layers.0.mlp.down_proj: [[2, 4], [1, 4]]" in printed, printed
    assert "model.layers.1.mlp.down_proj: [[2, 2], [1, 2]]" in printed, printed
    assert "model.layers.2.mlp.down_proj: [[2, 4], [1, 4]]" in printed, printed


def conflicts():
    """No strategy of a sum suits both of its inputs: the smaller one moves, with a warning."""
    graph = write("sum.yaml", "inputs: {x: [16, 32], y: [16, 1]}\n"
                  "operators:\n  a: {relu: [x]}\n  b: {relu: [y]}\n  sum: {add: [a, b]}\n")
    given = write("sum.given.yaml", "a: [[2, 4]]\nb: [[8, 1]]\n")
    process = programs.run("fsdp_plan", "--ranks", 8, "--graph", graph, "--op-strategies", given, status=0)
    assert "sum: [[2, 4], [2, 1]]" in process.stdout, process.stdout
    assert "# add, forward from a\n" in process.stdout, process.stdout
    moved = "# redistributed: b -> sum, 24 bytes in the forward, 24 in the backward\n"
    assert moved in process.stdout, process.stdout
    assert "warning: no strategy of sum suits" in process.stderr, process.stderr
    assert "b -> sum" in process.stderr, process.stderr
    # Who passed its layout on is named, also where it is the second input.
    turned = write("turned.yaml", pathlib.Path(graph).read_text().replace("[a, b]", "[b, a]"))
    process = programs.run("fsdp_plan", "--ranks", 8, "--graph", turned, "--op-strategies", given)
    assert "# add, forward from a\n" in process.stdout, process.stdout


def two_of(tensor):
    """Two operators a layer, on 2 ranks of the batch and `tensor` ranks of the weights."""
    return (f"model.layers.*.self_attn.q_proj: [[2, 1], [{tensor}, 1]]\n"
            f"model.layers.*.mlp.down_proj: [[2, {tensor}], [1, {tensor}]]\n")


GPT2 = """transformer.h.*.attn.c_attn: [[2, 1], [1, 4], [4]]
transformer.h.*.mlp.c_proj: [[2, 4], [4, 1], [1]]
"""


def models():
    """Two operators a layer are fsdp-tp: the same program, to the hash, and so the same bytes."""
    with_bias = two_of(4).replace("[4, 1]]", "[4, 1], [4]]")
    pieces = ["--sequence-parallel", "off"]
    names = ("tiny", "llama2-7b", "llama3-70b", "gpt2", "qwen2.5-7b", "qwen3-8b")
    for model in names[:: programs.stride(3)]:
        strategies = write("two.yaml", {"gpt2": GPT2, "qwen2.5-7b": with_bias}.get(model, two_of(4)))
        common = ["--ranks", 8, "--model", model, "--json"]
        expected = run("fsdp_plan", *common, "--mesh", "fsdp=2,tensor=4", "--sharding", "fsdp-tp", *pieces)
        assert run("fsdp_plan", *common, "--op-strategies", strategies) == expected, model
        named = run("fsdp_plan", *common, "--op-strategies", strategies, "--mesh", "fsdp=2,tensor=4")
        assert named == expected, model
    # Weights are not sharded over data. An integer wins over *, here with the same counts.
    four = two_of(2).replace("[[2,", "[[4,")
    data = write("data.yaml", four + four.replace("*", "1"))
    mesh = ["--ranks", 8, "--json", "--strategy", "hybrid", "--mesh", "data=2,fsdp=2,tensor=2"]
    expected = run("fsdp_plan", *mesh, *pieces)
    assert run("fsdp_plan", *mesh, "--op-strategies", data) == expected
    # More ranks than heads: padded, as there.
    eight = write("eight.yaml", "model.layers.*.self_attn.q_proj: [[1, 1], [8, 1]]\n")
    expected = run("fsdp_plan", "--ranks", 8, "--json", "--tensor-parallel", 8, *pieces)
    assert run("fsdp_plan", "--ranks", 8, "--json", "--op-strategies", eight) == expected
    # Attention as the anchor, with batch, sequence and heads: the layer follows, and all of the model.
    attention = write("attention.yaml", "model.layers.*.self_attn.attention: [[2, 2, 2]]\n")
    expected = run("fsdp_plan", "--ranks", 8, "--json", "--mesh", "fsdp=2,context=2,tensor=2", *pieces)
    assert run("fsdp_plan", "--ranks", 8, "--json", "--op-strategies", attention) == expected
    size = ["--batch-size", 2, "--seq-length", 256]
    printed = run("fsdp_plan", "--ranks", 8, "--op-strategies", attention, "--print-strategies", *size)
    for line in (
        "# 8 ranks: fsdp=2, context=2, tensor=2",
        "model.embed_tokens: [[2, 2], [2, 1]]",
        "model.layers.0.self_attn.q_proj: [[2, 2, 1], [2, 1]]",
        "model.layers.*.self_attn.o_proj: [[2, 2, 2], [1, 2]]",
        "model.layers.*.mlp: [[2, 2, 2]]",
        "lm_head: [[2, 2, 1], [2, 1], [2, 2], []]",
    ):
        assert line in printed, (line, printed)
    assert "redistribution in all: 0 bytes" in printed, printed
    again = ["--op-strategies", write("attention.again.yaml", printed), "--print-strategies", *size]
    assert lines_of(run("fsdp_plan", "--ranks", 8, *again)) == lines_of(printed), printed
    # Tiny's 4 layers: keys and values of 128 positions of 2 sequences, 1 of 2 heads of 32 channels, in fp32,
    # from the other rank of context.
    gathered = 2 * 128 * 2 * 32 * 4
    for line in (
        f"# keys and values gathered: model.layers.*.self_attn.attention, {gathered:,} bytes in the forward, "
        f"{gathered:,} in the backward, 4 times",
        f"# keys and values gathered in all: {8 * gathered:,} bytes received by a rank",
    ):
        assert line in printed, (line, printed)


def losses(name, ranks, batch, *arguments):
    path = work / f"{name}.jsonl"
    size = ["-s", "32", "-b", batch, "--max-steps", "4", "--lr", "1e-2", "--threads", "1"]
    run("fsdp_train", *size, "--log", path, *arguments, ranks=ranks)
    return [line["loss"] for line in programs.log_of(path)]


def trains():
    one = losses("one", None, 8)
    two = write("train.yaml", two_of(2))
    found = losses("two", 4, 4, "--op-strategies", two)
    preset = losses("preset", 4, 4, "--mesh", "fsdp=2,tensor=2", "--sequence-parallel", "off")
    assert len(one) == 4 and found == preset
    attention = write("train_attention.yaml", "model.layers.*.self_attn.attention: [[1, 2, 2]]\n")
    for losses_found in (found, losses("attention", 4, 8, "--op-strategies", attention)):
        assert programs.close(losses_found, one), (losses_found, one)


def refuses(expected, *arguments, ranks=8):
    process = programs.run("fsdp_plan", "--ranks", ranks, *arguments)
    assert process.returncode in (2, 3), (arguments, process.stdout, process.stderr)
    for part in expected.split("|"):
        assert part in process.stderr, (part, process.stderr)
    assert process.stderr.count("\n") == 1, process.stderr


def heads():
    """A rank needs the keys and values of its own queries' heads: they are cut alike, in whole heads."""
    graph = write("heads.yaml", "inputs: {q: [2, 6, 8, 4], k: [2, 3, 8, 4], v: [2, 3, 8, 4]}\n"
                  "operators:\n  r: {relu: [q]}\n  a: {attention: [r, k, v]}\n")
    cut = write("bad.yaml", "a: [[1, 2, 1, 1], [1, 2, 1, 1], [1, 2, 1, 1]]\n")
    expected = "bad.yaml:1: \"a\": 2 slices of a dimension (h) of 3 items|cut evenly: use a divisor of 3"
    refuses(expected, "--graph", graph, "--op-strategies", cut, ranks=2)
    front = write("front.yaml", "r: [[1, 2, 1, 1]]\n")
    printed = run("fsdp_plan", "--ranks", 2, "--graph", graph, "--op-strategies", front)
    assert "a: [[1, 1, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1]]" in printed, printed
    front = write("front.yaml", "r: [[1, 3, 1, 1]]\n")
    printed = run("fsdp_plan", "--ranks", 3, "--graph", graph, "--op-strategies", front)
    assert "a: [[1, 3, 1, 1], [1, 3, 1, 1], [1, 3, 1, 1]]" in printed, printed


def unused_axes():
    """Where no operator is cut over an axis, its ranks would all do the same."""
    some = write("some.yaml", "model.layers.*.mlp.down_proj: [[2, 2], [1, 2]]\n")
    printed = run("fsdp_plan", "--ranks", 4, "-s", 32, "--op-strategies", some, "--print-strategies")
    lines = [line.split("#")[0].partition(": ") for line in printed.splitlines() if line[0] != "#"]
    counts = r"\d+(@\d+)?(\+\d+@\d+)*"
    ones = write("ones.yaml", "".join(f"{name}: {re.sub(counts, '1', lists)}\n" for name, _, lists in lines))
    ones = ["-s", 32, "--op-strategies", ones]
    refuses("axis a has 4 ranks, over which --op-strategies cut nothing", "--mesh", "a=4", *ones, ranks=4)
    refuses("axis a has 2 ranks, over which --op-strategies", "--mesh", "a=2,b=2", *ones, ranks=4)


def errors():
    def given(text):
        return ["--graph", FILES / "feed_forward.yaml", "--op-strategies", write("bad.yaml", text)]

    refuses("bad.yaml|no operator is given a strategy", *given("{}"))
    refuses("bad.yaml: no operator is given", *given(""))
    refuses("bad.yaml:1|\"fc3\"|(did you mean fc1 or fc2?)", *given("fc3: [[2, 1], [1, 4]]\n"))
    refuses("bad.yaml:2|3 slices do not divide 8 ranks", *given("\nfc1: [[3, 1], [1, 1]]\n"))
    refuses("16 slices in all do not divide 8 ranks", *given("fc1: [[4, 1], [1, 4]]\n"))
    refuses("4, 2|do not fit the axes", "--mesh", "4,2", *given("fc1: [[2, 1], [1, 2]]\n"))
    refuses("4 and 2 slices of one dimension (i)", *given("fc1: [[2, 4], [2, 1]]\n"))
    refuses("bad.yaml:1|\"x\": a count is not a whole number", *given("fc1: [[2, x], [2, 1]]\n"))
    refuses("bad.yaml:1|\"0\": a count is below 1", *given("fc1: [[2, 0], [2, 1]]\n"))
    refuses("bad.yaml:1|\"-2\": a count is below 1", *given("fc1: [[2, -2], [2, 1]]\n"))
    refuses("bad.yaml:1|any number of ranks", *given("fc1: [[1000000000, 1], [1, 1]]\n"))
    refuses("more lines than 10000", *given("".join(f"fc{i}: [[1, 1], [1, 1]]\n" for i in range(MANY))))
    refuses("bad.yaml:2|line 1 already", *given("fc1: [[2, 1], [1, 4]]\nfc1: [[2, 1], [1, 4]]\n"))
    line = "{}: [[2, 1], [1, 4]]\n"
    refuses("bad.yaml:2: \"fc1.matmul\" and \"fc1\"|bad.yaml:1) are one operator|remove one of them",
            *given(line.format("fc1") + "fc1.matmul: [[1, 8], [8, 1]]\n"))
    refuses("bad.yaml:2: \"fc1\"|bad.yaml:1)", *given(line.format("fc1.matmul") + line.format("fc1")))
    refuses("2 slices do not divide 1 rank;", *given("fc1: [[2, 1], [1, 1]]\n"), ranks=1)
    # With the kind or without it: the integer wins, and two lines of one weight are refused.
    model = "model.layers.{}.mlp.down_proj{}: [[2, 4], [1, 4]]\n"
    wins = write("wins.yaml", model.format("*", "") + model.format(0, ".linear"))
    run("fsdp_plan", "--ranks", 8, "--op-strategies", wins)
    twice = write("bad.yaml", model.format("*", ".linear") + model.format("*", "").replace("2, 4", "2, 2"))
    refuses("bad.yaml:2|bad.yaml:1) are one operator", "--op-strategies", twice)
    refuses("1 list of counts for 2 inputs", *given("fc1: [[2, 4]]\n"))
    weights = ["--graph", FILES / "weights.yaml"]
    whole = write("bad.yaml", "norm: [[1, 1, 8], [8]]\n")
    refuses("(c) that must be whole", *weights, "--op-strategies", whole)
    tied = ["--model", "gpt2", "--op-strategies"]
    both = "transformer.wte: [[2], [4, 1]]\nlm_head: [[2, 1], [2, 1], [2], []]\n"
    refuses("bad.yaml:2|bad.yaml:1|transformer.wte|lm_head|transformer.wte.weight|differently", *tied,
            write("bad.yaml", both))
    model = ["--op-strategies", write("bad.yaml", "model.layers.*.mlp.down: [[2, 4], [1, 4]]\n")]
    refuses("did you mean model.layers.*.mlp.down_proj", *model)
    model = ["--op-strategies", write("bad.yaml", "model.layers.*.self_attn.j_proj: [[2, 4], [1, 4]]\n")]
    projections = [f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"]
    refuses(f"(did you mean {projections[0]}, {projections[1]} or {projections[2]}?)", *model)
    model = ["--op-strategies", write("bad.yaml", "model.layers.*.self_attn: [[2, 4]]\n")]
    refuses("names two operators|self_attn.rope|self_attn.attention", *model)
    model = ["--op-strategies", write("bad.yaml", "model.layers.*.self_attn.q_proj: [[2, 1], [2, 1]]\n")]
    refuses("--sharding|--op-strategies|leave one", *model, "--sharding", "fsdp")
    refuses("--print-strategies|add --op-strategies FILE or --sharding FILE", "--print-strategies")
    refuses("--graph|--json", *given("fc1: [[2, 1], [1, 4]]\n"), "--json")
    for option in (["--memory-limit", "1GB"], ["--strategy", "no"], ["--profile", "h100-sxm"], ["-b", "4"]):
        refuses("--graph|is for models", *given("fc1: [[2, 1], [1, 4]]\n"), *option)
    # The batch is not moved between ranks, and a rank's tokens and targets are of the same positions.
    line = "model.layers.{}.mlp.down_proj: [[{}], [1, {}]]\n"
    model = line.format(0, "2, 4", 4) + line.format(1, "4, 2", 2)
    refuses("model.embed_tokens|tokens|lm_head|targets", "--op-strategies", write("bad.yaml", model))
    model += "lm_head: [[2, 1], [4, 1], [2], []]\n"
    refuses("--op-strategies|sequences are not moved", "--op-strategies", write("bad.yaml", model))


def bad_networks():
    given = write("ok.yaml", "a: [[2]]\n")

    def network(text):
        return ["--graph", write("bad.yaml", text), "--op-strategies", given]

    head = "inputs: {x: [8, 8]}\noperators:\n"
    refuses("bad.yaml:3|unknown operator \"relv\"|did you mean relu", *network(head + "  a: {relv: [x]}\n"))
    refuses("bad.yaml:3|matmul has 2 inputs, not 1", *network(head + "  a: {matmul: [x]}\n"))
    near = "  act1: {relu: [x]}\n  act2: {relu: [act1]}\n  b: {add: [act3, act3]}\n"
    refuses("bad.yaml:5|\"act3\" (did you mean act1 or act2?)", *network(head + near))
    refuses("bad.yaml:3|no input, parameter|\"y\"", *network(head + "  a: {relu: [y]}\n"))
    twice = head + "  a: {relu: [x]}\n  a: {relu: [x]}\n"
    refuses("bad.yaml:4|\"a\": the name is in line 3 already", *network(twice))
    weighted = head.replace("8]}", "8], w: [4, 8]}")
    refuses("bad.yaml:3|x [8, 8], w [4, 8]", *network(weighted + "  a: {matmul: [x, w]}\n"))
    refuses("bad.yaml:3|axis must be", *network(head + "  a: {reduce_mean: [x], axis: 2}\n"))
    refuses("bad.yaml:1|unknown section", *network("layers: {}\n"))
    refuses("bad.yaml: no operators", *network("inputs: {x: [8]}\n"))
    refuses("bad.yaml:1|not a size", *network("inputs: {x: [0]}\n"))
    attributes = "  a: {reduce_mean: [x], axis: 1, begin: 0}\n"
    refuses("bad.yaml:3|no attribute \"begin\"; its attributes: axis keep", *network(head + attributes))
    refuses("bad.yaml:3|line 3 already", *network(head + "  a: {reduce_mean: [x], axis: 1, axis: 0}\n"))
    refuses("bad.yaml:3|\"axes\": neither an attribute", *network(head + "  a: {relu: [x], axes: 1}\n"))
    refuses("bad.yaml:3|relu has 1 input, not 0", *network(head + "  a: {relu: []}\n"))
    refuses("bad.yaml:3|operators come after what they read",
            *network(head + "  a: {add: [b, x]}\n  b: {relu: [a]}\n"))  # fmt: skip
    refuses("bad.yaml:3|\"a?b\": a name is not a word", *network(head + "  \"a\\nb\": {relu: [x]}\n"))
    refuses("bad.yaml:2|\"inputs\"|line 1 already", *network("inputs: {x: [8]}\ninputs: {y: [8]}\n"))
    refuses("bad.yaml:2|\"x\": there is a \"x\"", *network("inputs: {x: [8]}\nparameters: {x: [8]}\n"))
    for size in ("-1", "2.5", "4000000000", "~", "[2]"):
        refuses("bad.yaml:1|not a size", *network(f"inputs: {{x: [{size}]}}\n"))
    refuses("bad.yaml:1|more than 2^40 items", *network("inputs: {x: [2000000000, 2000000000]}\n"))
    vast = "inputs: {x: [2000000000, 1], y: [1, 2000000000]}\noperators:\n  a: {matmul: [x, y]}\n"
    refuses("bad.yaml:3|x [2000000000, 1]|more than 2^40 items", *network(vast))
    many = head + "  a: {relu: [x]}\n" + "".join(f"  a{i}: {{relu: [a]}}\n" for i in range(MANY))
    refuses("more than 10000 tensors and operators", *network(many))
    refuses("not valid YAML", *network("inputs: {x: \0}\n"))
    refuses("bad.yaml:2: nested more than 64 levels", *network("inputs:\n  x: " + 20000 * "[" + 20000 * "]"))
    refuses("bad.yaml: more than 64 MiB", *network("#" + (64 << 20) * " "))
    refuses("bad.yaml:1|not a size", *network("inputs: {x: " + 62 * "[" + 62 * "]" + "}\n"))  # 64 levels
    refuses("bad.yaml:1: nested more than 64", *network("inputs: {x: " + 63 * "[" + 63 * "]" + "}\n"))
    refuses("cannot be read (Is a directory)", "--graph", work, "--op-strategies", given)
    refuses("cannot be read (Is a directory)", "--graph", FILES / "boundary.yaml", "--op-strategies", work)
    refuses("absent.yaml|cannot be opened", "--graph", work / "absent.yaml", "--op-strategies", given)
    refuses("absent.yaml|cannot be opened", "--op-strategies", work / "absent.yaml")


programs.run_tests([networks, deciders, ranks_of_counts, integers, conflicts, models, trains, heads,
                    unused_axes, errors, bad_networks])
