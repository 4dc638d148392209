"""Removes passwords and other secrets from messages, tags and files: passwords of addresses from `register_address_secrets`, in
every form of quoting, and other secrets by regular expressions that run in linear time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

_USERINFO_PATTERN = re.compile(r"(?<=://)(?:[^/\s'\"]*|[^/\s'\":@\[]{0,128}:(?!\d{1,5}[/?#])[^\s'\"]{0,2048})@")
"""User and password of an address. A password may contain a slash or an @, so its length is limited."""
_ASSIGNMENT_PATTERN = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)=(?P<value>'[^'\n]*'|\"[^\"\n]*\"|[^&;\s'\"]+)")
_SECRET_VARIABLE_PATTERN = re.compile(
    r"(?i)(token|password|passwd|passphrase|secret|credentials?|apikey|[a-z0-9]_(pwd|pass|key|pat))$"
)
"""Environment variables with secret values, such as PGPASSWORD, MLFLOW_TRACKING_TOKEN or SSH_KEY."""
_MIN_SECRET_CHARS = 6
"""Minimum number of characters of a secret value to hide; shorter values may be ordinary words."""
_MAX_ERROR_CHARS = 20_000
"""Maximum number of characters of an error to read, because some errors quote large data."""
_MIN_PASSWORD_CHARS = 3
"""Minimum number of characters of a password to hide, if the password comes from an address that the user provided."""
HIDDEN_TEXT = "***"
_DATABASE_DIALECTS = {"postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "cockroachdb", "redshift", "snowflake"}
"""SQLAlchemy dialects whose drivers split passwords from addresses differently than `urllib` does."""

_secret_replacements: dict[str, str] = {}
"""Maps each text to hide, such as a password in any form of quoting, to the text that replaces it."""


def register_address_secrets(address: str) -> str:
    """Return an address without its secrets, which `redact` hides from now on; any other text is returned unchanged. `urllib`
    splits user and password from a web address; in a database address, they end at the last @."""
    scheme, user, host = _split_address(address)
    if scheme is None:
        return address
    password = user.partition(":")[2]
    secrets = [value for name, value in _query_parameters(address) if _is_secret_name(name) and len(value) >= _MIN_SECRET_CHARS]
    _register_secret(password, _MIN_PASSWORD_CHARS)
    for value in secrets:
        _register_secret(value)
    safe_address = f"{scheme}://{HIDDEN_TEXT}@{host}" if user else address
    safe_address = _hide_assigned_values(safe_address)
    if safe_address != address:
        _secret_replacements[address] = safe_address
    return safe_address


def _register_secret(secret: str, shortest: int = _MIN_SECRET_CHARS) -> None:
    _secret_replacements.update({form: HIDDEN_TEXT for form in _forms_of_secret(secret) if len(form) >= shortest})


def redact(text: str) -> str:
    """Return `text` with its secrets hidden: passwords of known addresses, `user:password@` and `password=...`, and the values
    of environment variables whose names denote secrets."""
    return _hide_assigned_values(_hide_known_values_and_userinfo(text))


def redact_value(value: str) -> str:
    """Redact a whole value, such as the value of a parameter. If the value is an address, register its secrets first."""
    return redact(register_address_secrets(value))


def _hide_assigned_values(text: str) -> str:
    def hide(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{name}={HIDDEN_TEXT}" if _is_secret_name(name.lstrip("0123456789_.-")) else match.group()

    return _ASSIGNMENT_PATTERN.sub(hide, text)


def _hide_known_values_and_userinfo(text: str) -> str:
    if _secret_replacements:
        text = _alternatives_pattern(tuple(_secret_replacements)).sub(lambda found: _secret_replacements[found.group()], text)
    values = _environment_secrets_pattern(tuple(os.environ.items()))
    text = values.sub(HIDDEN_TEXT, text) if values is not None else text
    return _USERINFO_PATTERN.sub(f"{HIDDEN_TEXT}@", text) if "@" in text else text


@lru_cache(maxsize=1)
def _alternatives_pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text)))))


@lru_cache(maxsize=2)
def _environment_secrets_pattern(environment: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    secrets = (v.strip() if _SECRET_VARIABLE_PATTERN.search(name) else _password_in(v) for name, v in environment)
    forms = {form for secret in secrets for form in _forms_of_secret(secret)}
    ordered = sorted((value for value in forms if len(value) >= _MIN_SECRET_CHARS), key=lambda value: (-len(value), value))
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, ordered))})(?!\w)") if ordered else None


def _password_in(address: str) -> str:
    return _split_address(address)[1].partition(":")[2]


def _forms_of_secret(secret: str) -> set[str]:
    """Return the forms of a secret in a text: raw, URL-quoted, URL-unquoted, escaped, on one line, or line by line."""
    forms = {secret, unquote(secret)}
    lines = {line.strip() for form in forms for line in form.splitlines()} if "\n" in secret else set()
    forms |= {" ".join(form.split()) for form in forms} | lines
    escapes = {escape(form)[1:-1] for form in forms for escape in (repr, json.dumps, partial(json.dumps, ensure_ascii=False))}
    # `quote` refuses surrogates by default, and the bytes of a variable that are not UTF-8 are surrogates.
    quoted_forms = {form(text, errors="surrogatepass") for text in forms for form in (quote, quote_plus)}
    return quoted_forms | {quote(text, safe="", errors="surrogatepass") for text in forms} | forms | escapes


def _split_address(address: str) -> tuple[str | None, str, str]:
    """Return (scheme, user and password, rest) of an address; the scheme is None if the text is no address."""
    scheme, found, rest = address.partition("://")
    if not found or not re.fullmatch(r"\s*[\w.+-]+", scheme):
        return None, "", address
    dialect = scheme.strip().lower().partition("+")[0]
    if dialect in ("sqlite", "file"):
        return scheme, "", rest
    authority = rest if dialect in _DATABASE_DIALECTS else re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, _, host = authority.rpartition("@")
    return scheme, user, host + rest[len(authority) :]


def _query_parameters(address: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(urlsplit(address).query)
    except ValueError:  # the address contains an invalid bracket or port
        return []


def one_line_error(error: BaseException | str, limit: int = 300) -> str:
    """Return an error as one line of at most `limit` characters, with its class first and without secrets."""
    return redact(" ".join(redact(_error_text(error)).split()))[:limit]


def _error_text(error: BaseException | str) -> str:
    try:
        return (error if isinstance(error, str) else f"{type(error).__name__}: {error}")[:_MAX_ERROR_CHARS]
    except Exception:  # the `__str__` method of the user's exception class may fail
        return type(error).__name__


def error_reason(error: BaseException) -> str:
    """Return the operating system's reason for a network error; for any other error, the same as `one_line_error`."""
    innermost_error = error
    while (deeper := innermost_error.__cause__ or innermost_error.__context__) is not None:
        innermost_error = deeper
    if str(error).startswith("API request to ") and isinstance(innermost_error, OSError):
        return one_line_error(innermost_error.strerror or str(innermost_error) or type(innermost_error).__name__).lower()
    return one_line_error(error)


