# SPDX-License-Identifier: Apache-2.0
# completion.zsh FOLDER: for each line below prints LINE|EXPECTED|FOUND: what an interactive zsh makes of it at a TAB.
zmodload zsh/zpty || exit 1
folder=$1
zpty shell zsh -f -i
ask() { # ask TEXT: types it; what comes up to the mark is the answer
  zpty -w -n shell "$1"
}
hear() { # hear MARK -> REPLY: what was printed between <MARK and MARK>
  local all= part
  while [[ $all != *"<$1"*"$1>"* ]]; do
    zpty -r shell part || return 1
    all+=$part
  done
  REPLY=${${all##*"<$1"}%%"$1>"*}
}
ask $'stty columns 500; PS1= RPS1= ; fpath=('$folder$' $fpath); autoload -U compinit; compinit -u -D\n'
ask $'zstyle ":completion:*" insert-tab false; setopt no_list_beep no_auto_menu; unsetopt auto_list list_ambiguous\n'
ask $'say() { print -r -- "<""line$BUFFER""line>"; BUFFER=; zle reset-prompt }; zle -N say; bindkey "^X" say; bindkey "^I" complete-word; print "<""set""up" "up""set>"\n'
hear set || exit 1
while IFS='|' read -r line expected; do
  ask "$line"$'\t\x18'
  hear line || exit 1
  print -r -- "$line|$expected|$REPLY"
done <<'LINES'
heddle pub|heddle publish 
heddle publish --activ|heddle publish --activation=
heddle publish --activation=as|heddle publish --activation=as-ready 
heddle status -o j|heddle status -o json 
heddle -o json workers --time|heddle -o json workers --timeout=
heddle-broker --kee|heddle-broker --keep=
heddle worker --export-|heddle worker --export-keep=
heddle-worker --log-level=de|heddle-worker --log-level=debug 
heddle-worker --key=REA|heddle-worker --key=README.md 
heddle publish --data-device=l|heddle publish --data-device=lo 
heddle help ve|heddle help ver
heddle versions pol|heddle versions policy 
heddle versions policy@|heddle versions policy@1 
heddle activate pol|heddle activate policy@
heddle publish --adapter=d|heddle publish --adapter=draft 
heddle workers w|heddle workers w1 
heddle wait --broker tcp://127.0.0.1:1 p|heddle wait --broker tcp://127.0.0.1:1 p
LINES
zpty -d shell
