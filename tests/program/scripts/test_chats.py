"""scripts/prepare/chats.py on small templates: how what the assistant says is found, what a template takes,
and what is said of the ends of answers. Skipped where jinja2 cannot be had from PyPI."""

import datetime
import json
import os
import re

import prepared
from prepared import Tokens, prepare
from prepare.environment import TOKENIZERS

# Of Qwen3's kind: an answer loses its reasoning once another question follows.
DROPS = (
    "{%- for m in messages %}<{{ m.role }}>{%- if m.role == 'assistant' %}{%- if loop.last and"
    " m.reasoning_content %}{{- '(' + m.reasoning_content + ')' }}{%- endif %}{%- endif %}{{- m.content +"
    " '<end>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}"
)
PLAIN = (
    "{%- for m in messages %}{{- '<' + m.role + '>' + m.content + '<end>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content"
    " }}<end>{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}{% endfor %}"
)


def talk(count, **more):
    """`count` questions and answers."""
    messages = []
    for turn in range(count):
        messages += [{"role": "user", "content": f"q{turn}"},
                     {"role": "assistant", "content": f"a{turn}", **more}]
    return messages


def template_of(source, **special):
    from prepare.chats import Template

    return Template(source, "a template", special, datetime.datetime(2024, 7, 26))


def chat_of(messages, learned=None, **more):
    from prepare.forms import Chat

    if learned is None:
        learned = [message["role"] == "assistant" for message in messages]
    return Chat(messages, learned, **more)


def samples(template, messages, learned=None, **more):
    """(how, the samples as text in which what is learned stands in braces)"""
    how, made = template.samples(chat_of(messages, learned, **more), "here")
    return how, ["".join(f"{{{text}}}" if flag else text for text, flag in sample if text) for sample in made]


def refused(function, *arguments, **options):
    from prepare.forms import BadRecord

    try:
        made = function(*arguments, **options)
    except BadRecord as error:
        return str(error)
    raise AssertionError(made)


