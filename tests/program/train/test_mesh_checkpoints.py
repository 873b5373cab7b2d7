"""Checkpoints of tensor, sequence and context parallel runs: weights come out of every mesh as they went in,
new weights are the same on every mesh, and a run goes on from what any other mesh has saved."""

import json
import re
import shutil

import programs

work = programs.folder("mesh_ckpt")
COMMON = ["-s", "32", "--seed", "3", "--log-freq", "100", "--save-dir", work, "--tokenizer", "bytes",
          "--threads", "1"]  # fmt: skip

# Ranks, sequences of a micro-batch for 8 in all, and the mesh.
PLACES = [
    (None, 8, []),
    (4, 4, ["--mesh", "fsdp=2,tensor=2", "--wrap", "block"]),
    (3, 8, ["--mesh", "tensor=3", "--sequence-parallel", "off", "--strategy", "no"]),
    (4, 8, ["--mesh", "tensor=4", "--cpu-offload"]),
    (4, 8, ["--tensor-parallel", "2", "--context-parallel", "2", "--strategy", "grad_op"]),
    (8, 2, ["--mesh", "data=2,fsdp=2,tensor=2", "--strategy", "hybrid", "--wrap", "none"]),
    (4, 4, ["--mesh", "fsdp=2,tensor=2", "--strategy", "zero1", "--wrap", "block"]),
][: 3 if programs.SLOW else None]


def train(*arguments, ranks=None):
    return programs.run("fsdp_train", *COMMON, *arguments, ranks=ranks, status=0).stdout


def export(name, *arguments):
    out = work / f"{name}_exported"
    shutil.rmtree(out, ignore_errors=True)
    programs.run("fsdp_export", work / name, "--to", out, *arguments, status=0)
    return programs.read_safetensors(out / "model.safetensors")


def losses(name):
    return [line["loss"] for line in programs.log_of(work / name / "log.jsonl")]


def idle(name, folder, place, *arguments):
    """The weights that a run on this place exports after a step that changes none."""
    ranks, batch, options = place
    still = ["--lr", 0, "--weight-decay", 0, "--max-steps", 1, "-b", batch, "--resume", "off",
             "--overwrite"]  # fmt: skip
    train("--model", folder, *still, "-e", name, *options, *arguments, ranks=ranks)
    return export(name)


def weights_come_out_as_they_went_in():
    """Odd sizes, so that pieces are padded: heads, groups, vocabulary and intermediate columns."""
    odd = {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 40, "intermediate_size": 101}
    for number, changes in enumerate(({}, odd)):
        folder = programs.make_model(work / f"source{number}", programs.CONFIG | changes)
        given = programs.read_safetensors(folder / "model.safetensors")
        for place in PLACES[1:]:
            assert idle("idle", folder, place) == given, (changes, place)


def new_weights_are_the_same():
    golden = programs.ROOT / "tests" / "golden"
    for family in (None, "gpt2_odd", "qwen2_tied", "qwen3_heads"):
        config = json.loads((golden / family / "config.json").read_text()) if family else programs.CONFIG
        positions = "n_positions" if "n_positions" in config else "max_position_embeddings"
        config |= {"vocab_size": 257, positions: 64}
        folder = work / f"shape_{family}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        expected = idle("drawn", folder, PLACES[0], "--init", "random")
        for place in PLACES[1:] if not family else PLACES[1:4:2]:
            assert idle("drawn", folder, place, "--init", "random") == expected, (family, place)


def resumes_on_any_mesh():
    """Two steps on one mesh and two on the next: as four of one rank."""
    folder = programs.make_model(work / "start")
    start = ["--model", folder, "--lr", "1e-3", "--ckpt-freq", 2, "--max-steps", 4]
    ranks, batch, options = PLACES[0]
    train(*start, "-b", batch, "-e", "whole", *options, ranks=ranks)
    expected = losses("whole")
    for (ranks, batch, options), (others, other_batch, other) in zip(PLACES, PLACES[1:] + PLACES[:1]):
        shutil.rmtree(work / "moved", ignore_errors=True)
        train(*start, "-b", batch, "-e", "moved", *options, ranks=ranks)
        shutil.rmtree(work / "moved" / "step-00000004")
        out = train(*start, "-b", other_batch, "-e", "moved", *other, ranks=others)
        # The mesh as it was given, without the halves of a factored axis.
        assert re.search("^resumed: (?!.*_replica).*step 2, ", out, re.M), out
        found = losses("moved")
        close = len(found) == 4 and all(abs(a - b) <= 1e-5 * b for a, b in zip(found, expected))
        assert close, (options, other, found, expected)


if programs.WITH_MPI:
    for test in (weights_come_out_as_they_went_in, new_weights_are_the_same, resumes_on_any_mesh):
        test()
