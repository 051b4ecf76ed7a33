"""aag completion: static scripts, generated from the declared options, so that completing does not start Python."""

import re
import shlex
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from aag.cli import COMMANDS
from aag.cli.parsing import SHORT_NAMES, field_docs, is_positional, parse
from aag.settings import option

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Completion:
    """Print a completion script. For bash: aag completion bash > ~/.local/share/bash-completion/completions/aag

    For zsh, write it to a file _aag in a folder of $fpath; for fish, to ~/.config/fish/completions/aag.fish.
    """

    shell: Shell
    """bash, zsh or fish."""


@dataclass(frozen=True)
class Word:
    """The values that complete an option, or a command's first argument."""

    values: tuple[str, ...] = ()  # names; none: files
    takes_value: bool = True
    about: str = ""


@dataclass(frozen=True)
class Command:
    about: str = ""
    options: dict[str, Word] = field(default_factory=dict)
    argument: Word = Word()


def run(arguments: list[str]) -> int:
    options = parse(Completion, "completion", arguments)
    print(completion_script(options.shell), end="")
    return 0


def completion_script(shell: Shell) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands())


# --- declarations -----------------------------------------------------------------------------------------------------


def commands() -> dict[str, Command]:
    """Return every command, and each second word such as `data fetch`, with its options.

    The class of a command has its name (Evaluate for evaluate); a module's SUBCOMMANDS has those of second words.
    """
    found: dict[str, Command] = {}
    for group in COMMANDS.values():
        for name, about in group.items():
            module = import_module(f"aag.cli.{name}")
            if name == "train":
                found[name] = Command(about, _train_options())
                continue
            second: dict[str, type | None] = getattr(module, "SUBCOMMANDS", {})
            found[name] = _command(getattr(module, name.capitalize()), about, tuple(second))
            if name in ("sweep", "race"):  # they take the options of train, too
                found[name] = replace(found[name], options=_train_options() | found[name].options)
            for word, cls in second.items():
                found[f"{name} {word}"] = _command(cls) if cls else Command()
    return found


def _command(cls: type, about: str = "", second_words: tuple[str, ...] = ()) -> Command:
    types, docs = get_type_hints(cls, include_extras=True), field_docs(cls)
    options: dict[str, Word] = {}
    argument = Word(second_words)
    for each in fields(cls):
        word = Word(
            _choices(types[each.name]), not _is_flag(types[each.name]), _first_sentence(docs.get(each.name, ""))
        )
        if is_positional(each, types[each.name]):
            argument = Word(second_words + word.values)
        else:
            options |= _spellings(each.name, word)
    return Command(about, options, argument)


def _train_options() -> dict[str, Word]:
    """Return the options of `aag train` with any method: those of the others are refused with a clear message."""
    from aag.cli.train import describe_options
    from aag.data.datasets import DATASETS
    from aag.methods import methods
    from aag.nets import NETWORKS
    from aag.training import recipes

    names = {"data": DATASETS, "recipe": ["auto", *recipes()], "method": methods(), "network": NETWORKS}
    options: dict[str, Word] = {}
    for method in methods():
        for name, annotation in describe_options(method).items():
            plain = name.removeprefix("--").replace("-", "_")
            if plain.startswith("no_"):
                continue  # its flag brings both
            known = _choices(annotation) or tuple(names.get(plain, ()))
            options |= _spellings(plain, Word(known, not _is_flag(annotation), _help_text(annotation)))
    return options


