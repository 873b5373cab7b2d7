#!/usr/bin/env python3
"""Turns text, records and conversations into one file of tokens for fsdp_train --data.

Inputs, in the order given:
  .txt           one document
  .jsonl, .json  an object per line, or a list of objects. By their keys, the first that fit:
                   messages                    a conversation of {role, content}, by the tokenizer's chat
                                               template; the assistant's messages are learned
                   conversations               ShareGPT's, of {from, value}: the same; human is the user,
                                               gpt the assistant
                   instruction, input, output  Stanford Alpaca's prompt; the output is learned. With history
                                               or system (LLaMA-Factory's): a conversation
                   text                        all of it is learned
                   prompt, completion          one directly behind the other, without a template; the
                                               completion is learned. A token that would lie in both is
                                               divided: where the model completes it, the prompt ends there.
                                               Of lists of messages: a conversation
                 A conversation may have system, tools, and chat_template_kwargs beside it, and messages with
                 tool_calls, parts of text, and weight 0 (not learned; so are train and loss of false,
                 loss_weight 0 and masked of true). A record of weight 0 is not learned. Other keys are
                 ignored and counted
  .csv, .tsv     a table whose first line names the columns: a row is such an object
  .parquet       the same
  .bin           tokens of llm.c or nanoGPT, unchanged
.txt, .jsonl, .json, .csv and .tsv may be compressed (.gz).

The tokenizer's packages are installed from PyPI into an environment of their own on first use. Without a
tokenizer, bytes are tokens and nothing is installed. A --model without tokenizer.json that has weights, or a
vocabulary other than 256, is refused unless --tokenizer bytes is given. The same inputs and options give
the same bytes, whatever the number of processes. The format is described in runtime/data/token_file.h.
"""
import argparse
import datetime
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # processes are how the work is shared

from common import program  # noqa: E402
from common.errors import InputError, OptionError  # noqa: E402
from prepare import chats, forms, inputs, models, token_file, vocab_merges  # noqa: E402
from prepare.environment import TABLES, TOKENIZERS  # noqa: E402
from prepare.pipeline import Settings, prepare  # noqa: E402
from prepare.preview import preview  # noqa: E402
from prepare.serve import serve  # noqa: E402


