"""`sglk completion`: shell completion of commands, groups, their options and keys."""

from sglk.commands.flags import common_flags
from sglk.errors import ConfigError, nearest

_HELP = """\
usage: sglk completion bash|zsh|fish

Print a script that completes commands, groups, their options and keys.

examples
  eval "$(sglk completion bash)"                                     in ~/.bashrc
  eval "$(sglk completion zsh)"                                      in ~/.zshrc, after compinit
  sglk completion fish > ~/.config/fish/completions/sglk.fish"""

# bash splits words at `=` and `:`, so the line is split at blanks again and what bash keeps is cut off the answers.
_BASH = r"""
_sglk() {
    local line="${COMP_LINE:0:$COMP_POINT}" current prefix=""
    local -a words
    read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[${#words[@]}-1]}"
    [[ "$current" == *[=:]* ]] && prefix="${current%"${current##*[=:]}"}"
    local IFS=$'\n'
    COMPREPLY=($("${words[0]}" completion --words "${words[@]:1}" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
    return 0
}
complete -o default -F _sglk sglk
"""

_ZSH = r"""
_sglk() {
    local -a found whole open
    found=("${(@f)$(${words[1]} completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    open=(${(M)found:#*[=.]})
    whole=(${found:#*[=.]})
    (( ${#open} )) && compadd -S '' -- $open
    (( ${#whole} )) && compadd -- $whole
    (( ${#open} + ${#whole} )) || _files
}
compdef _sglk sglk
"""

_FISH = r"""
complete -c sglk -a '(sglk completion --words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(arguments: list[str]) -> int:
    """Print the script of one shell, or, for those scripts, the words that can stand next."""
    if arguments[:1] == ["--words"]:
        from sglk.commands.words import candidates

        print("\n".join(candidates(arguments[1:])))
        return 0
    flags = common_flags(arguments)
    if flags.help:
        print(_HELP)
        return 0
    shell = flags.arguments[0] if flags.arguments else ""
    if shell not in SCRIPTS:
        hint = nearest(shell, SCRIPTS) or "; write one of bash, zsh, fish"
        raise ConfigError(f"no completion script for {shell!r}{hint}" if shell else "name a shell: bash, zsh or fish")
    if len(flags.arguments) > 1:
        raise ConfigError(f"`sglk completion` prints one shell's script; leave out {' '.join(flags.arguments[1:])}")
    print(SCRIPTS[shell].strip())
    return 0
