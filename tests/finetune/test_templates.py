"""How families of models write a conversation: twenty formats that are read, and three that need generation marks."""

import json
import re
from datetime import datetime

import numpy as np
import pytest

from tacita.finetune import ChatTemplate, EncodedTexts, TokenEncoder, chat
from tacita.finetune.encoding import NOTHING
from tacita.finetune.records import Turn, read_line
from tests.finetune.toy import FIRST, Tokenizer, spell

END = "<|end|>"  # the end token of the toy tokenizer


def turns(user, assistant, *, begin="", asks="", between=""):
    """Return a template: how each role's words are written, and what asks for an answer."""
    written = f"{{% if m.role == 'user' %}}{user}{{% else %}}{assistant}{{% endif %}}".replace("@", "{{ m.content }}")
    between = f"{{% if not loop.last %}}{between}{{% endif %}}"
    every = f"{{% for m in messages %}}{written}{between}{{% endfor %}}"
    return f"{begin}{every}{{% if add_generation_prompt %}}{asks}{{% endif %}}"


def marked(before, behind, names=("user", "assistant"), **more):
    """Return a template in which a header with the role's name opens each turn."""
    user, assistant = (before.replace("ROLE", name) for name in names)
    return turns(f"{user}@{behind}", f"{assistant}@{behind}", asks=assistant, **more)


IM, SYSTEM = "<|im_start|>ROLE\n", "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
READ = {
    "ChatML": marked(IM, "<|im_end|>\n"),
    "Qwen 2.5": marked(IM, "<|im_end|>\n", begin=SYSTEM),
    "InternLM 2": marked(IM, "<|im_end|>\n", begin="<s>"),
    "Phi-4": marked("<|im_start|>ROLE<|im_sep|>", "<|im_end|>"),
    "Phi-3": turns("<|user|>\n@<|end|>\n<|assistant|>\n", "@<|end|>\n"),
    "Llama 3": marked("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", begin="<|begin_of_text|>"),
    "Llama 2": turns("<s>[INST] @ [/INST]", " @ </s>"),
    "Mistral 7B": turns("[INST] @ [/INST]", "@</s>", begin="<s>"),
    "Gemma": marked("<start_of_turn>ROLE\n", "<end_of_turn>\n", ("user", "model"), begin="<bos>"),
    "Zephyr": turns("<|user|>\n@</s>\n", "<|assistant|>\n@</s>\n", asks="<|assistant|>\n"),
    "Tulu": turns("<|user|>\n@\n", f"<|assistant|>\n@{END}", asks="<|assistant|>\n", between="\n"),
    "Granite": marked("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n"),
    "Command R": marked(
        "<|START_OF_TURN_TOKEN|><|ROLE_TOKEN|>", "<|END_OF_TURN_TOKEN|>", ("USER", "CHATBOT"), begin="<BOS_TOKEN>"
    ),
    "EXAONE": turns("[|user|]@\n", "[|assistant|]@[|endofturn|]\n", asks="[|assistant|]"),
    "OpenChat": marked("GPT4 Correct ROLE: ", "<|end_of_turn|>", ("User", "Assistant"), begin="<s>"),
    "DeepSeek LLM": turns("User: @\n\n", f"Assistant: @{END}", asks="Assistant:"),
    "Vicuna": turns("USER: @ ", "ASSISTANT: @</s>", asks="ASSISTANT:"),
    "Alpaca": turns("### Instruction:\n@\n\n", f"### Response:\n@{END}\n\n", asks="### Response:\n"),
    "Solar": turns("### User:\n@\n\n", f"### Assistant:\n@{END}\n\n", asks="### Assistant:\n"),
    "Nemotron": turns("<extra_id_1>User\n@\n", "<extra_id_1>Assistant\n@\n", asks="<extra_id_1>Assistant\n"),
}
LAST = "{% if loop.last %}%s{% endif %}"
REFUSED = {
    "Qwen 3, whose last answer alone has a place for thoughts": turns(
        "<|im_start|>user\n@<|im_end|>\n",
        "<|im_start|>assistant\n" + LAST.replace("%s", "<think>\n\n</think>\n\n") + "@<|im_end|>\n",
        asks="<|im_start|>assistant\n",
    ),
    "Mistral Nemo, whose system prompt stands before the last question": turns(
        "[INST] " + LAST.replace("%s", "Be brief.\n\n") + "@ [/INST]", "@</s>", begin="<s>"
    ),
    "a template that tells how many turns there are": marked(
        IM, "<|im_end|>\n", begin="{{ messages | length }} turns\n"
    ),
}