def own_marks_say_what_is_learned(_):
    from prepare import chats

    template = template_of(MARKED)
    text = "<user>q0<end><assistant>{a0<end>}<user>q1<end><assistant>{a1<end>}"
    assert samples(template, talk(2)) == (chats.OWN, [text])
    _, (text,) = samples(template, talk(2), [False, False, False, True])
    assert text == "<user>q0<end><assistant>a0<end><user>q1<end><assistant>{a1<end>}", text
    # Two marks of one answer, of which not all are learned: found by rendering up to each.
    twice = template_of(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %},{% generation %}<end>{% endgeneration %}{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    assert samples(twice, talk(2))[1] == ["q0{a0},{<end>}q1{a1},{<end>}"]
    _, (text,) = samples(twice, talk(3), [False] * 3 + [True] + [False] * 2)
    assert text == "q0a0,<end>q1{a1},{<end>}q2a2,<end>", text
    # One that marks the last answer alone cannot say which is not learned.
    last = template_of(
        "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert samples(last, talk(2))[1] == ["q0a0q1{a1}"]
    assert "marks 1 parts" in refused(samples, last, talk(2), [False, False, False, True])


def earlier_answers_in_another_form_are_samples(_):
    """Two to six answers, each with its reasoning, are as many samples; what stays as it was stays in one."""
    from prepare import chats

    template = template_of(DROPS)
    for count in range(2, 7):
        how, made = samples(template, talk(count, reasoning_content="r"))
        assert how == chats.APART and len(made) == count
        for turn, text in enumerate(made):
            before = "".join(f"<user>q{i}<end><assistant>a{i}<end>" for i in range(turn))
            assert text == f"{before}<user>q{turn}<end><assistant>{{(r)a{turn}<end>}}", text
    assert samples(template, talk(1, reasoning_content="r"))[0] == chats.TURNS
    how, made = samples(template, talk(3))  # nothing to drop
    ((whole, _),) = template.whole(chat_of(talk(3)), "here")
    assert how == chats.TURNS and made == [re.sub(r"(a\d<end>)", r"{\1}", whole)]
    messages = talk(3)
    messages[3]["reasoning_content"] = "r"
    how, made = samples(template, messages)
    assert how == chats.APART and made == [
        "<user>q0<end><assistant>{a0<end>}<user>q1<end><assistant>{(r)a1<end>}",
        "<user>q0<end><assistant>a0<end><user>q1<end><assistant>a1<end><user>q2<end><assistant>{a2<end>}",
    ], made


def a_known_template_is_marked(_):
    """By its hash, whatever the ends of lines; the same is learned as by rendering up to each answer."""
    from prepare import known_templates

    said = "m.content + '<end>' }}"
    marked = f"{{%- generation %}}{{{{- {said}{{%- endgeneration %}}"
    choice = f"{{%- if m.role == 'assistant' %}}{marked}{{%- else %}}{{{{- {said}{{%- endif %}}"
    places = (("{{- '<' + m.role + '>' + " + said, "{{- '<' + m.role + '>' }}" + choice, 1),)
    source = PLAIN.replace("{%- endfor", "\n{%- endfor")
    without = [samples(template_of(source), talk(count))[1] for count in range(1, 4)]
    keeps = known_templates.Family("Tests", places)
    known_templates.KNOWN[known_templates.digest(source)] = keeps
    for text in (source, source.replace("\n", "\r\n") + "\n"):
        template = template_of(text)
        assert template.family is keeps and not template.has_marks
        found = [samples(template, talk(count)) for count in range(1, 4)]
        assert [made for _, made in found] == without
        assert {how for how, _ in found} == {"by marks put into Tests's chat template"}
    assert template_of(source.replace("<end>", "<END>")).family is None
    # One that drops what is earlier is rendered up to each answer, as if it were not known.
    content, assistant = "{{- m.content + '<end>' }}", "{%- if m.role == 'assistant' %}"
    dropping = (
        (content, "{%- if m.role != 'assistant' %}" + content + "{%- endif %}", 1),
        (assistant, assistant + "{%- generation %}", 1),
        ("{%- endif %}{%- endif %}", "{%- endif %}" + content + "{%- endgeneration %}{%- endif %}", 1))
    messages = talk(4, reasoning_content="r")
    unknown = samples(template_of(DROPS), messages)
    drops = known_templates.Family("Tests", dropping, keeps=lambda chat: False)
    known_templates.KNOWN[known_templates.digest(DROPS)] = drops
    template = template_of(DROPS)
    assert template.family and samples(template, messages) == unknown
    absent = known_templates.Family("Tests", (("absent", "", 1),))
    known_templates.KNOWN[known_templates.digest(PLAIN)] = absent
    try:
        template_of(PLAIN)
        raise RuntimeError("a place that is not there was not noticed")
    except AssertionError as error:
        assert "0 places with absent" in str(error)
    known = known_templates.KNOWN.items()
    known_templates.KNOWN = {key: family for key, family in known if family.name != "Tests"}


def contents_are_given_as_the_template_takes_them(_):
    parts = [{"role": "user", "content": ["x", "y"]}, {"role": "assistant", "content": "a"}]
    assert samples(template_of(PLAIN), parts)[1] == ["<user>xy<end><assistant>{a<end>}"]
    only = (
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}[{{ p.text }}]{% endfor %}<end>{%"
        " endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert samples(template_of(only), parts)[1] == ["<user>[x][y]<end><assistant>{[a]<end>}"]
    both = only.replace("{% for p", "{% if m.content is string %}{{ m.content }}{% else %}{% for p")
    both = both.replace("<end>", "{% endif %}<end>")
    assert samples(template_of(both), parts)[1] == ["<user>[x][y]<end><assistant>{a<end>}"]
    first = both.replace("{% for p in m.content %}[{{ p.text }}]{% endfor %}", "[{{ m.content[0].text }}]")
    assert "leaves out what the user says" in refused(samples, template_of(first), parts)

    def call(arguments, show):
        shown = f"m.tool_calls[0].function.name + {show}"
        content = f"(m.content or '') + ({shown} if m.tool_calls else '')"
        called = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
        said = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": called}]
        return samples(template_of(PLAIN.replace("m.content", content)), said)[1]

    of = "m.tool_calls[0].function.arguments"
    for show, given, shown in (
        (f"{of} | tojson", {"x": 1}, '{"x": 1}'),
        (f"{of} | tojson", '{"x":1}', '{"x": 1}'),
        (of, '{"x":1}', '{"x":1}'),
        (of, {"x": 1}, '{"x": 1}'),  # a string is all that can be added to one
        (f"({of} if {of} is string else {of} | tojson)", '{"x":1}', '{"x":1}'),
        (f"({of} | string)", {"x": 1}, '{"x": 1}'),
    ):
        found = call(given, show)
        assert found == ["<user>q<end><assistant>{f" + shown + "<end>}"], (show, given, found)
    named = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning": "r"}]
    assert template_of(named).whole(chat_of(messages), "here") == [("qrra", True)]


def nothing_that_is_said_is_left_out(_):
    """Texts of every message and calls of tools must be in what is rendered, in whatever form."""
    function = {"name": "f", "arguments": {"x": 1}}
    calling = {"role": "assistant", "content": "look", "tool_calls": [{"function": function}] * 2}
    messages = [{"role": "user", "content": 'say "f"'}, calling, {"role": "tool", "content": ' {"r": "f"}'},
                {"role": "assistant", "content": "<think>t</think> a "}]  # fmt: skip
    start, end = "{% for m in messages %}<{{ m.role }}>", "<end>{% endfor %}"
    end += "{% if add_generation_prompt %}<assistant>{% endif %}"
    says, calls = "{{ m.content | trim }}", "{{ m.tool_calls or '' }}"
    for body, lost in (
        (says + calls, None),
        ("{{ m.content | tojson }}" + calls, None),
        ("{{ m.content.split('</think>')[-1] }}" + calls, None),
        # Nothing of an answer that is seen where it is the last.
        ("{% if loop.last or m.role != 'assistant' %}" + says + "{% endif %}" + calls, None),
        ("{% if m.tool_calls %}" + calls + "{% else %}" + says + "{% endif %}", "what the assistant says"),
        ("{% if m.role != 'tool' %}" + says + "{% endif %}" + calls, "what the tool says"),
        ("{% if m.role != 'user' %}" + says + "{% endif %}" + calls, "what the user says"),
        (says, "a tool that the assistant calls"),
        (says + "{{ m.tool_calls[0] if m.tool_calls }}", "a tool that the assistant calls"),
    ):
        template, chat = template_of(start + body + end), chat_of(messages)
        made = template.whole if lost == "what the tool says" else template.samples
        if lost:
            assert f"the chat template leaves out {lost}; " in refused(made, chat, "here"), body
        else:
            made(chat, "here")


def what_ends_all_is_no_part_of_earlier_answers(_):
    """Phi-3's template writes the end of text behind the last message only."""
    from prepare import chats

    source = PLAIN.replace("{%- endif %}", "{%- else %}{{- eos_token }}{%- endif %}")
    how, made = samples(template_of(source, eos_token="<eos>"), talk(2))
    text = "<user>q0<end><assistant>{a0<end>}<user>q1<end><assistant>{a1<end><eos>}"
    assert how == chats.TURNS and made == [text]
    question = [*talk(1), {"role": "user", "content": "q1"}]
    _, (text,) = samples(template_of(source, eos_token="<eos>"), question)
    assert text == "<user>q0<end><assistant>{a0<end>}<user>q1<end><eos>", text


def ends_that_are_not_learned_are_reported(work):
    """A template whose marks leave the end of a turn outside, one that writes none, and a good one."""
    path = work / "a.jsonl"
    path.write_text("".join(json.dumps({"messages": talk(count)}) + "\n" for count in (1, 2, 3)))
    outside = MARKED.replace("<end>{% endgeneration %}", "{% endgeneration %}<end>")
    text = PLAIN.replace("<end>", "; ").replace("'<' + m.role + '>'", "m.role + ': '")
    text = text.replace("<assistant>", "assistant: ")
    for source, ends, warning in (
        (MARKED, "6 learned of 6", None),
        (PLAIN, "6 learned of 6", None),
        (outside, "0 learned of 6",
         "<end>, the token that ends an answer, is not learned in 6 of 6 answers, so a model would not learn"
         " to stop there; let the template's {% generation %} marks reach behind it"),
        (text, "0 learned of 3", "no special token ends 3 of 3 answers"),
    ):
        (work / "t.jinja").write_text(source)
        process = prepare("--out", work / "x.tok", "--chat-template", work / "t.jinja", path, status=0)
        assert f"ends of answers: {ends}\n" in process.stdout, (source, process.stdout)
        assert (warning in process.stderr) if warning else not process.stderr, (source, process.stderr)
        assert re.search(r"^conversations: 3, learned by ", process.stdout, re.M), process.stdout
        tokens = Tokens(work / "x.tok")
        share = 100 * sum(tokens.learned) / len(tokens.ids)
        assert f"{sum(tokens.learned):,} are learned ({share:.1f}%)" in process.stdout, process.stdout
    (work / "t.jinja").write_text(DROPS)
    talks = [{"messages": talk(count, reasoning_content="r")} for count in (1, 3)]
    path.write_text("".join(json.dumps(messages) + "\n" for messages in talks))
    process = prepare("--out", work / "x.tok", "--chat-template", work / "t.jinja", "--procs", 1, path)
    how = ("conversations: 2, learned 1 by rendering up to each answer, 1 in a sample for each answer that "
           "is rendered differently later (3 samples)\n")
    assert how in process.stdout, process.stdout
    # So that --eval-split holds out all of a conversation, the file says which samples are of one.
    assert Tokens(work / "x.tok").joined == [False, False, True, True]
    whole = ["--mask-prompt", "off"]
    process = prepare("--out", work / "x.tok", "--chat-template", work / "t.jinja", *whole, path)
    assert Tokens(work / "x.tok").joined == [False, False]
    assert "conversations: 2, learned as a whole (--mask-prompt off)\n" in process.stdout, process.stdout
    assert "ends of answers" not in process.stdout


def what_a_template_has_no_place_for_is_counted(work):
    """Reasoning and names are no part of the text, and the summary says so; null beside a call is an empty
    content where the template cannot do without one."""
    said = [{"role": "user", "content": "q", "name": "Bob"},
            {"role": "assistant", "content": "a", "thinking": "t"}]  # fmt: skip
    assert template_of(PLAIN).unused(chat_of(said)) == {"messages[].name", "messages[].thinking"}
    assert template_of(PLAIN).unused(chat_of(talk(1), options={"x": 1})) == {"chat_template_kwargs.x"}
    assert template_of("{% if x %}{% endif %}" + PLAIN).unused(chat_of(talk(1), options={"x": 1})) == set()
    assert template_of(DROPS).unused(chat_of(said)) == {"messages[].name"}
    (work / "a.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    (work / "t.jinja").write_text(PLAIN)
    process = prepare("--out", work / "x.tok", "--chat-template", work / "t.jinja", work / "a.jsonl")
    place = "(the chat template has no place for it) in 1"
    ignored = f"ignored: messages[].name {place}, messages[].thinking {place} record"
    assert ignored in process.stdout, process.stdout
    # Of Mistral's kind.
    no_system = template_of("{% if messages[0].role != 'user' %}{{ raise_exception('alternate') }}{% endif %}"
                            + PLAIN)  # fmt: skip
    of_system = [{"role": "system", "content": "s"}, *talk(1)]
    message = refused(samples, no_system, of_system)
    assert "(alternate); it takes no system message: put its text at the beginning of the first" in message
    message = refused(samples, no_system, talk(1)[1:])
    assert "(alternate); it begins with an answer: put a question before that, or give another" in message
    # Of Qwen's kind: it looks at the first message, and before an answer there is none.
    first = template_of("{% if messages[0].role == 'system' %}{% endif %}" + PLAIN)
    assert "it begins with an answer: put a question" in refused(samples, first, talk(1)[1:])
    tool = [{"role": "tool", "content": ""}]
    assert "(alternate); fix it, or give another" in refused(samples, no_system, tool)
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    calls = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    tail = "{%- if m.tool_calls %}{{- m.tool_calls | tojson }}{%- endif %}{%- endfor %}"
    calling = template_of(PLAIN.replace("{%- endfor %}", tail))
    assert not calling.takes_none
    _, (text,) = samples(calling, calls)
    assert text.startswith("<user>q<end><assistant>{<end>[") and '"x": 1' in text, text
    assert template_of(calling.source.replace("m.content", "m.content | default('-')")).takes_none


def the_date_is_today_unless_set(work):
    (work / "a.jsonl").write_text(json.dumps({"messages": talk(1)}) + "\n")
    (work / "t.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + PLAIN)
    command = ["--out", work / "x.tok", "--chat-template", work / "t.jinja", work / "a.jsonl"]

    def made(epoch):
        process = prepare(*command, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, status=0)
        return bytes(Tokens(work / "x.tok").ids).decode(), process.stdout

    text, said = made("1721952000")
    assert text.startswith("26 Jul 2024<user>") and "write today's, 2024-07-26" in said, (text, said)
    before = f"{datetime.datetime.now():%d %b %Y}"
    text, _ = made("")
    assert text.startswith((before, f"{datetime.datetime.now():%d %b %Y}")), text
    process = prepare(*command, env={**os.environ, "SOURCE_DATE_EPOCH": "x"})
    assert "SOURCE_DATE_EPOCH=x" in prepared.error_of(process, 2)


prepared.run_tests_with(TOKENIZERS, "chat templates", [
    own_marks_say_what_is_learned, earlier_answers_in_another_form_are_samples, a_known_template_is_marked,
    contents_are_given_as_the_template_takes_them, nothing_that_is_said_is_left_out,
    what_ends_all_is_no_part_of_earlier_answers, ends_that_are_not_learned_are_reported,
    what_a_template_has_no_place_for_is_counted, the_date_is_today_unless_set])