_SECRET_NAME_PATTERN = re.compile(
    r"(?i)(^|[-_.\s])((?:ssl)?passwords?|passwd|passphrase|pwd|secrets?|credentials?|apikey"
    r"|(api|access|private|secret|account|auth|ssh|storage|wandb|azure|encryption|signing|client|master)[-_]?keys?"
    r"|(api|access|auth|bearer|hf|hub|wandb|github|session|refresh|id)[-_]?token"
    r"|(db|database|user|root|admin|mysql|postgres|redis|smtp|ftp|ssh|login|proxy|auth)[-_]?pass)$|(^|\.)token$"
)


def _is_secret_name(name: str) -> bool:
    is_secret_variable = name.isupper() and _SECRET_VARIABLE_PATTERN.search(name) is not None
    return is_secret_variable or denotes_secret(name) or name in ("token", "sig", "pass")


def denotes_secret(name: str) -> bool:
    return _SECRET_NAME_PATTERN.search(name) is not None


_QUOTED_ASSIGNMENT_PATTERN = re.compile(
    r"""(?<![\w.-])([\w.-]++)(["']?\]?\s*+(?::\s{0,20}[\w.\[\]| ]{1,80}?\s{0,20})?[:=]\s*+[rbfuRBFU]{0,2})"""
    r"""(\"{3}|'{3}|["'])(.+?)\3""",
    re.DOTALL,
)
"""Quoted text that code or configuration assigns to a name, a subscript or a key."""
_UNQUOTED_ASSIGNMENT_PATTERN = re.compile(
    r"(?m)^([+ -]?[ \t]*+(?:export[ \t]++)?)([\w.-]++)([ \t]*+[:=]\s{0,100}+)([^\s#'\"(){}\[\],]++)[ \t]*+$"
)
"""Unquoted text that a line of configuration assigns to a name."""
_HARMLESS_VALUES = {"None", "True", "False", "null", "true", "false", "str", "bytes", "int", "float", "bool", HIDDEN_TEXT}


