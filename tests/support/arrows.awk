# arrows.awk - which folder uses which, for layers.sh. In: sources, which the
# includes are read from, or with -v symbols=1 the lines of `nm -A -g` over the
# objects of BUILD. Out: lines `FOLDER FOLDER`, the second one used by the first.
function room(path) {
  sub("^" build "/", "", path)
  if (path == "compiler/dil.h") return path
  sub(/\/[^\/]*$/, "", path)
  return path == "grammar" ? "compiler/front" : path
}
function note(from, to) {
  if (from != to && !seen[from, to]++) print from, to
}
symbols {
  object = $1
  sub(/:.*/, "", object)
  if ($(NF - 1) == "U" || $(NF - 1) == "w") asked[room(object), $NF] = 1
  else if (!($NF in home)) home[$NF] = room(object)
  next
}
/^ *# *include *"[^"]*\/[^"]*"/ {
  split($0, part, "\"")
  if (part[2] !~ /\.inc$/) note(room(FILENAME), room(part[2]))
}
END {
  for (pair in asked) {
    split(pair, part, SUBSEP)
    if (part[2] in home) note(part[1], home[part[2]])
  }
}
