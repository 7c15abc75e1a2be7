#!/bin/sh
# completion.sh - what `dil completion` prints: each shell takes it without a
# complaint, every option of every verb is in it, and bash completes words as a
# person at a keyboard would see it. In: DIL, TMP. Out: ok / not ok lines.
set -u
cd "$(dirname "$0")/../.." || exit 70
. tests/support/ok.sh

for shell in bash zsh fish; do
  is "completion $shell" sh -c \
    "'$DIL' completion $shell >'$TMP/$shell' && test -s '$TMP/$shell'"
  if command -v $shell >/dev/null; then
    is "$shell takes it" $shell -n "$TMP/$shell"
  else
    echo "skipped: there is no $shell here"
  fi
done

verbs() { "$DIL" help | sed -n '/^verbs:/,/^$/s/^  \([a-z]*\) .*/\1/p'; }
options() { "$DIL" help "$1" | sed -nE 's/^  (-., |    )--([a-z-]+).*/\2/p'; }

has_all() { # shell, how an option is written there
  for verb in $(verbs); do
    [ "$verb" = help ] && continue
    for option in $(options "$verb"); do
      grep -q -e "$2$option\b" "$TMP/$1" ||
        { echo "$verb: $option is missing" && return 1; }
    done
  done
}
is "bash knows every option" has_all bash --
is "zsh knows every option" has_all zsh --
is "fish knows every option" has_all fish '-l '

# The words that bash offers for what was typed, in the order of the alphabet.
offers() {
  bash -c '. "$0"; COMP_WORDS=(dil "$@"); COMP_CWORD=$#; _dil
    printf "%s\n" "${COMPREPLY[@]}" | sort | tr "\n" " "' "$TMP/bash" "$@"
}
is "verbs" test "$(offers ch)" = "check "
is "options of a verb" test "$(offers run --de)" = "--define --device "
is "words of an option" test "$(offers run --device c)" = "cpu cuda "
is "words of a letter's option" test "$(offers bench -j --force ch)" = "chain "
is "words in place of a file" test "$(offers completion f)" = "fish "
touch "$TMP/one.dil" "$TMP/one.txt" "$TMP/one.npy"
is "files" test "$(cd "$TMP" && offers check o)" = "one.dil "
is "arrays" test "$(cd "$TMP" && offers run --q o)" = "one.npy "
is "another shell is refused" sh -c "'$DIL' completion tcsh 2>&1 |
  grep -q 'for bash, zsh or fish'"

# zsh and fish, where they are, on the real thing.
if command -v fish >/dev/null; then
  is "fish offers options" sh -c "fish --no-config -c 'source $TMP/fish
    complete -C \"dil run --dev\"' | grep -q '^--device'"
  is "fish offers words" sh -c "fish --no-config -c 'source $TMP/fish
    complete -C \"dil run --device o\"' | grep -qx 'oracle.*'"
fi
exit $bad