def _spellings(name: str, word: Word) -> dict[str, Word]:
    names = [option(name), *(short for short, full in SHORT_NAMES.items() if full == option(name))]
    return dict.fromkeys(names, word) | ({} if word.takes_value else {option(f"no_{name}"): word})


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values of a Literal, also inside Annotated, Optional or tuple."""
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    wrappers = (Annotated, Union, UnionType, tuple)
    return tuple(value for each in inner for value in _choices(each)) if get_origin(annotation) in wrappers else ()


def _is_flag(annotation: Any) -> bool:
    return annotation is bool or (get_origin(annotation) is Annotated and _is_flag(get_args(annotation)[0]))


def _help_text(annotation: Any) -> str:
    return next((_first_sentence(each.help) for each in get_args(annotation)[1:] if getattr(each, "help", None)), "")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.]\.) ", text)[0].rstrip(".")


# --- scripts ----------------------------------------------------------------------------------------------------------


def _names(found: dict[str, Command]) -> list[str]:
    return [name for name in found if " " not in name]


def _second_words(found: dict[str, Command], pattern: str) -> str:
    """Return the cases of a shell that join a command and its second word."""
    return "|".join(pattern.format(name) for name in found if " " in name)


def _bash(found: dict[str, Command]) -> str:
    values, options = [], []
    for name, command in found.items():
        for word, each in command.options.items():
            if each.takes_value:
                values.append(f'        "{name} {word}") words="{" ".join(each.values)}"; value=1;;')
        arguments = " ".join(command.argument.values)
        options.append(f'        "{name}") options="{" ".join(command.options)} --help"; arguments="{arguments}";;')
    return f'''# Completion of aag for bash, made by `aag completion bash`.
_aag() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    local words="" options="" arguments="" value=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(_names(found))} --help --version" -- "$cur"))
        return
    fi
    if [ "$COMP_CWORD" -gt 2 ]; then
        case "$command ${{COMP_WORDS[2]}}" in
        {_second_words(found, '"{}"')}) command="$command ${{COMP_WORDS[2]}}";;
        esac
    fi
    if [ "$cur" = "=" ]; then
        cur=""
    elif [ "$prev" = "=" ]; then
        prev="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "$command $prev" in
{chr(10).join(values)}
    esac
    case "$command" in
{chr(10).join(options)}
    esac
    if [ -z "$value" ]; then
        words="$arguments"
        case "$cur" in -*) words="$options";; esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _aag aag
'''


def _zsh(found: dict[str, Command]) -> str:
    values, options = [], []
    for name, command in found.items():
        for word, each in command.options.items():
            if each.takes_value:
                names = f"compadd -- {' '.join(each.values)}; " if each.values else ""
                values.append(f'    ("{name} {word}") {names}_files; return;;')
        arguments = f"compadd -- {' '.join(command.argument.values)}; " if command.argument.values else ""
        described = " ".join(
            shlex.quote(f"{word}:{each.about}" if each.about else word) for word, each in command.options.items()
        )
        options.append(
            f'    ("{name}") options=({described} --help); [[ $PREFIX == -* ]] || {{ {arguments}_files; }};;'
        )
    names = " ".join(shlex.quote(f"{name}:{found[name].about}") for name in _names(found))
    return f"""#compdef aag
# Completion of aag for zsh, made by `aag completion zsh`.
_aag() {{
  local command="$words[2]" previous="$words[CURRENT-1]"
  local -a options
  if (( CURRENT == 2 )); then
    options=({names})
    _describe command options
    return
  fi
  if (( CURRENT > 3 )); then
    case "$words[2] $words[3]" in
    ({_second_words(found, '"{}"')}) command="$words[2] $words[3]";;
    esac
  fi
  case "$command $previous" in
{chr(10).join(values)}
  esac
  case "$command" in
{chr(10).join(options)}
  esac
  [[ $PREFIX == -* ]] && _describe option options
}}
if [[ "$funcstack[1]" = "_aag" ]]; then
  _aag "$@"
else
  compdef _aag aag
fi
"""


def _fish(found: dict[str, Command]) -> str:
    lines = [
        "# Completion of aag for fish, made by `aag completion fish`.",
        "complete -c aag -n __fish_use_subcommand -f",
    ]
    for name, command in found.items():
        first, _, second = name.partition(" ")
        condition = f"__fish_seen_subcommand_from {first}" + (
            f"; and __fish_seen_subcommand_from {second}" if second else ""
        )
        if not second:
            about = _fish_quote(command.about)
            lines.append(f"complete -c aag -n __fish_use_subcommand -f -a {first} -d {about}")
        if command.argument.values:
            lines.append(f"complete -c aag -n '{condition}' -a '{' '.join(command.argument.values)}'")
        for word, each in command.options.items():
            value = "" if not each.takes_value else f" -r -a '{' '.join(each.values)}'" if each.values else " -r -F"
            about = f" -d {_fish_quote(each.about)}" if each.about else ""
            lines.append(f"complete -c aag -n '{condition}' -l {word.removeprefix('--')}{value}{about}")
    return "\n".join(lines) + "\n"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
