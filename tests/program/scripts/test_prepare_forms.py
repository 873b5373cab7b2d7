"""scripts/prepare_data.py and the forms that records have: tests/golden/prepare/forms.jsonl holds, written by
hand from each form's documentation, a record, and what is made of it. In `shown` the parts that are learned
stand in {+..+}, and the byte that ends a text is $. `skipped` and `ends` are parts of the message for a
record that cannot be used, and for one that ends it all. Skipped where jinja2 cannot be had from PyPI."""

import csv
import gzip
import json
import re

import prepared
import programs
from prepared import FIXTURES, error_of, prepare, prepare_good
from prepare.environment import TOKENIZERS

TEMPLATE = ("{% if shout %}!{% endif %}{% if tools %}[tools {{ tools | tojson }}]{% endif %}"
            "{% for m in messages %}<{{ m.role }}>"
            "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}"
            "[call {{ c.function.name }} {{ c.function.arguments | tojson }}]"
            "{% endfor %}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
ROWS = programs.log_of(FIXTURES / "forms.jsonl")


def shown(tokens):
    """The documents in the table's notation."""
    documents = []
    for begin, end in zip(tokens.starts, tokens.starts[1:] + [len(tokens.ids)]):
        text, before = "", False
        for i in range(begin, end):
            if tokens.learned[i] != before:
                text += "+}" if before else "{+"
            before = tokens.learned[i]
            text += chr(tokens.ids[i]) if tokens.ids[i] else "$"
        documents.append(text + "+}" * before)
    return documents


def written(work, records):
    path = work / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (work / "t.jinja").write_text(TEMPLATE)
    return ["--chat-template", work / "t.jinja", path]


def each_form_is_used_as_documented(work):
    """One record at a time: its tokens, or its message."""
    assert len(ROWS) >= 60 and len({row["form"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        fields = row.get("fields", "")
        named = dict(field.split("=") for field in fields.split(",") if field)
        # Which leaves nothing of the row in doubt if it gives no document.
        filler = {named.get("text", "text"): "ok"}
        arguments = ["--fields", fields, *written(work, [row["record"], filler])]
        process = prepare("--out", work / "x.tok", *arguments)
        if "ends" in row:
            message = error_of(process, 3)
            assert "a.jsonl:1: " in message and row["ends"] in message, (row["form"], message)
            continue
        assert process.returncode == 0, (row["form"], process.stderr)
        documents = shown(prepared.Tokens(work / "x.tok"))
        assert documents == [*row.get("shown", []), "o{+k$+}"], (row["form"], documents)
        skipped = row.get("skipped")
        assert bool(skipped) == ("skipped: " in process.stderr), (row["form"], process.stderr)
        assert not skipped or ("a.jsonl:1: " in process.stderr and skipped in process.stderr), (row["form"],
                                                                                               process.stderr)
        ignored = re.search(r"^ignored: (.*) records?$", process.stdout, re.M)
        found = {part.rsplit(" in ", 1)[0] for part in ignored[1].split(", ")} if ignored else set()
        assert found == set(row.get("ignored", [])), (row["form"], process.stdout)


def the_summary_counts(work):
    """Against counts taken from the table."""
    rows = [row for row in ROWS if "ends" not in row and "fields" not in row] * 3
    arguments = ["--procs", 2, *written(work, [row["record"] for row in rows])]
    process = prepare("--out", work / "x.tok", *arguments, status=0)
    tokens = prepared.Tokens(work / "x.tok")
    bad = sum("skipped" in row for row in rows)
    empty = sum(row["record"] == {"text": ""} for row in rows)
    weightless = sum(row["record"].get("weight") in (0, "0") for row in rows
                     if isinstance(row["record"], dict))
    unlearned = sum(not row.get("shown") for row in rows) - bad - empty - weightless
    documents = [text for row in rows for text in row.get("shown", [])]
    assert shown(tokens) == documents
    assert (f"records: {len(rows)} read, {empty} left out (no text), {weightless} left out (weight 0), "
            f"{unlearned} left out (nothing is learned), {bad} skipped (bad)\n") in process.stdout, process
    longest = max(len(text.replace("{+", "").replace("+}", "")) for text in documents)
    assert f"longest: {longest} tokens" in process.stdout, process.stdout
    ignored = [key for row in rows for key in row.get("ignored", [])]
    for key in set(ignored):
        assert f"{key} in {ignored.count(key)}" in process.stdout, process.stdout
    *lines, others = process.stderr.splitlines()
    first = next(number for number, row in enumerate(rows, 1) if "skipped" in row)
    places = [f"{work}/a.jsonl:{number}" for number in range(first, len(rows) + 1, len(rows) // 3)]
    assert lines[0].startswith(f"prepare_data.py: warning: skipped: {places[0]}: "), lines
    assert lines[0].endswith(f" (also {places[1]}, {places[2]})"), lines
    named = sum(len(re.findall(r"a\.jsonl:\d+", line)) for line in lines)
    named += sum(int(line.rsplit(", ", 1)[1][:-len(" more)")]) for line in lines if line.endswith(" more)"))
    assert len(lines) == 12 and others.endswith(f"skipped: {bad - named} more for other reasons"), lines
    assert "a.jsonl:" in error_of(prepare("--out", work / "y.tok", "--strict", *arguments), 3)
    assert not (work / "y.tok").exists()


def one_kind_of_fault_does_not_hide_another(work):
    """However many records have it, and whichever processes meet them."""
    rows = [{"prompt": "p" * 2000}] * 2000 + [{"text": 5}, {"text": "ok"}]
    process = prepare("--out", work / "x.tok", "--procs", 2, *written(work, rows), status=0)
    many, one = process.stderr.splitlines()
    assert f'skipped: {work}/a.jsonl:1: has "prompt" and no "completion"' in many, many
    also = ", ".join(f"{work}/a.jsonl:{number}" for number in range(2, 6))
    assert many.endswith(f" (also {also}, 1,995 more)"), many
    assert one.endswith(f'skipped: {work}/a.jsonl:2001: "text" must be strings; fix the record'), one


def records_of_a_list_are_numbered(work):
    (work / "a.json").write_text('[{"text": "ok"}, 5, {"text": 7}]')
    lines = prepare("--out", work / "x.tok", work / "a.json", status=0).stderr.splitlines()
    assert len(lines) == 2
    for number, line in zip((2, 3), lines):
        assert f"{work}/a.json:1: record {number}: " in line, line
    (work / "a.json").write_text('[{"text": "ok"},\n{"text": 7')
    message = error_of(prepare("--out", work / "x.tok", work / "a.json"), 3)
    assert "a.json:2: record 2: not valid JSON" in message, message


def conversations_need_a_template(work):
    talk = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (work / "a.jsonl").write_text(json.dumps(talk) + "\n")
    message = error_of(prepare("--out", work / "x.tok", work / "a.jsonl"), 2)
    assert "no chat template" in message and "--chat-template chatml" in message, message
    tokens = prepare_good(work / "x.tok", "--chat-template", "chatml", work / "a.jsonl")
    assert shown(tokens) == ["<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{+a<|im_end|>\n+}"]
    assert b"<|im_start|>" in tokens.template  # for whoever exports what was trained on this
    command = ["--out", work / "x.tok", "--chat-template", work / "none", work / "a.jsonl"]
    message = error_of(prepare(*command), 3)
    assert "none: cannot be read as a chat template" in message, message


def nothing_is_lost_in_a_template(work):
    """Templates without a place for what a record holds."""
    def refused(template, **more):
        record = {"messages": [{"role": "system", "content": "S1"}, {"role": "user", "content": "q"},
                               {"role": "assistant", "content": "a"}], **more}
        command = written(work, [record])
        (work / "t.jinja").write_text(template)
        return error_of(prepare("--out", work / "x.tok", *command), 3)

    each = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert '"tools", which the chat template does not use' in refused(each, tools=[{"name": "f"}])
    only = "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert "leaves out what the system says" in refused(only)
    assert "a.jsonl:1: " in refused("{{ raise_exception('no') }}")


def earlier_turns_may_be_rendered_in_another_way(work):
    """As Qwen3's template drops the reasoning of all answers but the last: a sample a turn, each what the
    model has before it."""
    template = ("{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last %}(think)"
                "{% endif %}{{ m.content }}{% else %}{{ m.content }}{% endif %}</>{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}")
    turns = [{"role": role, "content": role[0] + str(i)} for i in range(3) for role in ("user", "assistant")]
    turns[3]["weight"] = 0
    command = written(work, [{"messages": turns}])
    (work / "t.jinja").write_text(template)
    assert shown(prepare_good(work / "x.tok", *command)) == [
        "<user>u0</><assistant>{+(think)a0</>+}",
        "<user>u0</><assistant>a0</><user>u1</><assistant>a1</><user>u2</><assistant>{+(think)a2</>+}"]


def an_answer_of_weight_0_is_never_learned(work):
    """Not with --mask-prompt off either, nor one that a template renders in another way where it is last."""
    turns = [{"role": role, "content": role[0] + str(i)} for i in range(2) for role in ("user", "assistant")]
    turns[1]["weight"] = 0
    records = [{"messages": turns}, {"prompt": turns[:2], "completion": turns[3:]},
               {"prompt": turns[2:], "completion": turns[3:]}]
    command = ["--mask-prompt", "off", *written(work, records)]
    assert shown(prepare_good(work / "x.tok", *command)) == [
        "<{+user>u0</><assistant>+}a0</>{+<user>u1</><assistant>a1</>+}",
        "<{+user>u0</><assistant>+}a0</>{+<assistant>a1</>+}",
        "<{+user>u1</><assistant>a1</><assistant>a1</>+}"]
    template = TEMPLATE.replace("{{ m.content }}", "{{ '(last)' if loop.last }}{{ m.content }}")
    (work / "t.jinja").write_text(template)
    message = error_of(prepare("--out", work / "y.tok", "--strict", *command), 3)
    assert "a.jsonl:1: where an answer of weight 0 lies" in message, message


def tables_and_compressed_files_are_the_same_records(work):
    records = [{"prompt": f'q "{i}",\n', "completion": f"a{i}"} for i in range(700)]
    (work / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    wanted = prepare_good(work / "x.tok", work / "a.jsonl").ids
    for name, dialect in (("a.csv", "excel"), ("a.tsv", "excel-tab")):
        with open(work / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["prompt", "completion"], dialect=dialect)
            writer.writeheader()
            writer.writerows(records)
    (work / "lines.json").write_bytes((work / "a.jsonl").read_bytes())  # lines, whatever the ending
    (work / "list.json").write_text(json.dumps(records))
    for name in ("a.jsonl", "a.csv", "a.tsv", "list.json"):
        (work / f"{name}.gz").write_bytes(gzip.compress((work / name).read_bytes()))
    for name in ("a.csv", "a.tsv", "lines.json", "a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "list.json.gz"):
        assert prepare_good(work / "y.tok", "--procs", 2, work / name).ids == wanted, name
    whole = (work / "a.jsonl.gz").read_bytes()
    for data in (whole[:-9], whole[:40] + b"xxxx" + whole[44:]):
        (work / "b.jsonl.gz").write_bytes(data)
        assert "not a whole .gz file" in error_of(prepare("--out", work / "z.tok", work / "b.jsonl.gz"), 3)
    for name, data, what in (("b.jsonl.gz", b"text", "not compressed, though it is named .gz"),
                             ("b.jsonl", whole, "compressed by gzip; name it b.jsonl.gz")):
        (work / name).write_bytes(data)
        assert what in error_of(prepare("--out", work / "z.tok", work / name), 3)
    for content, what in (("a,a\n1,2\n", ":1: the first line"),
                          ("prompt, completion\n1,2\n", ':1: the column " completion" has a blank beside'),
                          ("prompt;completion\n1;2\n", ':1: the columns are separated by ";"'),
                          ("prompt\tcompletion\n1\t2\n", ':1: the columns are separated by "\\t"; name it'),
                          ("prompt,completion\n1,\n", ':2: "completion" has no value'),
                          ("prompt,completion\n1\n", ":2: has 1 field, "),
                          ('prompt,completion\n"1', ":2: is not a readable table")):
        (work / "c.csv").write_text(content)
        assert f"c.csv{what}" in error_of(prepare("--out", work / "z.tok", work / "c.csv"), 3)
    (work / "c.csv").write_text('prompt,completion\n"q",a\n1,2,3\n\nr,b\n')
    bad = "c.csv:3: has 3 fields, but the first line names 2"
    process = prepare("--out", work / "y.tok", work / "c.csv", status=0)
    assert f"skipped: {work}/{bad}" in process.stderr and "3 read, 1 skipped (bad)" in process.stdout
    assert shown(prepared.Tokens(work / "y.tok")) == ["q{+a$+}", "r{+b$+}"]
    assert bad in error_of(prepare("--out", work / "z.tok", "--strict", work / "c.csv"), 3)
    (work / "c.csv").write_bytes(b'prompt,completion\nq,a\nr,\xe9\ns,"c\n\xc3\xa9"\n')
    process = prepare("--out", work / "y.tok", work / "c.csv", status=0)
    assert f"skipped: {work}/c.csv:3: is not UTF-8; convert it" in process.stderr, process
    assert bytes(prepared.Tokens(work / "y.tok").ids) == b"qa\0sc\n\xc3\xa9\0"
    (work / "c.csv").write_bytes(b"prompt,completion,\xe9\nq,a,b\n")
    assert "c.csv:1: is not UTF-8" in error_of(prepare("--out", work / "z.tok", work / "c.csv"), 3)


def a_weight_of_0_is_not_learned_from_a_table(work):
    (work / "a.csv").write_text("prompt,completion,weight\np,c,0\nq,d,1\nr,e,\ns,f,0.0\nt,g,True\n")
    process = prepare("--out", work / "x.tok", work / "a.csv", status=0)
    assert shown(prepared.Tokens(work / "x.tok")) == ["q{+d$+}", "r{+e$+}", "t{+g$+}"]
    assert "records: 5 read, 2 left out (weight 0)\n" in process.stdout, process
    (work / "a.csv").write_text("prompt,completion,weight\np,c,0\n")
    message = error_of(prepare("--out", work / "y.tok", work / "a.csv"), 3)
    assert "a.csv: has no record of which something is learned" in message, message


def what_was_meant_otherwise_is_named(work):
    """A list within an object, a key or an option that is misspelt."""
    row = {"instruction": "a", "output": "b"}
    (work / "l.jsonl").write_text(json.dumps([row], indent=1))
    assert "l.jsonl: is a list of records over several lines; name the file .json" in error_of(
        prepare("--out", work / "z.tok", work / "l.jsonl"), 3)
    (work / "o.json").write_text('{\n "data": [\n' + json.dumps(row) + "\n]\n}\n")
    assert "o.json: is one object over several lines" in error_of(
        prepare("--out", work / "z.tok", work / "o.json"), 3)
    (work / "lines.json").write_text('{"text": bad}\n' + json.dumps(row) + "\n")  # a bad record alone
    assert "lines.json:1: not valid JSON" in prepare("--out", work / "z.tok", work / "lines.json").stderr
    (work / "a.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    message = error_of(prepare("--out", work / "z.tok", "--fields", "prompt=question,completion=anwser",
                               work / "a.jsonl"), 3)
    assert message.endswith("it has no key of --fields completion=anwser"), message
    fields = ("--fields", "prompt=question, completion = answer")
    for option, words in (("--mask-promt", "unknown option '--mask-promt': did you mean --mask-prompt?"),
                          ("--zzz", "unknown option '--zzz'; --help")):  # fmt: skip
        process = prepare("--out", work / "z.tok", *fields, option, "off", work / "a.jsonl")
        assert words in error_of(process, 2)
    assert len(prepare_good(work / "z.tok", *fields, "--mask_prompt", "off", work / "a.jsonl").ids) == 3
    # A key of the name itself is not what was meant, in a record that lacks the meant one either.
    (work / "a.jsonl").write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "p", "completion": "c"}\n')
    process = prepare("--out", work / "z.tok", "--fields", "completion=answer", work / "a.jsonl")
    assert process.returncode == 0 and shown(prepared.Tokens(work / "z.tok")) == ["p{+a$+}"], process.stderr
    assert "a.jsonl:2: " in process.stderr and "no key of --fields completion=answer" in process.stderr
    # One that records may lack is not missed in each of them.
    rows = [{"q": "a", "a": "b"}, {"q": "a", "a": "b", "context": "c"}]
    (work / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) * 2)
    for key, warned in (("context", 0), ("contxt", 1)):
        for where in (("--out", work / "z.tok"), ("--preview", 4)):
            process = prepare(*where, "--fields", f"instruction=q,output=a,input={key}", work / "a.jsonl")
            told = process.stderr.count(f'--fields input={key}: none of the 4 records has a key "{key}"')
            assert process.returncode == 0 and told == warned, process.stderr


def a_preview_shows_what_is_learned(work):
    row = next(row for row in ROWS if row["form"] == "messages with a system prompt, two turns")
    arguments = written(work, [row["record"], {"text": "abc"}, {"text": "def"}])
    process = prepare("--preview", 2, *arguments)
    assert process.returncode == 0 and process.stderr == "", process.stderr
    assert process.stdout.splitlines()[1::2] == [*row["shown"], "a{+bc\\0+}"], process.stdout
    process = prepare("--preview", 1, *written(work, [{"text": "abc", "labels": 1}, {"text": "d", "id": 1}]))
    assert process.stderr == "prepare_data.py: note: ignored: labels in 1 record\n", process.stderr
    process = prepare("--preview", 1, *written(work, [{"text": "abc", "weight": 0}, {"text": "d"}]))
    assert process.stderr == "prepare_data.py: note: left out (weight 0): 1 record\n", process.stderr
    asked = written(work, [{"messages": [{"role": "user", "content": "q"}]}])
    assert "0 learned, so it is left out\n<user>q" in prepare("--preview", 1, *asked).stdout
    process = prepare("--preview", 1, "--out", work / "x.tok", *asked, status=0)
    assert process.stderr == ("prepare_data.py: note: --preview writes nothing: --out "
                              f"{work}/x.tok is left as it is\n"), process.stderr
    assert sorted(path.name for path in work.iterdir()) == ["a.jsonl", "t.jinja"]
    assert "--preview 0" in error_of(prepare("--preview", 0, *arguments), 2)


def names_of_special_tokens_are_text(work):
    """A user's text must not act as the template's own tokens do, if --special-tokens is off."""
    from tokenizers import Tokenizer
    source = json.loads((FIXTURES / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_str(json.dumps(source))
    (work / "m").mkdir()
    (work / "m" / "tokenizer.json").write_text(json.dumps(source))
    (work / "m" / "tokenizer_config.json").write_text((FIXTURES / "tokenizer_config.json").read_text())
    end = tokenizer.token_to_id("</s>")
    template = ("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"
                "{% if add_generation_prompt %}<s>{% endif %}")
    talk = {"messages": [{"role": "user", "content": "The </s> wren"},
                         {"role": "assistant", "content": "a bird"}]}
    command = ["--model", work / "m", *written(work, [talk])]
    (work / "t.jinja").write_text(template)
    on = prepare_good(work / "x.tok", *command)
    off = prepare_good(work / "y.tok", "--special-tokens", "off", *command)
    assert on.ids.count(end) == 3 and off.ids.count(end) == 2
    assert off.learned_ids() == on.learned_ids()
    talk["messages"][0]["content"] = "The wren"
    (work / "a.jsonl").write_text(json.dumps(talk))
    on = prepare_good(work / "x.tok", *command)
    off = prepare_good(work / "y.tok", "--special-tokens", "off", *command)
    assert on.ids == off.ids and on.learned == off.learned


def an_export_has_the_template(work):
    """That of --chat-template stands in what is trained on the data; other data must have the same."""
    talk = {"messages": [{"role": "user", "content": "q" * 99}, {"role": "assistant", "content": "a" * 99}]}
    other, *_, path = written(work, [talk])
    chat = prepare_good(work / "a.tok", "--chat-template", "chatml", path)
    prepare_good(work / "b.tok", other, work / "t.jinja", path)
    model = programs.make_model(work / "m", programs.CONFIG | {"vocab_size": 256}, weights=False)

    def train(*data, status=0):
        return programs.run("fsdp_train", "--model", model, "-s", 32, "--max-steps", 1, "--save-dir", work,
                            "-e", "run", "--data", *data, status=status)

    message, = programs.errors(train(work / "a.tok", work / "b.tok", status=3), "fsdp_train")
    assert "b.tok: was prepared with a different --chat-template" in message, message
    said = [programs.warnings(train(work / "a.tok", "-e", f"on_{name}", "--eval-data", work / name))
            for name in ("a.tok", "b.tok")]  # fmt: skip
    other = "b.tok (command line) was prepared with a different --chat-template"
    assert [any(other in line for line in lines) for lines in said] == [False, True], said
    whole = (work / "a.tok").read_bytes()
    at = whole.index(chat.template)
    (work / "b.tok").write_bytes(whole[:at] + b"X" + whole[at + 1:])
    message, = programs.errors(train(work / "b.tok", status=3), "fsdp_train")
    assert "its chat template does not match its checksum" in message, message
    assert "template do not have the checksum" in error_of(prepare("--verify", work / "b.tok"), 3)
    train(work / "a.tok")
    programs.run("fsdp_export", work / "run", "--to", work / "out", status=0)
    assert (work / "out" / "chat_template.jinja").read_bytes() == chat.template


prepared.run_tests_with(TOKENIZERS, "the forms of records", [
    each_form_is_used_as_documented, the_summary_counts, one_kind_of_fault_does_not_hide_another,
    records_of_a_list_are_numbered, a_weight_of_0_is_not_learned_from_a_table, conversations_need_a_template,
    nothing_is_lost_in_a_template, earlier_turns_may_be_rendered_in_another_way,
    an_answer_of_weight_0_is_never_learned, tables_and_compressed_files_are_the_same_records,
    what_was_meant_otherwise_is_named, a_preview_shows_what_is_learned, names_of_special_tokens_are_text,
    an_export_has_the_template])
