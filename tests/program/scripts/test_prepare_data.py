"""scripts/prepare_data.py without a tokenizer: what it makes of each kind of file, whatever the number of
processes, what it refuses, and that it leaves nothing half-written. Needs nothing but Python."""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time

import prepared
import programs
from common.environment import reason_of
from prepared import FIXTURES, Tokens, error_of, prepare, prepare_good


def committed_bytes_come_again(work):
    prepare_good(work / "x.tok", FIXTURES / "records.jsonl")
    assert (work / "x.tok").read_bytes() == (FIXTURES / "bytes.tok").read_bytes()
    # The same records as a list, each over several lines.
    lines = (FIXTURES / "records.jsonl").read_text("utf-8").split("\n")
    records = [json.loads(line) for line in lines if line]
    (work / "x.json").write_text(json.dumps(records, indent=2, ensure_ascii=False), "utf-8")
    prepare_good(work / "y.tok", work / "x.json")
    assert (work / "y.tok").read_bytes() == (FIXTURES / "bytes.tok").read_bytes()


def completions_are_joined(work):
    """tests/unit/data/test_io_records.c has the same bytes for the trainer's reader."""
    tokens = prepare_good(work / "x.tok", FIXTURES / "completions.jsonl")
    assert [bytes(ids) for ids in tokens.documents()] == [b"The wren is a bird.\0", b"xy\0"]
    assert [bytes(ids) for ids in tokens.learned_ids()] == [b" a bird.\0", b"y\0"]


def the_longest_document_is_told(work):
    """Of text too, which is read in parts, and of what is made of several files."""
    (work / "a.txt").write_text("the wren\n" * 40_000)
    (work / "b.txt").write_text("a wren\n")
    (work / "c.jsonl").write_text(json.dumps({"text": "x" * 511}) + "\n")
    several = "360,001 tokens; documents longer than 512: 1, 1,024: 1, "
    for names, longest in (("b", "8 tokens\n"), ("ba", several), ("ab", several), ("bc", "512 tokens\n"),
                           ("cb", "512 tokens\n")):
        paths = [next(work.glob(f"{name}.*")) for name in names]
        process = prepare("--out", work / "x.tok", "--eos", 0, "--procs", 2, *paths)
        assert f"longest: {longest}" in process.stdout, (names, process.stdout, process.stderr)


def alpaca_with_a_text_is_alpaca(work):
    """As tatsu-lab/alpaca has it on the hub. test_io_records has the same for the trainer."""
    record = {"instruction": "Say.", "input": "", "output": "It.", "text": "Say. It."}
    (work / "a.jsonl").write_text(json.dumps(record) + '\n{"text": "xyz", "instruction": "Say."}\n')
    tokens = prepare_good(work / "x.tok", work / "a.jsonl")
    assert [bytes(ids) for ids in tokens.learned_ids()] == [b"It.\0", b"yz\0"]
    assert bytes(tokens.documents()[0]).endswith(b"### Response:It.\0")


def options_change_what_they_say(work):
    data = FIXTURES / "alpaca.json"
    plain = prepare_good(work / "a.tok", data)
    assert plain.packed and plain.bytes and (plain.first, plain.last) == (-1, 0) and plain.hash == 0
    assert [bytes(ids) for ids in plain.learned_ids()] == [b"The wren.\0", b"three\0", b"\0"]
    all_learned = prepare_good(work / "b.tok", "--mask-prompt", "off", data)
    assert all_learned.ids == plain.ids
    assert all_learned.learned == [i not in plain.starts for i in range(len(plain.ids))]
    marked = prepare_good(work / "d.tok", "--bos", 1, "--eos", 10, data)
    assert (marked.first, marked.last) == (1, 10)
    assert marked.documents() == [[1] + ids[:-1] + [10] for ids in plain.documents()]
    assert marked.learned_ids() == [ids[:-1] + [10] for ids in plain.learned_ids()]
    endless = prepare_good(work / "e.tok", "--eos", "none", data)
    # Without its end an empty answer teaches nothing.
    assert endless.documents() == [ids[:-1] for ids in plain.documents()[:2]]


