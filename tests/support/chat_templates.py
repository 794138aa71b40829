"""Chat templates of the kinds that real models have, and a plain renderer to hold ours against."""

from __future__ import annotations

import json
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.support.tiny_vocabularies import CHATML

CONTROL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "[INST]",
    "[/INST]",
)
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>")

TEMPLATES = {
    "chatml": CHATML,
    "llama3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}"
        "{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}"
        "{%- set loop_messages = messages[1:] -%}"
        "{%- else -%}{%- set first_user_prefix = '' -%}{%- set loop_messages = messages -%}"
        "{%- endif -%}{%- for message in loop_messages -%}"
        "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}"
        "{%- endif -%}{%- if (message['role'] == 'assistant') -%}{%- set role = 'model' -%}"
        "{%- else -%}{%- set role = message['role'] -%}{%- endif -%}"
        "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}"
        "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
        "{%- else -%}{{ raise_exception('Invalid content type') }}{%- endif -%}"
        "{{ '<end_of_turn>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
    ),
    # The role is part of the control token.
    "phi3": (
        "{% for message in messages %}"
        "{{ '<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' + '\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
    # Looks into messages, as Qwen3's does.
    "thinking": (
        "{%- set ns = namespace(last=messages|length - 1) %}"
        "{%- for message in messages[::-1] %}"
        "{%- if message.role == 'user' and not (message.content.startswith('<tool_response>')"
        " and message.content.endswith('</tool_response>')) %}"
        "{%- set ns.last = messages|length - 1 - loop.index0 %}{%- break %}"
        "{%- endif %}{%- endfor %}"
        "{%- for message in messages %}"
        "{%- set content = message.content %}"
        "{%- if message.role == 'assistant' and '</think>' in content %}"
        "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}"
        "{%- set content = content.split('</think>')[-1].lstrip('\n') %}"
        "{%- if loop.index0 > ns.last %}"
        "{%- set content = '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content %}"
        "{%- endif %}{%- endif %}"
        "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    ),
    "json": (
        "{% for message in messages %}<|im_start|>{{ message | tojson }}"
        "{% if message.tool_calls is defined %}{% for call in message.tool_calls %}"
        "{% if call.type == 'function' %}<tool_call>{{ call.function.name }}"
        "{{ call.function.arguments | tojson(indent=2) }}</tool_call>{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    ),
    "generation tag": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>\n{% endfor %}"
    ),
}


def render_plainly(template: str, variables: dict[str, Any]) -> str:
    """Render as `transformers` does, in this process and without limits."""
    template = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment.from_string(template).render(**variables)