def redact_code(text: str) -> str:
    """Return code or configuration without the values assigned to passwords, keys and tokens. Code without a secret stays, as
    in `def f(token=None)`, `password: str` or `key = args.key`."""

    def hide_quoted_secret(match: re.Match[str]) -> str:
        name, between, mark, _ = match.groups()
        return f"{name}{between}{mark}{HIDDEN_TEXT}{mark}" if _is_secret_name(name) else match.group()

    def hide_unquoted_secret(match: re.Match[str]) -> str:
        start, name, between, value = match.groups()
        is_harmless = value in _HARMLESS_VALUES or re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value)
        return f"{start}{name}{between}{HIDDEN_TEXT}" if _is_secret_name(name) and not is_harmless else match.group()

    return _UNQUOTED_ASSIGNMENT_PATTERN.sub(
        hide_unquoted_secret, _QUOTED_ASSIGNMENT_PATTERN.sub(hide_quoted_secret, _hide_known_values_and_userinfo(text))
    )


def register_argument_secrets(arguments: Iterable[str]) -> None:
    """Hide the secrets of all addresses in a command line from now on, in every text."""
    for argument in arguments:
        register_address_secrets(argument)
        register_address_secrets(argument.partition("=")[2])


_CREDENTIAL_HEADER_PATTERN = re.compile(
    r"(?i)\b(authorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:[a-z]{1,20}\s{1,9})?|bearer\s{1,9})[^\s'\"]++"
)
"""HTTP header with a credential, or its scheme and credential alone."""
_KEY_ARGUMENT_PATTERN = re.compile(r"\b(key\s{0,9}=\s{0,9})('[^'\n]*+'|\"[^\"\n]*+\")")
"""Quoted argument `key` of a call, as in `wandb.login(key="...")`."""
_UNQUOTED_ENTRY_PATTERN = re.compile(r"(?<![\w.-])([\w.-]++)([\"']?\s{0,9}+:\s{0,9}+)([^\s'\"(){}\[\],]++)")
"""Unquoted value in JSON or YAML within one line."""


def _redact_argument(argument: str) -> str:
    """Return an argument, possibly with code, configuration or an HTTP header, with its secrets hidden."""

    def hide(match: re.Match[str]) -> str:
        name, between, value = match.groups()
        return f"{name}{between}{HIDDEN_TEXT}" if _is_secret_name(name) and value not in _HARMLESS_VALUES else match.group()

    text = _UNQUOTED_ENTRY_PATTERN.sub(hide, redact(redact_code(argument)))
    return _CREDENTIAL_HEADER_PATTERN.sub(rf"\1{HIDDEN_TEXT}", _KEY_ARGUMENT_PATTERN.sub(rf"\1'{HIDDEN_TEXT}'", text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the values of options, variables, keywords and headers that denote secrets."""
    register_argument_secrets(arguments)
    redacted_arguments: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            _register_secret(argument)
            redacted_arguments.append(HIDDEN_TEXT)
        elif equals and value and _is_secret_name(name.lstrip("-")):
            _register_secret(value)
            redacted_arguments.append(f"{name}={HIDDEN_TEXT}")
        else:
            redacted_arguments.append(_redact_argument(argument))
        option = argument.lstrip("-")
        hide_next = option != argument and not equals and (_is_secret_name(option) or option == "authorization")
    return redacted_arguments