def make_large(work, draw):
    """Files of several chunks of every kind."""
    words = "wren Ä 🐦 the of\tand \"quoted\" \\ {x} a".split(" ")

    def text(count):
        return " ".join(draw.choices(words, k=count))

    with open(work / "a.jsonl", "w", encoding="utf-8") as file:
        for i in range(6000):
            pair = {"prompt": text(5), "completion": text(9)}
            record = {"text": text(draw.randrange(120))} if i % 3 else pair
            file.write(json.dumps(record, ensure_ascii=i % 2 == 0) + draw.choice(["\n", "\r\n", "\n\n"]))
        file.write(json.dumps({"text": text(700_000)}))  # a line longer than a chunk, without an end
    with open(work / "b.json", "w", encoding="utf-8") as file:
        records = [{"instruction": text(20), "input": text(i % 4), "output": text(60)} for i in range(5000)]
        json.dump(records, file)
    with open(work / "c.txt", "w", encoding="utf-8", newline="") as file:
        file.write("\n".join(text(draw.randrange(30)) for _ in range(20000)))
        file.write("\r\n".join(text(draw.randrange(30)) for _ in range(9000)))
        file.write("\n" * 300_000 + "🐦" * 300_000 + text(200_000))
    return [work / name for name in ("a.jsonl", "b.json", "c.txt")]


def processes_change_nothing(work):
    files = make_large(work, random.Random(1))
    contents = []
    for processes in (1, 2, 8):
        prepare_good(work / f"{processes}.tok", "--procs", processes, *files)
        contents.append((work / f"{processes}.tok").read_bytes())
    assert contents[0] == contents[1] == contents[2]
    tokens = Tokens(work / "1.tok")
    records = [json.loads(line) for line in files[0].read_text("utf-8").split("\n") if line.strip()]
    kept = [record for record in records if record.get("text", "x")]
    documents = [bytes(ids) for ids in tokens.documents()]
    assert len(documents) == len(kept) + 5000 + 1
    for record, document in zip(kept, documents):
        if "text" in record:
            assert document == record["text"].encode() + b"\0"
    for record, document in zip(json.loads(files[1].read_text("utf-8")), documents[len(kept):]):
        assert document.endswith(f"{record['instruction']}\n\n### ".encode() + (
            f"Input:\n{record['input']}\n\n### ".encode() if record["input"] else b"") +
            f"Response:{record['output']}\0".encode())
    assert documents[-1] == files[2].read_bytes()


def tokens_of_others_pass_through(work):
    small = [i * 7 % 303 for i in range(700_000)]
    large = [70000 + token for token in small[:5000]]
    header = struct.pack("<3i", 20240520, 1, len(small)) + bytes(1012)
    (work / "c.bin").write_bytes(header + struct.pack(f"<{len(small)}H", *small))
    (work / "raw.bin").write_bytes(struct.pack(f"<{len(small)}H", *small))
    header = struct.pack("<3i", 20240801, 7, len(large)) + bytes(1012)
    (work / "llama.bin").write_bytes(header + struct.pack(f"<{len(large)}I", *large))
    tokens = prepare_good(work / "a.tok", work / "c.bin", work / "raw.bin")
    assert tokens.documents() == [small, small] and tokens.width == 2 and tokens.vocabulary == 303
    assert sum(tokens.learned) == 2 * len(small) - 2 and not tokens.bytes
    tokens = prepare_good(work / "b.tok", work / "c.bin", work / "llama.bin")
    assert tokens.documents() == [small, large] and tokens.width == 4 and tokens.vocabulary == 70303
    process = prepare("--out", work / "x.tok", work / "llama.bin", work / "c.bin")
    assert "longest: 700,000 tokens; documents longer than 512: 2, " in process.stdout, process.stdout
    (work / "cut.bin").write_bytes((work / "llama.bin").read_bytes()[:-4])
    assert "truncated" in error_of(prepare("--out", work / "x.tok", work / "cut.bin"), 3)
    (work / "odd.bin").write_bytes(b"abc")
    assert "3 bytes" in error_of(prepare("--out", work / "x.tok", work / "odd.bin"), 3)
    message = error_of(prepare("--out", work / "x.tok", work / "raw.bin", FIXTURES / "alpaca.json"), 2)
    assert "--tokenizer" in message


