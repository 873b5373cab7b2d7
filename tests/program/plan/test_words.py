"""What a person reads who wrote something else than was meant: names in a sharding file, folders that hold no
weights, a machine's name, and when a run evaluates."""

import json

import programs

work = programs.folder("words")
model = programs.make_model(work / "model")  # two layers

# A name whose part was cut short; * for a name; a layer that there is not; None.
rules = work / "rules.yaml"
for line, wanted in (
    ("model.embed.weight: [fsdp, null]", "rules.yaml:1; did you mean model.embed_tokens.weight?)"),
    ("model.layers.*.self_attn.*.weight: [fsdp, null]", "* is any integer, and stands for no name)"),
    ("model.layers.2.mlp.up_proj.weight: [fsdp, null]", "the model has model.layers.0 to model.layers.1)"),
    ("model.layers.0.mlp.upproj.weight: [fsdp, null]", "did you mean model.layers.*.mlp.up_proj.weight?"),
    ("model.frobnicate.weight: [fsdp, null]", "nothing is near)"),
    ("model.embed_tokens.weight: [None, fsdp]", '"None": write null for a dimension that nothing cuts'),
):
    rules.write_text(line + "\n")
    error = programs.refused("fsdp_plan", "--model", model, "--ranks", 2, "--sharding", rules, status=3)
    assert wanted in error, (line, error)

# Weights that were never downloaded, an adapter alone, and a file that may not be read.
pointer = programs.make_model(work / "pointer", weights=False)
text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5368\n"
(pointer / "model.safetensors").write_text(text)
error = programs.refused("fsdp_train", "--model", pointer, "--tokenizer", "bytes", status=3)
assert "model.safetensors: is a pointer of Git LFS" in error and "git lfs pull" in error, error
adapter = work / "adapter"
adapter.mkdir()
(adapter / "adapter_config.json").write_text("{}")
error = programs.refused("fsdp_train", "--model", adapter, status=3)
assert "holds an adapter (adapter_config.json) and no model" in error and "merge" in error, error
loop = programs.make_model(work / "loop", weights=False)
(loop / "a.safetensors").symlink_to("a.safetensors")  # cannot be opened, by root neither
index = {"weight_map": {name: "a.safetensors" for name in programs.shapes(programs.CONFIG)}}
(loop / "model.safetensors.index.json").write_text(json.dumps(index))
error = programs.refused("fsdp_train", "--model", loop, "--init", "weights", "--tokenizer", "bytes", status=3)
assert "a.safetensors: cannot be opened (" in error and "make it readable" in error, error

# A profile's name in any letters, and without what only one has behind it.
for name, known in (("H100-SXM", "h100-sxm"), ("h100", "h100-sxm"), ("B200", "b200")):
    process = programs.run("fsdp_plan", "--profile", name, "--price")
    assert process.returncode == 0 and f"price on {known}" in process.stdout, (name, process.stderr)
for name in ("a100", "h", "h100-"):
    programs.refused("fsdp_plan", "--profile", name, "--price", status=3, parts=["shipped are a100-40"])

# What 0 means.
for options, wanted in (((), "only at the end (--eval-freq 0), on"),
                        (("--eval-freq", 2), "every 2 steps and at the end, on")):  # fmt: skip
    process = programs.run("fsdp_train", "-s", 32, "--max-steps", 1, "--eval-split", 9, *options)
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("evaluate:")]
    assert line.startswith(f"evaluate:  {wanted} "), line
process = programs.run("fsdp_train", "-s", 32, "--max-steps", 1, "--ckpt-freq", 0, "-e", "none", cwd=work)
assert "nothing will be saved: --ckpt-freq 0" in process.stdout, process.stdout
