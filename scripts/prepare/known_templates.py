"""Marks for chat templates that have none: what the assistant says, in the well-known ones.

A template is known by the hash of its source. Then {% generation %} marks are put into it at places that are
given here, so that it renders what it rendered, and says which of that the model is to learn: from behind the
prompt that the model completes to the end of the turn, as rendering with add_generation_prompt would find it
(tests/program/scripts/test_chat_templates.py compares the two).
"""
import hashlib
from dataclasses import dataclass
from typing import Callable

BEGIN, END = "{%- generation %}", "{%- endgeneration %}"  # which take the space before them, as "{{-" does
TOOL = '{%- elif message.role == "tool"'  # behind the assistant's branch


@dataclass
class Family:
    """`places`: (text, what takes its place, how often it must be there). `keeps`: whether the template
    renders the answers of a conversation as it rendered each of them when it was the last."""
    name: str
    places: tuple
    keeps: Callable = lambda chat: True


LLAMA_HEADER = "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' "
LLAMA_SAID = "message['content'] | trim + '<|eot_id|>' }}"
LLAMA_TURN = "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ " + LLAMA_SAID
LLAMA_3 = Family("Llama 3", ((
    "{{ content }}",
    "{% if message['role'] == 'assistant' %}{% set said = message['content'] | trim + '<|eot_id|>' %}"
    "{{ content[:content | length - said | length] }}"
    "{% generation %}{{ said }}{% endgeneration %}{% else %}{{ content }}{% endif %}", 1),))


def _llama_3_tools(name, headers):
    """`headers`: how often one stands in the branch of calls."""
    call = "{%- set tool_call = message.tool_calls[0].function %}"
    return Family(name, (
        (LLAMA_TURN, "{%- if message['role'] == 'assistant' %}" + LLAMA_HEADER + "}}" + BEGIN +
         "{{- " + LLAMA_SAID + END + "{%- else %}" + LLAMA_TURN + "{%- endif %}", 1),
        (LLAMA_HEADER + "-}}", "", headers),
        (call, call + LLAMA_HEADER + "}}" + BEGIN, 1),
        (TOOL, END + TOOL, 1)))


QWEN_HEADER = "'<|im_start|>' + message.role"
QWEN_SAID = "message.content + '<|im_end|>' + '\\n' }}"
QWEN_TURN = "{{- " + QWEN_HEADER + " + '\\n' + " + QWEN_SAID
QWEN_2_5 = Family("Qwen2.5", (
    (QWEN_TURN, '{%- if message.role == "assistant" %}{{- ' + QWEN_HEADER + " + '\\n' }}" + BEGIN +
     "{{- " + QWEN_SAID + END + "{%- else %}" + QWEN_TURN + "{%- endif %}", 1),
    ("{{- " + QWEN_HEADER + " }}", "{{- " + QWEN_HEADER + " + '\\n' }}" + BEGIN, 1),
    ("{{- '\\n' + message.content }}", "{{- message.content }}", 1),
    ("{{- '\\n<tool_call>", "{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}"
     "{{- '<tool_call>", 1),
    (TOOL, END + TOOL, 1)))

ASSISTANT = '{%- elif message.role == "assistant" %}'
QWEN_BEGIN = "{{- " + QWEN_HEADER + " + '\\n' }}" + BEGIN
QWEN_3 = Family("Qwen3", (
    (QWEN_HEADER + " + '\\n<think>", "'<think>", 1),
    ("{{- " + QWEN_HEADER + " + '\\n' + content }}", "{{- content }}", 2),
    (ASSISTANT, ASSISTANT + QWEN_BEGIN, 1),
    (TOOL, END + TOOL, 1)), keeps=lambda chat: False)  # earlier answers lose their reasoning
QWEN_3_2507 = Family("Qwen3-2507", (
    ("{{- " + QWEN_HEADER + " + '\\n' + content }}", QWEN_BEGIN + "{{- content }}", 1),
    (TOOL, END + TOOL, 1)))


def _mistral_keeps(chat):
    """Tools and what the system says stand before the last question, wherever that is."""
    return not chat.tools and chat.messages[0]["role"] != "system"


def _mistral(answer):
    return Family("Mistral", ((answer, "{%- generation %}" + answer + "{%- endgeneration %}", 1),))


def _mistral_tools(calls, answer):
    role = '{%- elif message["role"] == "assistant" %}'
    return Family("Mistral", ((calls, BEGIN + calls, 1), (role, END + role, 1),
                              (answer, BEGIN + answer + END, 1)), keeps=_mistral_keeps)


SPACED, DENSE = '{{- "[TOOL_CALLS] [" }}', '{{- "[TOOL_CALLS][" }}'
KNOWN = {
    # Llama 3; 3.1; 3.2
    "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122": LLAMA_3,
    "93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7": _llama_3_tools("Llama 3.1", 2),
    "d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f": _llama_3_tools("Llama 3.2", 1),
    # Qwen2.5; Qwen3; Qwen3-Instruct-2507
    "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a": QWEN_2_5,
    "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8": QWEN_3,
    "64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326": QWEN_3_2507,
    # Mistral-7B-Instruct 0.1; 0.2 and Mixtral, first and later; 0.3; Nemo
    "7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495":
        _mistral("{{ message['content'] + eos_token + ' ' }}"),
    "26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7":
        _mistral("{{ message['content'] + eos_token}}"),
    "bbc58aad99454df60138be9530c9601a0adfe3d8932cda975e1f10b2410ddc51":
        _mistral("{{- ' ' + message['content'] + eos_token}}"),
    "cafb64e0e9e5fd2503054b3479593fae39cbdfd52338ce8af9bb4664a8eb05bd":
        _mistral_tools(SPACED, '{{- " " + message["content"]|trim + eos_token}}'),
    "e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e":
        _mistral_tools(DENSE, '{{- message["content"] + eos_token}}'),
    # Axolotl's of the last four, which take parts of text too
    "5872a862e5053d8e46320488feadd05b54396775e9173a930ce339e7439ca9d5":
        _mistral("{{- ' ' + content + eos_token }}"),
    "76824445ead161c5bf886e3f4d683007ef79f1b508d41f16cafaecc9ceab0361":
        _mistral_tools(SPACED, '{{- " " + content|trim + eos_token }}'),
    "1143a43fde9f42bfac7f6b5221ca1d188f3517a26cf6ac7ed518d11488faeff6":
        _mistral_tools(DENSE, "{{- content + eos_token }}"),
}


def digest(source):
    """Of a template's text, whatever the ends of its lines and of the file."""
    return hashlib.sha256(source.replace("\r\n", "\n").rstrip("\n").encode()).hexdigest()


def marked(source):
    """(the template with marks, its family), or (None, None) if it is not known."""
    family = KNOWN.get(digest(source))
    if family is None:
        return None, None
    source = source.replace("\r\n", "\n")
    for text, instead, count in family.places:
        if source.count(text) != count:  # of a text with this hash
            raise AssertionError(f"{family.name}: {source.count(text)} places with {text}, not {count}")
        source = source.replace(text, instead)
    return source, family