BAD = [
    ("a.jsonl", b'{"text": "x"}\n\n{"text": 5}\n', "a.jsonl:3: ", "string"),
    ("a.jsonl", b'{"text": "x"\n}\n', "a.jsonl:1: ", "not valid JSON"),
    ("a.jsonl", b'{"text": "x"} {"text": "y"}\n', "a.jsonl:1: ", "something follows"),
    ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', "a.jsonl:2: ", "UTF-8"),
    ("a.jsonl", b'{"txt": "x"}\n', "a.jsonl:1: ", "neither"),
    ("a.jsonl", b"\n[1]\n", "a.jsonl:2: ", "object"),
    ("a.jsonl", b'{"text": NaN}\n', "a.jsonl:1: ", "NaN"),
    ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: ", "surrogate"),
    ("a.jsonl", b"[" * 100000, "a.jsonl:1: ", "nested"),
    ("a.jsonl", b'{"text": ""}\n \n', "a.jsonl: ", "no record"),
    ("a.jsonl", b'{"messages": []}', "a.jsonl:1: ", "messages"),
    ("a.jsonl", b'{"prompt": "x"}', "a.jsonl:1: ", 'has "prompt" and no "completion"'),
    ("a.jsonl", b'{"instruction": "x", "input": 5, "output": "y"}', "a.jsonl:1: ", "strings"),
    ("a.json", b'"text"', "a.json:1: ", "list"),
    ("a.json", b"[]", "a.json: ", "no record"),
    ("a.json", b'[{"text": "x"},\n\n{"instruction": "x"}]', "a.json:3: ", "output"),
    ("a.zst", b"x", "a.zst: ", "decompress it"),
    ("a.json", b'[{"text": "x"}\n{"text": "x"}]', "a.json:2: ", "followed by"),
    ("a.json", b'[{"text": "x"},\n{"text": "x"}', "a.json:2: ", "truncated"),
    ("a.json", b'[{"text": "x"},\n{"text":\n"x', "a.json:3: ", "not valid JSON"),
    ("a.json", b'[{"text": "x"},\n]', "a.json:2: ", "not valid JSON"),
    ("a.json", b'[{"text": "x"}]\n]', "a.json:2: ", "follows the end"),
    ("a.json", b'[{"text":\n"\xff"}]', "a.json:2: ", "UTF-8"),
    ("a.txt", b"", "a.txt: ", "empty"),
    ("a.pdf", b"x", "a.pdf: ", '".pdf"'),
]


def bad_files_are_refused_and_nothing_is_written(work):
    out = work / "x.tok"
    out.write_bytes(b"what was there before")
    for name, content, place, what in BAD:
        (work / name).write_bytes(content)
        message = error_of(prepare("--out", out, "--strict", work / name), 3)
        assert f"{work}/{place}" in message and what in message, (name, content[:40], message)
        (work / name).unlink()
        assert [path.name for path in work.iterdir()] == ["x.tok"], content
        assert out.read_bytes() == b"what was there before"
    # The first fault of several files is named, whatever the processes.
    good = json.dumps({"text": "x" * 1000}) + "\n"
    (work / "a.jsonl").write_text(good * 5000 + "{}\n" + good * 5000 + "[]\n")
    for processes in (1, 4):
        command = ["--out", out, "--strict", "--procs", processes]
        message = error_of(prepare(*command, work / "a.jsonl"), 3)
        assert f"{work}/a.jsonl:5001: " in message, message
    (work / "a.json").write_text("[" + ",\n".join([good] * 2000 + ["{}"] + [good] * 2000) + "\n7")
    for processes in (1, 4):
        message = error_of(prepare("--out", out, "--strict", "--procs", processes, work / "a.json"), 3)
        assert f"{work}/a.json:4001: " in message, message
    assert sorted(path.name for path in work.iterdir()) == ["a.json", "a.jsonl", "x.tok"]


def bad_options_are_refused(work):
    data = FIXTURES / "alpaca.json"
    (work / "b.txt").write_text("text")
    for arguments, status, what in [
            ([data], 2, "--out"), (["--out", work / "x.bin", data], 2, ".tok"),
            (["--out", work / "b.txt" / "x.tok", data], 3, "Not a directory"),
            (["--out", work / "x.tok"], 2, "INPUT"),
            (["--out", work / "x.tok", work / "none.txt"], 3, "none.txt: cannot be opened"),
            (["--out", work / "x.tok", work], 3, "folder"),
            (["--out", work / "x.tok", "--procs", "0", data], 2, "0"),
            (["--out", work / "x.tok", "--eos", "256", data], 2, "--eos 256: is not a byte"),
            (["--out", work / "x.tok", "--eos", "</s>", data], 2, "--eos </s>: is not a byte; give 0 to 255"),
            (["--out", work / "x.tok", "--tokenizer", work / "t.json", data], 3, "t.json"),
            (["--out", work / "x.tok", "--mask-prompt", "maybe", data], 2, "maybe"),
            (["--out", work / "x.tok", "--packing", "on", data], 2, "to fsdp_train"),
            (["--out", work / "x.tok", "--fields", "prompt", data], 2, "--fields prompt: give NAME=KEY"),
            (["--out", work / "x.tok", "--fields", "text=a,text=b", data], 2, "names text or b twice")]:
        message = error_of(prepare(*arguments), status)
        assert what in message, message
    assert [path.name for path in work.iterdir()] == ["b.txt"]
    # Folders of the output are made, and go again if it is not.
    deep = work / "made" / "too" / "x.tok"
    (work / "bad.jsonl").write_text("{}\n")
    error_of(prepare("--out", deep, "--strict", work / "bad.jsonl"), 3)
    assert not (work / "made").exists()
    assert prepare("--out", deep, data).returncode == 0 and deep.exists()


