"""Chat templates that try to leave their sandbox, or to use up time, memory or the output."""

from __future__ import annotations

MARK = "blazr-template-canary"
"""What a template that has run a program would print."""

_ROOTS = (
    "''", "[]", "{}", "messages", "raise_exception", "strftime_now", "namespace", "dict", "range", "self", "joiner",
    "cycler", "lipsum", "messages[0].items", "tojson", "request", "config", "loop", "caller", "varargs", "none", "true",
)  # fmt: skip
_STEPS = (
    ".__class__.__mro__[1].__subclasses__()",
    f".__init__.__globals__['os'].popen('echo {MARK}').read()",
    "|attr('__class__')|attr('__base__')",
    f".__globals__.__builtins__['__import__']('os').popen('echo {MARK}').read()",
    "|attr('\\x5f\\x5fclass\\x5f\\x5f')",
)
ESCAPES = {
    **{f"{root}{step}": "{{ " + root + step + " }}" for root in _ROOTS for step in _STEPS},
    "format of a global": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "format of itself": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format by name": "{% set x = '{0.__class__}' %}{{ (x | attr('format'))(1) }}",
    "format by map": "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "attr by map": "{{ [raise_exception] | map(attribute='__globals__') | list }}",
    "attr by selectattr": "{{ [raise_exception] | selectattr('__globals__') | list | length }}",
    "attr by groupby": "{{ [raise_exception] | groupby('__class__') | list }}",
    "attr by sort": "{{ [1] | sort(attribute='__class__') }}{{ (1).__class__ }}",
    "items of a global": "{% for k, v in raise_exception.__globals__.items() %}{{ k }}{% endfor %}",
    "a generator's frame": "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "a macro's function": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "a function's code": "{{ raise_exception.__code__.co_consts }}",
    "a change of a message": "{{ messages.append({}) }}",
    "an update of a message": "{{ messages[0].update({'role': 'x'}) }}",
    "include": "{% include '/etc/passwd' %}",
    "include of a list": "{% include ['/etc/passwd', '../settings.py'] %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from import": "{% from 'os' import system %}{{ system }}",
    "extends": "{% extends '/etc/passwd' %}",
    "the context": "{{ self._TemplateReference__context.environment }}",
    "the context by name": "{{ self['_TemplateReference__context'] }}",
    "namespace with an underscore": "{{ namespace(__class__=1) }}",
    "dict with an underscore": "{{ dict(__class__=1) }}",
    "namespace of a dict": "{{ namespace({'__class__': 1}) }}",
    "namespace set": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "a call with a global": "{% call raise_exception.__globals__() %}{% endcall %}",
    "a filter that doesn't exist": "{{ 'id' | popen }}",
    "a test that doesn't exist": "{{ 'id' is system }}",
    "do": "{% do messages.clear() %}",
    "debug": "{% debug %}",
    "an unknown tag": "{% python import os %}",
    "pprint of a global": "{{ raise_exception | pprint }}",
    "a file by strftime": "{{ strftime_now('%c' * 10) | length }}{{ open('/etc/passwd') }}",
}  # fmt: skip
"""Sources by what they try; each is refused or prints nothing of the interpreter."""

BOMBS = {
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a text of 10^10": "{{ 'a' * 10**10 }}",
    "a text of 10^10 in a variable": "{% set x = 'a' * 10**10 %}{{ x | length }}",
    "a width of 10^9": "{{ '%1000000000d' % 1 }}",
    "a width of 10^9 by format": "{{ '{:1000000000d}'.format(1) }}",
    "a width of 10^9 by the filter": "{{ '%1000000000d' | format(1) }}",
    "centred in 10^10": "{{ 'a' | center(10**10) }}",
    "indented by 10^10": "{{ 'a\nb' | indent(10**10) }}",
    "justified to 10^10": "{{ 'a'.ljust(10**10) }}",
    "filled to 10^10": "{{ 'a'.zfill(10**10) }}",
    "a list of 10^10": "{{ ([1] * 10**10) | length }}",
    "a range of 10^10": "{{ range(10**10) | list | length }}",
    "a power": "{{ (9 ** 99999999) % 7 }}",
    "a shift by multiplication": "{% set n = namespace(x='a') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "a recursive macro": "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "a recursive loop": "{% for i in [[1]] recursive %}{{ loop([i, i]) }}{% endfor %}",
    "a product of replacements": "{{ ('a' * 9999).replace('', 'a' * 9999) | length }}",
    "joined 10^8 times": "{{ (['a' * 999] * 10**8) | join('b') | length }}",
    "JSON nested 10^5 times": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson }}",
    "an endless output": "{% for i in range(99999) %}{% for j in range(99999) %}"
    "{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
    "parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "blocks within blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "filters behind filters": "{{ 'a'" + " | upper" * 20_000 + " }}",
    "a sum of many": "{{ 1" + " + 1" * 50_000 + " }}",
    "one list": "{{ [" + "[1]," * 60_000 + "] }}",
    "loops within loops": "{% for i in range(9) %}" * 15 + "x" + "{% endfor %}" * 15,
    "striptags": "{{ ('<' * 9999999) | striptags | length }}{{ 9 ** 9999999 }}",
    "years": "{{ strftime_now('%Y' * 9999999) | length }}{{ 9 ** 9999999 }}",
}  # fmt: skip
"""Sources that go over a limit."""
