"""Experiments from day to day: -e NAME alone goes on as the run was started, nothing of an old run goes
without a line, checkpoints are listed and named, the best one stays, and a run that no longer improves ends.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import programs
import yaml

work = programs.folder("experiments")
RANKS = 2 if programs.WITH_MPI else None
COMMON = ["-s", "32", "-b", "2", "--lr", "1e-3", "--log-freq", "100"]


def train(*arguments, status=0, ranks=None):
    return programs.run("fsdp_train", *arguments, ranks=ranks, cwd=work, status=status)


def refused(*arguments, status=2, parts=()):
    return programs.refused("fsdp_train", *arguments, status=status, parts=parts, cwd=work)


def folder(name):
    return work / "outputs" / name


def log(name):
    return programs.log_of(folder(name) / "log.jsonl")


def losses(name):
    return programs.losses(folder(name) / "log.jsonl")


def steps(name):
    return sorted(int(path.name[5:]) for path in folder(name).glob("step-????????"))


def the_name_alone_goes_on():
    """A run that is killed goes on as if it had not been, to the bit, whether it had saved or not."""
    text = work / "a data set.txt"
    text.write_text("".join(chr(97 + i * i % 26) for i in range(20000)))
    options = [*COMMON, "--data", text.name, "--seed", "5", "--warmup-steps", "3", "--strategy", "grad_op",
               "--wrap", "block", "--max-steps", "12", "--eval-split", "9", "--set", "measure=off"]
    train(*options, "-e", "whole", "--ckpt-freq", "4")
    command = [str(programs.BIN / "fsdp_train"), *options, "-e", "killed", "--ckpt-freq", "4"]
    for saved in (True, False):
        shutil.rmtree(folder("killed"), ignore_errors=True)
        process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        awaited = folder("killed") / ("step-00000004" if saved else "run.yaml")
        while not awaited.exists() and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.wait()
        for left in folder("killed").glob("step-*"):  # it may have been quicker
            if not (saved and left.name == "step-00000004"):
                shutil.rmtree(left)
        (folder("killed") / "run.yaml.4711.tmp").write_text("seed: 5\n")  # killed while it wrote its options
        process = train("-e", "killed")
        assert not list(folder("killed").glob("*.tmp"))
        assert "options:   of outputs/killed/run.yaml\n" in process.stdout, process.stdout
        assert "given otherwise" not in process.stdout and "\nchanged:" not in process.stdout, process.stdout
        assert ("\nresumed:" in "\n" + process.stdout) == saved, process.stdout
        assert losses("killed") == losses("whole"), (losses("killed"), losses("whole"))
        assert log("killed")[-1]["eval_loss"] == log("whole")[-1]["eval_loss"]
    # On other ranks, for ranks are mpirun's.
    shutil.rmtree(folder("killed") / "step-00000012")
    train("-e", "killed", "-b", "1" if RANKS else "2", ranks=RANKS)
    assert all(abs(a - b) < 1e-4 for a, b in zip(losses("killed"), losses("whole")))


def a_branch_goes_on():
    """What --resume begins from is in run.yaml until the run has saved: -e alone begins there, to the bit."""
    train(*COMMON, "--max-steps", "4", "--ckpt-freq", "2", "--seed", "3", "-e", "trunk")
    for name, there in (("branch", "outputs/trunk/step-00000002"), ("trunk", "step-2")):
        command = [*COMMON, "-e", name, "--resume", there, "--seed", "4", "--max-steps", "9",
                   "--resume-schedule", "restart", "--ckpt-freq"]  # fmt: skip
        # Nothing is saved: as if it had been killed before it was.
        train(*command, "0")
        kept = (folder(name) / "run.yaml").read_text()
        assert f'\nresume: "{there}"\nresume-schedule: "restart"\n' in kept, kept
        process = train("-e", name, "--ckpt-freq", "3")
        assert "resumed:   outputs/trunk/step-00000002, step 2," in process.stdout, process.stdout
        kept = (folder(name) / "run.yaml").read_text()
        assert "\nresume" not in kept and "seed: 4" in kept, kept
        assert f"resumed:   outputs/{name}/step-00000009," in train("-e", name).stdout
    assert [line["loss"] for line in log("branch")] == losses("trunk")[2:]
    # Where that is gone, the message says who named it.
    train(*COMMON, "-e", "lost", "--resume", "outputs/trunk", "--max-steps", "12", "--ckpt-freq", "0")
    shutil.rmtree(folder("trunk"))
    begun = "--resume 'outputs/trunk/step-00000009' (outputs/lost/run.yaml:5)"
    refused("-e", "lost", status=3, parts=(begun,))


def what_is_gone_is_named_with_its_place():
    (work / "gone.txt").write_text("words " * 2000)
    programs.make_model(work / "gone-model", programs.CONFIG | {"vocab_size": 256}, weights=False)
    train(*COMMON, "--model", "gone-model", "--data", "gone.txt", "--max-steps", "1", "-e", "gone")
    for name, status, remedy in (("gone.txt", 3, "give a file that is there"),
                                 ("gone-model", 2, "no such folder, and no model preset 'gone-model'")):
        (work / name).rename(work / "away")
        refused("-e", "gone", status=status, parts=(name, "(outputs/gone/run.yaml:", remedy))
        (work / "away").rename(work / name)


def what_is_given_wins():
    train(*COMMON, "--max-steps", "3", "--eval-split", "0.02", "--ckpt-keep", "2", "-e", "given")
    process = train("-e", "given", "--max-steps", "5", "--lr", "5e-4", "--seed", "0", "--wrap", "block")
    said = "; given otherwise: --max-steps 3 → 5, --lr 0.001 → 0.0005, --wrap size → block\n"
    assert said in process.stdout, process.stdout
    assert re.search(r"^changed: .*--lr 0.001 → 0.0005", process.stdout, re.M), process.stdout
    # That holds from then on.
    printed = train("-e", "given", "--print-config").stdout
    for line in ("lr: 0.0005\n", "\nmax-steps: 5\n", "eval-split: 0.02\n"):
        assert line in printed, printed
    # One that contradicts what is given gives way.
    held = work / "held.txt"
    held.write_text("abc" * 200)
    process = train("-e", "given", "--max-steps", "6", "--eval-data", held)
    said = f"given otherwise: --eval-data none → {held}, --eval-split 0.02 → none, --max-steps 5 → 6\n"
    assert said in process.stdout, process.stdout
    assert "of " + str(held) in process.stdout
    both = ("--eval-data", held, "--eval-split", "3")
    refused("-e", "given", *both, parts=("both choose what to evaluate on",))
    # So do all that depend on what is taken back.
    sampled = [*COMMON, "--max-steps", "1", "--sample-every", "1", "--prompt", "Q", "--max-new-tokens", "2"]
    train(*sampled, "-e", "several")
    process = train("-e", "several", "--max-steps", "2", "--sample-every", "0")
    assert "--prompt Q → none, --max-new-tokens 2 → 64" in process.stdout, process.stdout
    assert "prompt" not in (folder("several") / "run.yaml").read_text().split("# Defaults")[0]
    evaluated = ["--eval-split", "4", "--eval-freq", "1", "--ckpt-best", "eval_loss", "--min-lr", "1e-5"]
    train(*COMMON, "--max-steps", "2", *evaluated, "--lr-decay-ratio", "0.5", "--lr-schedule",
          "wsd", "-e", "several2")  # fmt: skip
    taken_back = ["--eval-split", "0", "--lr-schedule", "constant"]
    process = train("-e", "several2", "--max-steps", "3", *taken_back)
    for name in ("eval-freq 1 → 0", "ckpt-best eval_loss → off", "min-lr 1e-05 → ", "lr-decay-ratio 0.5 → "):
        assert f"--{name}" in process.stdout, (name, process.stdout)
    # What is given contradicts itself whatever the file says: the file is not to blame.
    both = ("--eval-split", "0", "--eval-freq", "2")
    refused("-e", "several2", *both, parts=("--eval-freq 2 (command line)",))
    # A mesh and its short forms are one.
    if RANKS:
        train(*COMMON, "--max-steps", "1", "--tensor-parallel", "2", "-e", "mesh", ranks=RANKS)
        process = train("-e", "mesh", "--mesh", "data=1,fsdp=2", "--max-steps", "2", ranks=RANKS)
        said = "otherwise: --max-steps 1 → 2, --mesh none → data=1,fsdp=2, --tensor-parallel 2 → 1\n"
        assert said in process.stdout, process.stdout
        assert "ranks:     2 (data=1, fsdp=2)" in process.stdout, process.stdout
        process = train("-e", "mesh", "--max-steps", "3")  # of another number of ranks it is none
        assert "otherwise: --max-steps 2 → 3; not for 1 rank: --mesh data=1,fsdp=2\n" in process.stdout
        process = train("-e", "mesh", "--max-steps", "4", ranks=RANKS)
        assert "ranks:     2 (data=1, fsdp=2)" in process.stdout, process.stdout
    # A file that was edited is named with its line.
    path = folder("given") / "run.yaml"
    path.write_text(path.read_text() + "lerning-rate: 3\n")
    line = len(path.read_text().splitlines())
    refused("-e", "given", parts=("'--lerning-rate'", f"outputs/given/run.yaml:{line}"))
    # Without it the defaults count, and a new one is written.
    path.unlink()
    process = train("-e", "given", "-s", "32", "--max-steps", "7")
    assert "\noptions:" not in process.stdout and "max-steps: 7\n" in path.read_text()


def printed_options_read_back():
    options = ["--data", str(work / "odd 'name\".txt"), "--mesh", "data=1,fsdp=1", "--set", "measure=off",
               "--bind", "off", "--beta2", "0.95", "--memory-limit", "2GB", "-e", "printed", "--ckpt-freq",
               "7"]
    printed = train(*options, "--print-config").stdout
    path = work / "printed.yaml"
    path.write_text(printed)
    assert train("--config", path, "--print-config").stdout == printed
    for line in ("# lr: 3e-05\n", "\nbeta2: 0.95\n", "memory-limit: 2000000000\n"):
        assert line in printed, printed
    assert not folder("printed").exists()


def what_is_given_twice_is_told_alone():
    """Given options that contradict each other are named as given; paths of the file say their folder."""
    prompted = ["--prompt-tokens", "1,2", "--sample-every", "3", "--max-new-tokens", "4"]
    train(*COMMON, "--max-steps", "2", *prompted, "-e", "prompted")
    refused("-e", "prompted", "--prompt", "x", "--sample-every", "0",
            parts=("--prompt (command line) has no effect without samples",))
    model = programs.make_model(work / "a model", programs.CONFIG, weights=False)
    train(*COMMON, "--model", model.name, "--tokenizer", "bytes", "--max-steps", "2", "-e", "moved")
    (work / "beside").mkdir()
    told = "paths in ../outputs/moved/run.yaml are relative to the folder where the run was started"
    programs.refused("fsdp_train", "--save-dir", "../outputs", "-e", "moved", status=2, parts=[told],
                     cwd=work / "beside")


def values_come_back_as_they_were():
    """Line breaks, control and other characters of a value, from --print-config and from run.yaml; what
    neither can hold is refused before anything is trained."""
    prompt = '\n\nQ:\t"what\\?"\r\n x\x01\x7f\x85\xa0\u2028\ufeff\uffff\U0001f600é\n'
    options = [*COMMON, "-s", "64", "--sample-every", "2", "--max-new-tokens", "1", "--max-steps", "1"]
    printed = train(*options, "--prompt", prompt, "--print-config").stdout
    path = work / "prompt.yaml"
    path.write_text(printed)
    assert train("--config", path, "--print-config").stdout == printed
    train(*options, "--prompt", prompt, "-e", "prompt")
    kept = (folder("prompt") / "run.yaml").read_text()
    for steps in ("2", "3"):
        train("-e", "prompt", "--max-steps", steps)
    again = (folder("prompt") / "run.yaml").read_text()
    assert again.split("# Defaults")[0] == kept.split("# Defaults")[0].replace("max-steps: 1", "max-steps: 3")
    # As another program reads it.
    line = next(line for line in again.splitlines() if line.startswith("prompt: "))
    assert yaml.safe_load(line)["prompt"] == prompt
    broken, latin = "two\nlines.txt", os.fsdecode(b"caf\xe9.txt")
    for name in (broken, latin):
        (work / name).write_text("some text " * 400)
        programs.run("fsdp_train", *COMMON, "--max-steps", "1", "--data", name, cwd=work, errors="replace",
                     status=0)  # keeps nothing
    refused(*COMMON, "--data", broken, "-e", "odd", parts=("--data 'two", "has a line break"))
    refused(*COMMON, "--data", latin, "-e", "odd", parts=("--data", "is not UTF-8", "rename"))
    refused(*COMMON, "--data", latin, "--print-config", parts=("--data", "is not UTF-8", "rename"))
    assert not folder("odd").exists()


def a_folder_may_move():
    train(*COMMON, "--max-steps", "2", "-e", "here")
    (work / "elsewhere").mkdir()
    shutil.move(folder("here"), work / "elsewhere/there")
    process = train("--save-dir", "elsewhere", "-e", "there", "--max-steps", "4")
    assert "resumed:   elsewhere/there/step-00000002" in process.stdout and not folder("here").exists()
    assert (work / "elsewhere/there/step-00000004").is_dir()
    # What a checkpoint says of its model is no model to train on from, and the remedy is one to copy.
    programs.make_model(work / "own", programs.CONFIG | {"vocab_size": 256}, weights=False)
    train(*COMMON, "--model", "own", "--max-steps", "1", "-e", "own")
    saved = "outputs/own/step-00000001"
    refused("--model", f"{saved}/model", parts=(f"--resume {saved} with", f"fsdp_export {saved} --to"))
    for path in (str(saved), str(pathlib.Path(saved).parent)):
        refused("--model", path, status=3, parts=(f"fsdp_export {path} --to", f"-e NAME --resume {path}"))


def nothing_goes_without_a_line():
    train(*COMMON, "--max-steps", "4", "-e", "old", "--ckpt-freq", "1", "--ckpt-keep", "2")
    process = train("-e", "old", "--resume", "step-3", "--max-steps", "5")
    assert "removed:   1 line of outputs/old/log.jsonl, of steps after 3\n" in process.stdout, process.stdout
    saved = re.findall(r"^saved:     outputs/old/(step-\d+), .* in [\d.]+ s(.*)$", process.stdout, re.M)
    assert saved == [
        ("step-00000004", "; it replaces an older one of its step"),
        ("step-00000005", "; removed step-00000003 (--ckpt-keep 2)"),
    ], process.stdout
    message = refused(*COMMON, "-e", "old", "--resume", "off",
                      parts=("--overwrite", "2 checkpoints", "of step 5"))
    assert "outputs/old" in message and len(losses("old")) == 5 and steps("old") == [4, 5]
    # What is refused later removes nothing.
    train(*COMMON, "-e", "old", "--resume", "off", "--overwrite", "--data", "missing", status=3)
    assert len(losses("old")) == 5 and steps("old") == [4, 5]
    process = train(*COMMON, "-e", "old", "--resume", "off", "--overwrite", "--max-steps", "2", ranks=RANKS)
    assert "removed:   step-00000005 step-00000004 of outputs/old (--overwrite)\n" in process.stdout
    assert "removed:   5 lines of outputs/old/log.jsonl, of an earlier run\n" in process.stdout
    assert len(losses("old")) == 2 and steps("old") == [2] and "options:" not in process.stdout
    left_out = "begins with the defaults: of outputs/old/run.yaml is left out --ckpt-freq 1, --ckpt-keep 2\n"
    assert left_out in process.stdout, process.stdout
    assert "ckpt-keep: " not in (folder("old") / "run.yaml").read_text().split("# Defaults")[0]
    refused(*COMMON, "-e", "old", "--overwrite", parts=("--resume off",))
    # A name that is not there may be a slip, and what is trained is none of the user's.
    near = ("'odl' (command line): there is no outputs/odl (did you mean old?)", "--resume off")
    refused("-e", "odl", parts=near)
    assert not folder("odl").exists()
    new = " is new (did you mean old?): without --model and --data it trains tiny on the built-in text\n"
    assert "outputs/odl" + new in train(*COMMON, "-e", "odl", "--max-steps", "1").stdout
    # Of a series, each name is meant.
    train(*COMMON, "-e", "old2", "--max-steps", "1", "--ckpt-freq", "0")
    assert "outputs/old3 is new: without" in train(*COMMON, "-e", "old3", "--max-steps", "1").stdout
    assert "is new" not in train("-e", "odl", "--max-steps", "2").stdout
    # A log alone is a run too.
    train(*COMMON, "--max-steps", "1", "-e", "logged", "--ckpt-freq", "0")
    refused(*COMMON, "-e", "logged", "--resume", "off", parts=("a log already", "--overwrite"))


def checkpoints_have_names():
    process = programs.run("fsdp_export", "outputs/named", "--list", cwd=work)
    assert process.returncode == 3 and "holds no checkpoint" in process.stderr
    began = int(time.time())
    evaluated = ["--eval-split", "8", "--eval-freq", "4"]
    train(*COMMON, "--max-steps", "6", "-e", "named", "--ckpt-freq", "2", *evaluated)
    rows = programs.run("fsdp_export", "outputs/named", "--list", cwd=work).stdout.splitlines()
    cells = [re.split(r"\s{2,}|(?<=\d) (?=\d+ )", row.strip()) for row in rows[1:]]
    by_step = {line["global_step"]: line for line in log("named")}
    assert [row.split()[0] for row in rows[1:]] == ["step-00000002", "step-00000004", "step-00000006"], rows
    for step, row in zip((2, 4, 6), rows[1:]):
        name, number, day, clock, loss, evaluation, size, unit, *rest = row.split()
        assert int(number) == step and loss == f"{by_step[step]['loss']:.4f}", row
        expected = by_step[step].get("eval_loss")
        assert evaluation == (f"{expected:.4f}" if expected else "-"), (row, by_step[step])
        saved = time.mktime(time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S"))
        assert began <= saved <= time.time(), (row, began)
        files = sum(path.stat().st_size for path in (folder("named") / name).rglob("rank-*"))
        assert abs(float(size) * {"MB": 1e6, "kB": 1e3}[unit] - files) <= 0.006 * files, (row, files)
        assert rest == (["newest,", "best"] if step == 6 else []), row
    assert cells
    for word, step in (("step-2", 2), ("4", 4), ("step-00000006", 6), ("best", 6)):
        printed = programs.run("fsdp_export", f"outputs/named/{word}", "--inspect", cwd=work).stdout
        assert f"progress:   {step} steps" in printed, (word, printed)
        assert f"loss:       {by_step[step]['loss']:.4f}" in printed, (word, printed)
    one = programs.run("fsdp_export", "outputs/named/step-00000002", "--list", cwd=work)
    assert one.returncode == 3 and "is one checkpoint" in one.stderr, one.stderr
    (work / "some.txt").write_text("some text " * 20)
    evaluate = ("fsdp_eval", "-e", "named", "--data", "some.txt", "--json", "--resume")
    for word, step in (("step-2", 2), ("4", 4), ("best", 6), ("outputs/named/step-00000002", 2),
                       ("outputs/named/best", 6), ("outputs/named/step-4", 4), ("outputs/named", 6)):
        process = programs.run(*evaluate, word, cwd=work)
        assert process.returncode == 0 and json.loads(process.stdout)["step"] == step, (word, process.stderr)
    process = programs.run(*evaluate, "step-3", cwd=work)
    assert process.returncode == 3 and "outputs/named has step-6, step-4, step-2" in process.stderr
    process = train("-e", "named", "--resume", "step-4", "--max-steps", "5")
    assert "resumed:   outputs/named/step-00000004, step 4," in process.stdout, process.stdout
    process = train("-e", "named", "--resume", "4", "--max-steps", "5")
    assert "resumed:   outputs/named/step-00000004, step 4," in process.stdout, process.stdout
    process = train(*COMMON, "-e", "other", "--resume", "outputs/named/best", "--max-steps", "7")
    assert "resumed:   outputs/named/step-0000000" in process.stdout, process.stdout
    near = ("'step-5000'", "outputs/named has step-")
    refused("-e", "named", "--resume", "step-5000", status=3, parts=near)
    process = programs.run("fsdp_export", "outputs/named/best", "--to", "deep/er/hf", cwd=work)
    assert process.returncode == 0 and (work / "deep/er/hf/config.json").exists(), process.stderr


def a_checkpoint_may_be_renamed():
    """It is listed, and named by its new name; no run takes it for the newest, or begins anew beside it."""
    train(*COMMON, "--max-steps", "3", "-e", "kept", "--ckpt-freq", "2")
    (folder("kept") / "step-00000003").rename(folder("kept") / "the-one-that-I-like")
    rows = programs.run("fsdp_export", "outputs/kept", "--list", cwd=work).stdout.splitlines()
    expected = [["step-00000002", "2"], ["the-one-that-I-like", "3"]]
    assert [row.split()[:2] for row in rows[1:]] == expected, rows
    evaluate = ("fsdp_eval", "-e", "kept", "--data", "some.txt", "--json")
    process = programs.run(*evaluate, "--resume", "the-one-that-I-like", cwd=work)
    assert process.returncode == 0 and json.loads(process.stdout)["step"] == 3, process.stderr
    shutil.rmtree(folder("kept") / "step-00000002")
    lines = log("kept")
    refused("-e", "kept", status=3, parts=("outputs/kept has the-one-that-I-like and no step-N", "--resume"))
    process = programs.run(*evaluate, cwd=work, status=3)
    assert "(outputs/kept has the-one-that-I-like)" in process.stderr, process.stderr
    assert log("kept") == lines
    process = train("-e", "kept", "--resume", "the-one-that-I-like", "--max-steps", "5")
    assert "resumed:   outputs/kept/the-one-that-I-like, step 3," in process.stdout, process.stdout
    rows = programs.run("fsdp_export", "outputs/kept", "--list", cwd=work).stdout
    assert "step-00000005" in rows and "the-one-that-I-like" in rows, rows
    process = programs.run("fsdp_eval", "-e", "kpet", "--data", "some.txt", cwd=work)
    assert process.returncode == 3 and "(did you mean kept?)" in process.stderr, process.stderr


def the_best_stays():
    """Losses fall while the learning rate is small and rise as it grows without bound."""
    options = [*COMMON, "--max-steps", "24", "--lr", "2", "--warmup-steps", "400", "--grad-clip", "1e9",
               "--eval-split", "8", "--eval-freq", "3", "--ckpt-freq", "5", "--ckpt-keep", "1", "--ckpt-best",
               "eval_loss"]
    train(*options, "-e", "best", ranks=RANKS)
    evaluated = {line["global_step"]: line["eval_loss"] for line in log("best") if "eval_loss" in line}
    best = min(evaluated, key=evaluated.get)
    assert best not in (3, 24), evaluated  # neither the first nor the last
    assert steps("best") == [best, 24], (steps("best"), evaluated)
    listed = programs.run("fsdp_export", "outputs/best", "--list", cwd=work).stdout
    assert re.search(rf"^step-{best:08d} .* {evaluated[best]:.4f} .* best$", listed, re.M), listed
    process = train("-e", "best", "--resume", "best", "--max-steps", str(best + 1), "--lr", "1e-6")
    assert f"step {best}, saved by" in process.stdout, process.stdout
    # Without the option only the newest stays.
    train(*options[:-2], "-e", "newest", ranks=RANKS)
    assert steps("newest") == [24]


def the_best_is_of_like_evaluations():
    """Of other data, or of another mean, losses are others: the least before is not the best any more."""
    letters = "".join(chr(97 + i * i % 26) for i in range(300))
    for name, texts in (("text", ["ab" * (20 + i) for i in range(80)]), ("easy", ["ab" * 30] * 8),
                        ("hard", [letters[i:i + 40] for i in range(16)])):  # fmt: skip
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (work / f"{name}.jsonl").write_text(lines)
    train(*COMMON[:-4], "--lr", "1e-2", "--data", "text.jsonl", "--eval-data", "easy.jsonl",
          "--eval-freq", "2", "--ckpt-freq", "100", "--ckpt-keep", "1", "--ckpt-best", "eval_loss",
          "--max-steps", "4", "-e", "like", ranks=RANKS)  # fmt: skip
    anew = "changed, so evaluation losses are others than before"
    hard = (work / "hard.jsonl").read_text()
    process = train("-e", "like", "--max-steps", "8", "--eval-data", "hard.jsonl", ranks=RANKS)
    assert f"note:      --eval-data {anew} (the best was " in process.stdout, process.stdout
    found = {line["global_step"]: line["eval_loss"] for line in log("like") if "eval_loss" in line}
    assert min(found[2], found[4]) < min(found[6], found[8]), found
    best = min((6, 8), key=found.get)
    assert steps("like") == sorted({best, 8}), (steps("like"), found)
    listed = programs.run("fsdp_export", "outputs/like", "--list", cwd=work).stdout
    assert re.search(rf"^step-{best:08d} .*best$", listed, re.M), listed
    # The file of the same name with other contents.
    shutil.copytree(folder("like"), folder("contents"))
    shutil.copy(work / "easy.jsonl", work / "hard.jsonl")
    process = train("-e", "contents", "--max-steps", "9", ranks=RANKS)
    assert f"note:      --eval-data {anew} (the best was " in process.stdout, process.stdout
    assert anew not in train("-e", "contents", "--max-steps", "10", ranks=RANKS).stdout
    os.rename(work / "hard.jsonl", work / "changed.jsonl")
    (work / "hard.jsonl").write_text(hard)
    process = train("-e", "like", "--max-steps", "9", "--loss-mean", "documents", ranks=RANKS)
    assert f"--loss-mean {anew}" in process.stdout, process.stdout
    process = train("-e", "like", "--max-steps", "10", "--seed", "3", ranks=RANKS)
    assert anew not in process.stdout and "--seed 0 → 3" in process.stdout, process.stdout


def a_run_ends_that_does_not_improve():
    options = [*COMMON, "--lr", "0", "--max-steps", "20", "--eval-split", "8", "--eval-freq", "2",
               "--stop-after", "3"]
    process = train(*options, "-e", "still", "--ckpt-freq", "100", ranks=RANKS)
    loss = log("still")[1]["eval_loss"]
    # The first is the best, and three more are no better.
    assert len(losses("still")) == 8 and steps("still") == [8], process.stdout
    told = "stopped after 3 evaluations without improvement (--stop-after 3): the best loss is"
    assert f"{told} {loss:.4f}\n" in process.stdout, process.stdout
    assert "\nstopped:   8 steps in" in process.stdout and "\ndone:" not in process.stdout, process.stdout
    # It remains ended, and goes on from where it was if asked to.
    process = train("-e", "still", ranks=RANKS)
    assert "already finished: 8 steps" in process.stdout and len(losses("still")) == 8, process.stdout
    train("-e", "still", "--stop-after", "5", ranks=RANKS)
    assert len(losses("still")) == 12, losses("still")
    # Other data to evaluate on: its first evaluation is the best again.
    train("-e", "still", "--stop-after", "5", "--eval-split", "9", ranks=RANKS)
    assert len(losses("still")) == 20, losses("still")
    refused(*COMMON, "--stop-after", "2", parts=("--eval-split",))
    refused(*COMMON, "--stop-after", "2", "--eval-split", "3", parts=("--eval-freq",))
    refused(*COMMON, "--ckpt-best", "eval_loss", "-e", "x", parts=("--eval-split",))


def the_start_may_be_the_best():
    """The loss before the first step is one to be better than: a run that makes its model worse ends."""
    options = [*COMMON[:-4], "--max-steps", "20", "--eval-split", "8", "--eval-freq", "1", "--eval-at-start",
               "--ckpt-freq", "100"]
    process = train(*options, "--lr", "0", "--stop-after", "2", "--ckpt-best", "eval_loss", "-e", "worse",
                    ranks=RANKS)  # fmt: skip
    start = log("worse")[0]["eval_loss_at_start"]
    assert all(line["eval_loss"] == start for line in log("worse")), log("worse")
    assert len(losses("worse")) == 2 and "best so far" not in process.stdout, process.stdout
    assert f"(--stop-after 2): the best loss is {start:.4f}\n" in process.stdout, process.stdout
    told = f"no evaluation was better than that before step 1 (loss {start:.4f}, --eval-at-start)"
    assert told in process.stdout, process.stdout
    process = train(*options, "--lr", "1e-3", "--max-steps", "2", "-e", "better", ranks=RANKS)
    assert "best so far" in process.stdout, process.stdout
    assert "no evaluation was better" not in process.stdout, process.stdout


def what_a_signal_left_is_evaluated():
    """By the next start, once, with its loss in the checkpoint; also where no steps are left."""
    options = [*COMMON, "--lr-schedule", "constant", "--eval-split", "8", "--eval-freq", "1"]
    command = [str(programs.BIN / "fsdp_train"), *options, "-e", "owed", "--ckpt-freq", "1"]
    command += ["--max-steps", "100000"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True)
    while not steps("owed"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143, out
    last = int(out.split("stopped by SIGUSR1 after step ")[1].split()[0])
    assert steps("owed")[-1] == last and "eval_loss" not in log("owed")[-1], log("owed")[-1]
    shutil.copytree(folder("owed"), folder("whole run"))
    train(*options, "-e", "reference", "--max-steps", str(last))
    expected = log("reference")[-1]["eval_loss"]
    told = f"evaluation after step {last}"
    for name, more, learned in (("owed", 0, "already finished"), ("whole run", 1, "done:      1 step ")):
        process = train("-e", name, "--max-steps", str(last + more))
        assert process.stdout.count(told) == 1 and learned in process.stdout, process.stdout
        listed = programs.run("fsdp_export", f"outputs/{name}", "--list", cwd=work).stdout
        assert re.search(rf"^step-{last:08d} .* {expected:.4f} ", listed, re.M), (expected, listed)
        assert told not in train("-e", name, "--max-steps", str(last + more)).stdout
    assert log("whole run")[-1]["eval_loss_at_start"] == expected
    assert programs.run("fsdp_export", "outputs/owed", "--to", "owed_hf", cwd=work).returncode == 0


def it_is_evaluated_before_the_first_step():
    held = ["--eval-split", "8", "--max-steps", "2"]
    for extra in ([], ["--strategy", "zero1", "--wrap", "block"]):
        process = train(*COMMON, *held, *extra, "--lr", "0", "--eval-at-start", "--log", "deep/start.jsonl",
                        ranks=RANKS)
        lines = programs.log_of(work / "deep/start.jsonl")
        # Nothing is learned: the first is the last.
        assert abs(lines[0]["eval_loss_at_start"] - lines[1]["eval_loss"]) < 1e-6, lines
        assert "eval_loss_at_start" not in lines[1] and process.stdout.count("evaluation after step 0:") == 1
        train(*COMMON, *held, *extra, "--lr", "0", "--log", "plain.jsonl", ranks=RANKS)
        plain = programs.log_of(work / "plain.jsonl")
        assert [line["loss"] for line in plain] == [line["loss"] for line in lines]


def folders_are_made_and_left():
    paths = ["--tensorboard", "a/b/c", "--log", "d/e/f.jsonl", "--trace", "g/h/i.json", "--memory-profile",
             "j/k/l.svg"]
    train(*COMMON, "--max-steps", "5", *paths)
    assert list((work / "a/b/c").glob("events*"))
    assert all((work / path).stat().st_size > 0 for path in ("d/e/f.jsonl", "g/h/i.json", "j/k/l.svg"))
    for bad, status in ((["--data", "missing"], 3), (["--memory-limit", "1MB"], 4),
                        (["--trace", "/proc/x/y"], 3)):
        train(*COMMON, "-e", "failed", "--save-dir", "fresh", "--max-steps", "5", *bad, status=status)
        assert not (work / "fresh").exists(), (bad, list((work / "fresh").rglob("*")))


programs.run_tests([the_name_alone_goes_on, a_branch_goes_on, what_is_gone_is_named_with_its_place,
                    what_is_given_wins, printed_options_read_back, what_is_given_twice_is_told_alone,
                    values_come_back_as_they_were, a_folder_may_move, nothing_goes_without_a_line,
                    checkpoints_have_names, a_checkpoint_may_be_renamed, the_best_stays,
                    the_best_is_of_like_evaluations, a_run_ends_that_does_not_improve,
                    the_start_may_be_the_best,
                    what_a_signal_left_is_evaluated, it_is_evaluated_before_the_first_step,
                    folders_are_made_and_left])