def models_are_refused_as_the_trainer_refuses_them(work):
    data = FIXTURES / "alpaca.json"

    def folder(name, weights=False, **config):
        return programs.make_model(work / name, programs.CONFIG | config, weights)

    def refused(model):
        """The same message of both."""
        message = error_of(prepare("--out", work / "x.tok", "--model", model, data), 3).split(": error: ")[1]
        process = programs.run("fsdp_train", "--model", model, "-s", 64, "--data", data, "--max-steps", 1)
        theirs, = programs.errors(process, "fsdp_train")
        assert process.returncode == 3 and theirs.endswith(message), (message, theirs)
        return message

    message = refused(folder("mamba", model_type="mamba"))
    assert '"model_type" is "mamba"' in message and '"llama"' in message, message
    message = refused(folder("other", architectures=["LlamaModel"]))
    assert '"architectures" is ["LlamaModel"]' in message, message
    message = refused(folder("untyped", model_type=None, architectures=["BertModel"]))
    assert '"architectures" is ["BertModel"]' in message and "LlamaForCausalLM" in message, message
    assert "weights and no tokenizer.json" in refused(folder("weights", weights=True, vocab_size=256))
    assert "a vocabulary of 257 and no tokenizer.json" in refused(folder("vocabulary"))
    message = error_of(prepare("--out", work / "x.tok", "--model", work / "none", data), 3)
    assert "no such folder" in message and "hf download ORG/NAME --local-dir DIR" in message, message
    message = error_of(prepare("--out", work / "x.tok", "--model", "An-org/a.model", data), 3)
    assert message.endswith("hf download An-org/a.model --local-dir a.model"), message
    (work / "adapter").mkdir()
    (work / "adapter/adapter_config.json").write_text("{}")
    message = error_of(prepare("--out", work / "x.tok", "--model", work / "adapter", data), 3)
    assert "its base model's folder" in message, message
    (work / "empty").mkdir()
    message = error_of(prepare("--out", work / "x.tok", "--model", work / "empty", data), 3)
    assert "neither tokenizer.json nor config.json" in message, message
    assert not (work / "x.tok").exists()
    # Bytes if nothing else can be meant, or if they are requested.
    for arguments in (["--model", folder("small", vocab_size=256)],
                      ["--model", work / "weights", "--tokenizer", "bytes"], ["--tokenizer", "bytes"]):
        assert prepare_good(work / "x.tok", *arguments, data).bytes
    command = ["--out", work / "x.tok", "--model", work / "mamba", "--tokenizer", "bytes", data]
    message = error_of(prepare(*command), 3)
    assert "mamba" in message, message


