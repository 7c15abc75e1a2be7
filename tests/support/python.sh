# shellcheck shell=sh
# python.sh - for suites of the Python host; sourced after ok.sh. In: BUILD. Out:
# the library that python3 loads.
DIL_LIBRARY=$BUILD/libdil.so
DIL_MODULE_DIR=$BUILD
# PyTorch's threads must not spin where dil's threads want the cores.
OMP_WAIT_POLICY=passive
export DIL_LIBRARY DIL_MODULE_DIR OMP_WAIT_POLICY

leave_unless_python() { # suite, module...: ends the script where one lacks
  leave_sanitized "$1"
  suite=$1
  shift
  for module; do
    python3 -c "import $module" 2>/dev/null ||
      leave "$suite" "skipped, python3 has no $module"
  done
}
