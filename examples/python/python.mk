# python.mk - the Python host: its extension, its tests, and a wheel of it.

# The host is Python alone; its extension, for any CPython from 3.10 on, makes
# calls quicker. PyTorch and transformers are for their tests.
pyinclude    = python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])'
extension   := $(BUILD)/_call.abi3.so
callfiles   := $(wildcard examples/python/dil/_call*.c)
$(extension): $(callfiles) examples/python/dil/_call.h runtime/dilrt.h runtime/dlpack.h
	$(call say,link)$(CC) -std=c11 -O2 $(WARN) -shared -fPIC \
	  -fvisibility=hidden -isystem $$($(pyinclude)) -Iruntime -o $@ $(callfiles)
python: all $(extension)
deps-python:
	@python3 -m pip install -q torch transformers
check-python: python
	@BUILD=$(BUILD) tests/run.sh $(basename $(notdir $(wildcard tests/python/*.sh)))
bench-python: python
	@DIL_LIBRARY=$(BUILD)/libdil.so python3 tests/bench/python_calls.py
	@! nvidia-smi >/dev/null 2>&1 || DIL_LIBRARY=$(BUILD)/libdil.so \
	  sh -c 'python3 tests/bench/python_calls.py cuda && \
	  python3 tests/bench/torch_layers.py'

# A wheel with dil's libraries. LLVM stands in its dil-cpu.so, so that nothing
# but the C library is asked for; WHEEL_LLVM=system leaves it to the machine.
WHEEL_LLVM  ?= carried
llvmparts    = -L$(shell $(LLVM) --libdir) $(shell $(LLVM) --link-static \
               --libs x86 core analysis target) -lz -l:libzstd.so.1
$(BUILD)/wheel/dil-cpu.so: $(cpu) $(BUILD)/compiler/base/arena.o $(rt) $(BUILD)/dil-cpu.so
	@mkdir -p $(@D)
	$(call say,link)$(if $(filter system,$(WHEEL_LLVM)),cp $(BUILD)/dil-cpu.so $@,\
	  c++ -shared -Wl,--no-undefined,--version-script=$(BUILD)/part.map \
	  $(beside) -o $@ $(filter-out $(BUILD)/dil-cpu.so,$^) $(llvmparts) \
	  -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL,--gc-sections \
	  -Wl,--as-needed $(LDLIBS))
wheel: all $(BUILD)/wheel/dil-cpu.so
	@.ci/wheel $(BUILD)

.PHONY: python deps-python check-python bench-python wheel