def an_end_on_the_way_leaves_nothing(work):
    (work / "a.jsonl").write_text((json.dumps({"text": "word " * 200}) + "\n") * 60000)
    for limit, path in ((1 << 20, work / "a.jsonl"), (100, FIXTURES / "records.jsonl")):
        process = prepare("--out", work / "new/x.tok", path,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert error_of(process, 3).endswith("/x.tok: File too large; nothing was written")
        assert [left.name for left in work.iterdir()] == ["a.jsonl"]
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        command = [sys.executable, prepared.SCRIPT, "--out", work / "x.tok", "--procs", "2", work / "a.jsonl"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        while process.poll() is None and not list(work.glob("x.tok.partial-*")):
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == status, process.stderr.read()
        process.stderr.close()
        assert [path.name for path in work.iterdir()] == ["a.jsonl"]


# prepare_data.py, stopped by a signal as soon as its file is there.
STOPPED = """
import builtins, os, runpy, signal, sys

def stopped(path, *mode):
    file = builtins.open(path, *mode)
    if ".partial-" in str(path):
        os.kill(os.getpid(), signal.SIGTERM)
    return file

sys.path.insert(0, os.path.dirname(sys.argv[1]))
import prepare.token_file
prepare.token_file.open = stopped
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def an_end_at_the_beginning_leaves_nothing(work):
    (work / "a.jsonl").write_text('{"text": "word"}\n')
    command = [sys.executable, "-c", STOPPED, prepared.SCRIPT, "--out", work / "new/x.tok", work / "a.jsonl"]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert process.returncode == 143, process.stderr
    assert [path.name for path in work.iterdir()] == ["a.jsonl"]


def a_reader_that_leaves_is_no_error(work):
    out = os.path.join(work, "unread.tok")
    command = [sys.executable, prepared.SCRIPT, "--tokenizer", "bytes", "--out", out,
               FIXTURES / "records.jsonl"]  # fmt: skip
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert process.returncode == 128 + signal.SIGPIPE and "Traceback" not in process.stderr, process.stderr
    assert os.path.exists(out)


def a_full_output_is_an_error(work):
    for where in (("--out", work / "x.tok"), ("--preview", "3"), ("--help",)):
        command = [sys.executable, prepared.SCRIPT, *where, FIXTURES / "records.jsonl"]
        with open("/dev/full", "w") as full:
            process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert "standard output cannot be written (No space left on device)" in error_of(process, 3)


def a_byte_order_mark_is_not_learned(work):
    """test_io_data has the same for the trainer."""
    (work / "a.txt").write_bytes(b"\xef\xbb\xbfab\xef\xbb\xbf")
    assert bytes(prepare_good(work / "x.tok", work / "a.txt").ids) == b"ab\xef\xbb\xbf"


def an_input_that_is_given_twice_is_reported(work):
    (work / "a.txt").write_text("ab")
    os.symlink("a.txt", work / "b.txt")
    twice = f"{work}/a.txt is given twice"
    tokens = prepare_good(work / "x.tok", work / "a.txt", work / "a.txt", warning=f"{twice}: its records are")
    assert bytes(tokens.ids) == b"abab"
    prepare_good(work / "x.tok", work / "a.txt", work / "b.txt", warning=f"{twice}, also as {work}/b.txt: ")


def damage_is_found_by_verify(work):
    data = bytearray((FIXTURES / "bytes.tok").read_bytes())
    path = work / "x.tok"
    path.write_bytes(data)
    process = prepare("--verify", path)
    assert process.returncode == 0 and "4 documents, 266 tokens" in process.stdout, process.stdout
    draw = random.Random(2)
    sections = [range(128), range(128, 394), range(400, 434), range(440, 472)]
    for section in sections:
        at = draw.choice(section)
        data[at] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        error_of(prepare("--verify", path), 3)
        data = bytearray((FIXTURES / "bytes.tok").read_bytes())
    path.write_bytes(data[:-8])
    assert "size" in error_of(prepare("--verify", path), 3)


def a_missing_connection_is_the_reason(_):
    # As pip prints it, without a network and behind a proxy whose certificate it does not know.
    warning = "WARNING: Retrying (Retry(total=0)) after connection broken by '%s': /simple/tokenizers/\n"
    error = "ERROR: Could not find a version that satisfies tokenizers (from versions: none)\n"
    text = "NewConnectionError('<urllib3.HTTPSConnection object at 0x7f>: Name resolution failed')"
    assert reason_of(warning % text + error) == \
        "no connection: NewConnectionError('Name resolution failed')"
    text = "SSLError(SSLCertVerificationError(1, 'certificate verify failed'))"
    assert reason_of(warning % text + error) == f"no connection: {text}"
    assert reason_of(error) == error.strip() and reason_of("one\ntwo\n\n") == "two"


def the_trainer_reads_what_was_prepared(work):
    out = work / "records.tok"
    prepare_good(out, FIXTURES / "records.jsonl")
    for packing in ("best-fit", "stream", "off"):
        process = programs.run("fsdp_train", "--data", out, "--packing", packing, "-s", 64, "--max-steps", 2,
                               "--num-epochs", 9, status=0)
        assert "prepared as bytes" in process.stdout and f"packing:   {packing}, " in process.stdout


prepared.run_tests([
    committed_bytes_come_again, completions_are_joined, the_longest_document_is_told,
    alpaca_with_a_text_is_alpaca, options_change_what_they_say, processes_change_nothing,
    tokens_of_others_pass_through, bad_files_are_refused_and_nothing_is_written, bad_options_are_refused,
    models_are_refused_as_the_trainer_refuses_them, an_end_at_the_beginning_leaves_nothing,
    an_end_on_the_way_leaves_nothing, a_reader_that_leaves_is_no_error, a_full_output_is_an_error,
    a_byte_order_mark_is_not_learned, an_input_that_is_given_twice_is_reported, damage_is_found_by_verify,
    a_missing_connection_is_the_reason, the_trainer_reads_what_was_prepared])