def parser():
    p = program.Parser(prog="prepare_data.py", description=__doc__,
                       formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("inputs", nargs="*", metavar="INPUT", help=".txt, .jsonl, .json, .csv, .tsv, .parquet "
                                                              "or .bin")
    p.add_argument("--tokenizer", metavar="FILE|bytes", help="a tokenizer.json, or bytes (default: the one "
                   "of --model, else bytes)")
    p.add_argument("--model", metavar="DIR", help="a Hugging Face folder, whose tokenizer.json to take; one "
                   "that fsdp_train does not train is refused")
    p.add_argument("--out", metavar="FILE.tok", help="the file to write")
    p.add_argument("--verify", action="store_true",
                   help="check the checksums of .tok files, and write nothing")
    p.add_argument("--serve", action="store_true",
                   help="write nothing, and answer questions of another program: encode and decode "
                   "(scripts/prepare/serve.py)")
    p.add_argument("--mask-prompt", choices=("on", "off"), default="on",
                   help="off: prompts are learned too (default: on)")
    p.add_argument("--chat-template", default="auto", metavar="auto|chatml|FILE",
                   help="of conversations: the tokenizer's, ChatML, or a file's; without one they are "
                        "refused (default: auto, the tokenizer's)")
    p.add_argument("--fields", default="", metavar="NAME=KEY,..", help="which of the records' keys are "
                                                                       "meant, as "
                   "prompt=question,completion=answer")
    p.add_argument("--strict", action="store_true",
                   help="stop at a record that cannot be used (default: skip it, and say so)")
    p.add_argument("--preview", type=int, metavar="N", help="print the first N documents as they will be "
                                                            "learned, "
                   "and write nothing: what is learned is green on a terminal, {+marked+} elsewhere")
    p.add_argument("--packing", help=argparse.SUPPRESS)
    p.add_argument("--special-tokens", choices=("on", "off"), default="on",
                   help="off: a special token's name within a text is ordinary text (default: on)")
    p.add_argument("--bos", metavar="TOKEN", help="begins each document: token, number or none "
                   "(default: as the tokenizer says)")
    p.add_argument("--eos", metavar="TOKEN", help="ends each document: token, number or none (default: as "
                   "the tokenizer says)")
    p.add_argument("--procs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                   help="processes (default: one per core)")
    p.add_argument("--venv", metavar="DIR", help="where packages for tokenizers and tables are installed "
                   f"(default: {TOKENIZERS.default_folder()}, {TABLES.default_folder()})")
    return p


def tokenizer_of(options):
    """The path of tokenizer.json, or None for bytes."""
    if options.model:
        models.check(options.model)
    if options.tokenizer == "bytes":
        return None
    if options.tokenizer and options.model:
        raise OptionError("--tokenizer and --model: give one of them")
    path = options.tokenizer
    if options.model:
        path = models.tokenizer_of(options.model)
    if path and os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if path and not os.path.isfile(path) and not must_be_made(path):
        raise InputError(f"{path}: no such file; give a tokenizer.json")
    return path


def must_be_made(tokenizer):
    """Whether the tokenizer.json of a folder is not there, but can be made."""
    return not os.path.exists(tokenizer) and vocab_merges.can_be_read(os.path.dirname(tokenizer))


def warn_of_repeats(paths):
    """An input that is given twice may be meant, to weigh twice as much."""
    seen = {}
    for path in paths:
        file = os.path.realpath(path)
        known = seen.get(file)
        seen[file] = path
        if known:
            also = "" if known == path else f", also as {path}"
            print(f"prepare_data.py: warning: {known} is given twice{also}: its records are learned twice; "
                  "leave one out if that is not meant", file=sys.stderr)


def check(options):
    """Refuses what can be refused before any work; returns the path of the tokenizer or None."""
    if options.packing is not None:
        raise OptionError(f"--packing {options.packing}: rows are made of documents when training starts; "
                          "give --packing best-fit, stream or off to fsdp_train")
    if options.preview is not None:
        if options.preview < 1:
            raise OptionError(f"--preview {options.preview}: give the number of documents to print")
    elif not options.out:
        raise OptionError("--out is missing; give the file to write, as NAME.tok")
    elif not options.out.endswith(".tok"):
        raise OptionError(f"--out {options.out}: must end in .tok, by which fsdp_train knows it")
    elif os.path.isdir(options.out):
        raise InputError(f"{options.out}: is a folder; give a file's name")
    if not 1 <= options.procs <= 1024:
        raise OptionError(f"--procs {options.procs}: give 1 to 1024")
    for path in options.inputs:
        inputs.check(path)
    binary = [path for path in options.inputs if inputs.kind_of(path) == ".bin"]
    tokenizer = tokenizer_of(options)
    if binary and options.preview:
        raise OptionError(f"{binary[0]}: holds tokens already, so there is nothing to preview")
    if binary and not tokenizer and len(binary) < len(options.inputs):
        raise OptionError(f"{binary[0]}: holds tokens, but the other files' text has no tokenizer; give "
                          "--tokenizer")
    for path in binary:
        inputs.token_layout(path)
    return tokenizer, bool(binary) and not tokenizer


def show(path, header):
    how = "; bytes" if header["flags"] & token_file.FLAG_BYTES else ""
    documents = f"{header['documents']:,} document{'' if header['documents'] == 1 else 's'}"
    share = 100 * header["targets"] / max(header["tokens"], 1)
    print(f"{path}: {documents}, {header['tokens']:,} tokens, of which {header['targets']:,} are learned "
          f"({share:.1f}%), of a vocabulary of {header['vocabulary']:,}{how}")


def fields_of(text):
    """{name of a form's key: the record's key}"""
    fields = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, key = map(str.strip, pair.partition("="))
        name = {"response": "completion"}.get(name, name)
        if name not in forms.FIELDS or not key:
            raise OptionError(f"--fields {pair}: give NAME=KEY, where NAME is one of "
                              f"{', '.join(forms.FIELDS)}")
        if name in fields or key in fields.values():
            raise OptionError(f"--fields {text}: names {name} or {key} twice; give each once")
        fields[name] = key
    return fields


def time_of_templates():
    """Of templates that write the date: now, or the reproducible builds' SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return datetime.datetime.now()
    if not epoch.isdecimal():
        raise OptionError(f"SOURCE_DATE_EPOCH={epoch}: give seconds since 1970, or leave it out")
    return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)


def run(arguments):
    options = parser().parse_args(arguments)
    if options.serve:
        TOKENIZERS.ensure(options.venv or TOKENIZERS.default_folder())
        serve(sys.stdin, sys.stdout, time_of_templates())
        return
    if not options.inputs:
        raise OptionError("no INPUT is named; --help shows how to call it")
    if options.verify:
        for path in options.inputs:
            show(path, token_file.verify(path))
        return
    tokenizer, copy = check(options)
    fields, template = fields_of(options.fields), chats.read_source(options.chat_template)
    tables = any(inputs.kind_of(path) == ".parquet" for path in options.inputs)
    if tokenizer or tables or template:
        packages = TABLES if tables else TOKENIZERS
        packages.ensure(options.venv or packages.default_folder())
    if tokenizer and must_be_made(tokenizer):
        print(f"{vocab_merges.make(os.path.dirname(tokenizer))}: made of vocab.json and merges.txt")
    settings = Settings(tokenizer=tokenizer, copy=copy,
                        mask_prompt=options.mask_prompt == "on", chat_template=template, fields=fields,
                        strict=options.strict, special_tokens=options.special_tokens == "on", bos=options.bos,
                        eos=options.eos, now=time_of_templates())
    warn_of_repeats(options.inputs)
    if options.preview:
        if options.out:
            print(f"prepare_data.py: note: --preview writes nothing: --out {options.out} is left as it is",
                  file=sys.stderr)
        report(preview(options.inputs, settings, options.preview), is_preview=True)
        return
    writer, summary, vocabulary = prepare(options.inputs, options.out, settings, options.procs)
    flags = token_file.flags_of(is_bytes=not tokenizer and not copy)
    show(options.out, {"documents": writer.documents, "tokens": writer.tokens, "targets": writer.targets,
                       "vocabulary": vocabulary, "flags": flags})
    report(summary)


def report(summary, is_preview=False):
    """Behind a preview, whose output is documents alone, what it does not show is a note."""
    for line in summary.warnings():
        print(f"prepare_data.py: warning: {line}", file=sys.stderr)
    for line in summary.notes() if is_preview else ():
        print(f"prepare_data.py: note: {line}", file=sys.stderr)
    for line in () if is_preview else summary.lines():
        print(line)


if __name__ == "__main__":
    sys.exit(program.main("prepare_data.py", run))