class Words(Tokenizer):
    """The toy tokenizer with a template in Jinja."""


def written(*given, **settings):
    return "".join(chat.written(*given, **settings))


@pytest.mark.parametrize("name", READ)
def test_what_the_assistant_says_is_the_target(name, tmp_path):
    words = Words(READ[name])
    rows = EncodedTexts(TokenEncoder(tokenizer=words, max_tokens=512, chat=ChatTemplate(words)), tmp_path)
    said = ["first?", "One.", "second?", "Two."]
    messages = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(said)]
    rows.extend([read_line(json.dumps({"messages": messages}).encode())])
    batch = rows.fetch(np.array([0]), 0)
    ids = batch["input_ids"][0][batch["labels"][0] != -100].tolist()
    text = "".join(chr(token - FIRST) if token >= FIRST else "" for token in ids)
    assert text.index("One.") < text.index("Two.")
    assert "?" not in text
    assert (
        batch["input_ids"][0][batch["attention_mask"][0] == 1].tolist()
        == words(written(words, messages, asks=False))["input_ids"]
    )


def test_a_template_writes_the_same_date_on_every_day():
    words = Words(
        "\n{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + marked(IM, "<|im_end|>\n")
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    record = read_line(json.dumps({"messages": messages}).encode()).record
    one, other = TokenEncoder(tokenizer=words, max_tokens=64, chat=ChatTemplate(words)).encode([record, record])
    assert one == other != NOTHING
    assert written(words, messages, asks=False).startswith("\n26 Jul 2024")


def test_no_date_depends_on_the_time_zone_the_language_or_the_system():
    """``%s`` counts seconds in local time; a directive that the template's own table lacks is refused."""
    day = datetime(2024, 7, 26)
    for form in ("%Y-%m-%d", "%A, %B %d, %Y", "%a %b %-d %-m %H:%M:%S", "%j%%s %F %T %y %I %p %e", "%"):
        assert written(Words("{{ strftime_now('" + form + "') }}"), [], asks=False) == day.strftime(form)
    for form in ("%s", "%c", "%x", "%-q", "%%%s"):
        with pytest.raises(ValueError, match="which may depend on the machine"):
            written(Words("{{ strftime_now('" + form + "') }}"), [], asks=False)


def with_marks(template):
    user, assistant = template.split("{% else %}")
    said = f"{{%- generation -%}} {{{{ m.content }}}}{END} {{%- endgeneration +%}}"
    return user + "{% else %}" + assistant.replace("{{ m.content }}", said)


@pytest.mark.parametrize("name", REFUSED)
def test_generation_marks_tell_what_the_assistant_says_and_no_text_forges_one(name):
    words = Words(with_marks(REFUSED[name]))
    encoder = TokenEncoder(tokenizer=words, max_tokens=2048, chat=ChatTemplate(words))
    forged = "{% endgeneration %}{%- generation -%}{% if true %}"
    texts = ["first?", "One.", forged, f"Two {forged}", "third?"]  # the last one is not answered
    messages = [{"role": ("user", "assistant")[k % 2], "content": text} for k, text in enumerate(texts)]
    (found,) = encoder.encode([read_line(json.dumps({"messages": messages}).encode()).record])
    said = [token for token, target in zip(found.ids, found.targets, strict=True) if target]
    assert said == [*spell(texts[1]), 0, *spell(texts[3]), 0]
    whole = words(written(words, messages[:4], asks=False))["input_ids"]
    assert found.ids == whole[: len(found.ids)]


@pytest.mark.parametrize("form", ["{{ '%c' % n }}", "{{ '{:c}'.format(n) }}", "{{ '%c' | format(n) }}"])
@pytest.mark.parametrize("number", [0, 65, 0xD800, 0xDFFF, 0x10FFFF])
def test_no_number_of_a_text_and_no_empty_text_becomes_a_generation_mark(form, number):
    number_of = "{% set n = m.content[-7:] | int(65) %}"
    words = Words(with_marks(READ["ChatML"].replace("<|im_end|>", f"{number_of}{form}")))
    said = [Turn("user", ""), Turn("user", f"{number:7}"), Turn("assistant", "yes")]
    pieces = ChatTemplate(words).pieces(said)
    assert [text for text, own in pieces if own] == [f"yes{END}"]
    assert chr(number) in pieces[0][0]


AROUND = [
    "{% macro f(m) %}@{% endmacro %}{{ f(m) }}", "{% set x %}@{% endset %}{{ x }}", "{% filter trim %}@{% endfilter %}",
    "{% block b %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endblock %}{{ self.b() }}",
]  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
def test_a_mark_whose_place_is_not_known_is_refused(around):
    said = around.replace("@", "{% generation %}{{ m.content }}{% endgeneration %}")
    words = Words(f"{{% for m in messages %}}{said}{{% endfor %}}")
    with pytest.raises(ValueError, match="a generation mark stands in a macro, a block or a set"):
        ChatTemplate(words)


DEEP = {
    "macro": "{% macro f(t) %}{% if t %}{{ t[0] }}{{ f(t[1:]) }}{% endif %}{% endmacro %}{{ f(m.content) }}",
    "loop": "{% for t in [m.content] recursive %}{{ t[0] }}{% if t[1:] %}{{ loop([t[1:]]) }}{% endif %}{% endfor %}",
    "block": "{% set ns.t = m.content %}{% block b %}{% if ns.t %}{{ ns.t[0] }}{% set ns.t = ns.t[1:] %}{{ self.b() }}"
    "{% endif %}{% endblock %}",
    "caller": "{% macro g() %}{{ caller() }}{% endmacro %}{% macro f(t) %}{% if t %}{{ t[0] }}"
    "{% call g() %}{{ f(t[1:]) }}{% endcall %}{% endif %}{% endmacro %}{{ f(m.content) }}",
}


@pytest.mark.parametrize("kind", DEEP)
def test_how_deep_a_template_goes_into_a_text_does_not_depend_on_the_caller(kind):
    words = Words("{% set ns = namespace() %}{% for m in messages %}" + DEEP[kind] + "|{% endfor %}")

    def ends(length, below):
        if below:
            return ends(length, below - 1)
        try:
            return len(written(words, [{"role": "user", "content": "x" * length}], asks=False))
        except Exception as error:
            return type(error)

    at_top, far_below = ([ends(length, below) for length in (5, *range(8, 40))] for below in (0, 500))
    assert at_top == far_below
    assert at_top[0] == 6
    assert at_top[-1] is ValueError


def test_what_a_template_writes_of_a_text_is_bounded():
    """A text that it writes eight times is served; nine times would cost the time of a longer record."""
    messages = [{"role": role, "content": "x" * 60_000} for role in ("system", "user", "assistant")]
    record = read_line(json.dumps({"messages": messages}).encode()).record
    for times in (7, 9):
        more = "{% for _ in range(T) %}{{ m.content }}{% endfor %}".replace("T", str(times))
        words = Words("{% for m in messages %}" + more + "{{ m.role }}" + END + "{% endfor %}")
        (found,) = TokenEncoder(tokenizer=words, max_tokens=3000, chat=ChatTemplate(words)).encode([record])
        assert found.counts == (times < 9)
    with pytest.raises(ValueError, match="it writes more than 65,"):
        ChatTemplate(Words("{{ 'x' * 66000 }}" + READ["ChatML"]))


def test_what_a_template_writes_before_a_first_answer_is_no_target():
    """It is the same in all records, and the assistant says none of it."""
    words = Words("{{ 'Preamble. ' }}" + READ["ChatML"])
    encoder = TokenEncoder(tokenizer=words, max_tokens=256, chat=ChatTemplate(words))
    texts = [("assistant", "Hello."), ("user", "a?"), ("assistant", "Yes.")]
    messages = [{"role": role, "content": text} for role, text in texts]
    (found,) = encoder.encode([read_line(json.dumps({"messages": messages}).encode()).record])
    said = "".join(chr(k - FIRST) for k, own in zip(found.ids, found.targets, strict=True) if own and k >= FIRST)
    assert said.startswith("Yes.")


@pytest.mark.parametrize("marks", ["{% generation %}", "{% if false %}{% generation %}{% endgeneration %}{% endif %}"])
def test_marks_that_are_open_or_around_no_answer_are_refused(marks):
    with pytest.raises(ValueError, match="its generation marks are around no answer, or open"):
        ChatTemplate(Words(marks + READ["ChatML"]))


@pytest.mark.parametrize("name", REFUSED)
def test_a_format_in_which_a_later_turn_changes_an_earlier_one_is_refused(name):
    with pytest.raises(ValueError, match=r"is not additive .* use one with generation marks, give another"):
        ChatTemplate(Words(REFUSED[name]))


CHANGING = [
    "{{ m.content.upper }}", "{{ m['get'] }}", "{{ m.content|map('upper') }}", "{{ m.content|map('upper')|string }}x",
    "{{ messages|selectattr('role') }}", "{{ m.content.upper|string }}", "{{ 'a' ~ m.role.upper }}",
    "{{ '%s' % m.get }}", "{{ '{}'.format(m.get) }}", "{{ [m.get] }}", "{{ m|attr('get') }}", "{{ raise_exception }}",
    "{{ range }}", "{{ dict }}", "{{ lipsum() }}", "{{ range(9)|random }}", "{{ joiner() }}", "{{ loop.cycle }}",
    "{{ m.keys() - m.keys() }}", "{{ namespace(a=m.get) }}", "{{ (m.content.upper, 1)|join }}",
    "{{ {(none,): 0, (true,): 1, (m.content,): 2}|pprint }}",
]  # fmt: skip


@pytest.mark.parametrize("part", CHANGING)
@pytest.mark.parametrize("when", ["", "m.role == 'system'"])
def test_no_template_writes_what_another_process_or_record_would_change(part, when):
    """Not even on a condition that no synthetic conversation meets: a record is refused then, the same each time."""
    part = f"{{% if {when} %}}{part}{{% endif %}}" if when else part
    words = Words("{% for m in messages %}" + part + "{{ m.content }}|{% endfor %}")
    kept, found = [], set()
    for number in range(4):
        kept.append([object() for _ in range(number * 37)])
        try:
            found.add(written(words, [{"role": "system", "content": "".join(("ab", str(number)[:0]))}], asks=False))
        except Exception as error:
            found.add(type(error).__name__)
    assert len(found) == 1
    assert not any(re.search(r"0x[0-9a-f]{6}|<built-in|<function|<class|<generator", one) for one in found), found


@pytest.mark.parametrize(
    ("template", "why"),
    [("refuses", "no system turns here"), ("{% if %}", "Expected an expression"), ("{{ a.b }}", "a")],
)
def test_a_template_that_refuses_a_conversation_says_so_in_words(template, why):
    with pytest.raises(ValueError, match=why):
        written(Words(template), [{"role": "user", "content": "x"}], asks=True)


def test_what_templates_of_the_field_use_is_served():
    words = Words(
        "{%- set ns = namespace(first=true) -%}{% for m in messages %}{% if m.content is string and 'a' in m.content %}"
        "{% set ns.first = false %}{{ m.content.strip().split('a')[-1] | trim }}{% endif %}"
        "{{ m | tojson }}{{ m.items() | list | length }}{{ loop.index0 }}{% if loop.index == 9 %}{% break %}{% endif %}"
        "{{ messages | map(attribute='role') | join(',') }}{% if tools is none %}!{% endif %}{{ ns.first }}"
        "{{ m.get('name', 'x') }}{{ '{} {}'.format(m.role, 2) }}{{ strftime_now('%d') }}{{ 1 is sameas true }}"
        "{% endfor %}"
    )
    found = written(words, [{"role": "user", "content": "<a b>"}], asks=False)
    assert found == 'b>{"role": "user", "content": "<a b>"}20user!Falsexuser 226False'


@pytest.mark.parametrize("name", READ)
def test_transformers_writes_the_same(name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers import Tokenizer as Fast
    from tokenizers.models import WordLevel

    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Fast(WordLevel({"a": 0})), eos_token="a")
    words.chat_template = READ[name]
    messages = [{"role": "user", "content": " a<b\n"}, {"role": "assistant", "content": "'c'"}]
    theirs = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert written(words, messages, asks=True) == theirs


UNSAID = {
    "hello": "user",
    marked(IM, "<|im_end|>\n").replace("{{ m.content }}", "{{ m.text }}"): "user",
    turns("<|user|>@", "<|assistant|>{{ m.text }}", asks="<|assistant|>"): "assistant",
    turns("<|user|>{{ m.text }}", "<|assistant|>@", asks="<|assistant|>"): "user",
}


@pytest.mark.parametrize("template", UNSAID)
def test_a_template_that_leaves_out_what_was_said_is_refused_before_any_record(template):
    with pytest.raises(ValueError, match=f"writes the same whatever the {UNSAID[template]} says: .*in Python"):
        ChatTemplate(Words(template))
