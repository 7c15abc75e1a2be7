# dil: see README.md. `make demo` and `make check` set a fresh machine up.
# BUILD names the build folder, so that variants live side by side.

BUILD    ?= build
CC       ?= cc
LLVM     ?= llvm-config-19
PREFIX   ?= /usr/local
OBJCOPY  ?= objcopy
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
            -Wstrict-prototypes -Wmissing-prototypes \
            -Werror=implicit-function-declaration $(if $(CI),-Werror)
OPT      ?= -O2 -g
FLAGS     = -std=gnu11 -fPIC -fvisibility=hidden $(OPT) $(WARN) -MMD -MP -D_GNU_SOURCE \
            -I. -I$(BUILD) -I$(BUILD)/include/dil $(CFLAGS)
LDLIBS    = $(CRYPTO) -lm -lpthread -ldl
CORELIBS := -ljansson -lpng -lxxhash
# SHA-256 of libcrypto, from its archive: as a shared library it would take a
# millisecond of every start. CRYPTO=-lcrypto where there is no archive.
CRYPTO   ?= -Wl,-Bstatic -lcrypto -Wl,-Bdynamic -Wl,--exclude-libs,libcrypto.a
CLILIBS  := $(CORELIBS) -lffi
LINK      = $(CC) $(OPT) $(LDFLAGS)
# One short line a step; V=1 shows the commands.
say       = $(if $(V),,@printf '%-5s %s\n' $(1) $@;)

# An architecture has one folder in the run time, one in the code generator.
machine  := $(shell uname -m)
arch     := $(if $(filter x86_64,$(machine)),x86,$(machine))
objects   = $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(1)))
# A folder is a part of dil: see compiler/HACKING.md. `folder` gives the objects
# of folders; those of the loadable modules stand in folders of their own.
folder    = $(call objects,$(patsubst %,%/*.c,$(1)))
# Calls by libffi are the program's alone.
caller   := $(BUILD)/runtime/api/ffi_call.o
runtime  := $(filter-out $(caller),$(call folder,$(addprefix runtime/,api base \
            observe pool rowset cpu cpu/$(arch) cache npy rank ring link link/socket \
            stream)))
grammar  := $(addprefix $(BUILD)/grammar/,parser.o scanner.o tokens.o)
# Tables of the fast kernels on a GPU: planning, the GPU's code generator and
# its run time each link them.
tables   := $(call folder,runtime/tables)
patches  := $(call objects,runtime/rowset/patch.c)
core     := $(call folder,compiler $(addprefix compiler/,base front pattern \
            analysis plan schedule codegen oracle api)) $(grammar)
# What the command line has besides the core.
cli      := $(filter-out %/main.o,$(call folder,$(addprefix compiler/,cli \
            library exchange))) \
            $(caller)
cpu      := $(call folder,compiler/codegen/cpu $(addprefix \
            compiler/codegen/cpu/,emit $(arch)))
gpu      := $(call folder,compiler/codegen/gpu $(addprefix \
            compiler/codegen/gpu/,emit hopper))
cuda     := $(call folder,runtime/cuda $(addprefix runtime/cuda/,launch hopper \
            ring module))
units    := $(call folder,tests/unit/*)
unit      = $(filter %/$(1).o,$(units))
suites   := $(addprefix $(BUILD)/tests/,$(basename $(notdir $(units))))
cpusuite := $(filter $(BUILD)/tests/test_cpu%,$(suites))
allocs   := $(BUILD)/tests/support/alloc_faults.o
harness  := $(filter-out $(allocs),$(call folder,tests/support)) \
            $(addprefix $(BUILD)/tests/fuzz/,spec.o spec_simplify.o)
fuzzer   := $(BUILD)/tests/fuzz/fuzz_pattern
turns    := $(BUILD)/tests/bench/turns
gpuhost  := $(BUILD)/tests/library/gpu_host
mpihost  := $(BUILD)/tests/mpi/link_host
keyspans := $(call objects,compiler/pattern/key_span.c compiler/pattern/expr.c \
            compiler/base/arena.c)
hopper   := $(BUILD)/tests/gpu/hopper_bench
# An example that trains, with its attention made ahead of time.
train    := $(BUILD)/examples/host/train
trainmpi  = $(if $(MPICC),$(BUILD)/examples/host/train_ranks)
hoppers  := $(call objects,tests/gpu/*.c)
headers  := compiler/dil.h runtime/dilrt.h runtime/dlpack.h runtime/status.def
pools    := $(BUILD)/tests/bench/pool $(BUILD)/tests/bench/pool_cuda
# A driver and an NVRTC that run kernels on the processor.
emulator := $(addprefix $(BUILD)/emulator/,libcuda.so.1 libnvrtc.so.13 \
            libnccl.so.2 chip.h chip_calls.h chip_hopper.h)
emulated := $(call objects,tests/emulator/*.c)
compiler := $(BUILD)/tests/emulator/nvrtc.o $(BUILD)/tests/emulator/translate.o
talker   := $(BUILD)/tests/emulator/nccl.o
# An older chip on a newer one.
older    := $(addprefix $(BUILD)/older/,libcuda.so.1 libnvrtc.so.13)
# An NVRTC that only counts.
counting := $(BUILD)/counting/libnvrtc.so.13
# A library by its own name, and the name that hosts are linked to.
abi      := 2
rt       := $(BUILD)/libdilrt.so.$(abi)
# Ranks as processes, where MPI is installed.
MPICC    ?= $(shell command -v mpicc)
parts    := dil-cpu.so dil-gpu.so dilrt-cuda.so dilrt-nccl.so \
            $(if $(MPICC),dilrt-mpi.so)
library  := $(BUILD)/libdil.so $(BUILD)/libdilrt.so $(BUILD)/dilrt.o \
            $(BUILD)/libdilrt.a \
            $(addprefix $(BUILD)/,$(parts))
# A program that holds a copy of the run time shows all that the shared one
# does: loadable parts, which are linked to that one, find the copy instead.
hosted   := -Wl,--export-dynamic-symbol='dil_*'
shared    = $(LINK) -shared -Wl,-soname,$(@F) -Wl,--no-undefined
beside   := -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..'
part      = $(shared) -Wl,--version-script=$(BUILD)/part.map $(beside)
san      := -O1 -g -fno-omit-frame-pointer

# The program of the plain build stands at the top as ./dil.
all: $(if $(filter build,$(BUILD)),dil) $(BUILD)/dil $(library)

dil: $(BUILD)/dil
	$(call say,copy)cp $< $@
$(BUILD)/dil: $(BUILD)/compiler/cli/main.o $(core) $(tables) $(cli) $(runtime)
	$(call say,link)$(LINK) $(hosted) -o $@ $^ $(CLILIBS) $(LDLIBS)
# Names that a public header declares, and for libdilrt those that the parts of
# dil share; all others stay inside.
$(BUILD)/libdilrt.map: runtime/dilrt.h runtime/api/library.h
	@mkdir -p $(@D)
	$(call say,map)(echo 'DIL_$(abi) { global:'; $(names) $^; echo '};'; \
	  echo 'DIL_PRIVATE { global: dil_*; local: *; };') > $@
$(BUILD)/libdil.map: compiler/dil.h
	@mkdir -p $(@D)
	$(call say,map)(echo 'DIL_$(abi) { global:'; $(names) $<; \
	  echo 'local: *; };') > $@
$(BUILD)/part.map: | $(BUILD)/flags
	@echo '{ global: dil_*; local: *; };' > $@
names := sed -n 's/^DIL_API [^(]*[ *]\(dil_[a-z_0-9]*\)(.*/  \1;/p'
$(rt): $(runtime) $(BUILD)/libdilrt.map
	$(call say,link)$(shared) -Wl,--version-script=$(BUILD)/libdilrt.map \
	  -o $@ $(runtime) $(LDLIBS)
	@echo $(runtime) > $(BUILD)/libdilrt.objects
# Arithmetic on a plan's rows is all that both hold.
$(BUILD)/libdil.so.$(abi): $(core) $(tables) \
                           $(call folder,runtime/rowset) $(rt) \
                           $(BUILD)/libdil.map
	$(call say,link)$(shared) -Wl,--version-script=$(BUILD)/libdil.map $(beside) \
	  -o $@ $(filter %.o,$^) $(rt) $(CORELIBS) $(LDLIBS)
$(BUILD)/%.so: $(BUILD)/%.so.$(abi)
	@ln -sf $(<F) $@
# The back end brings its own copy of the arena.
$(BUILD)/dil-cpu.so: $(cpu) $(BUILD)/compiler/base/arena.o $(rt) | $(BUILD)/part.map
	$(call say,link)$(part) -o $@ $^ $(shell $(LLVM) --libs) \
	  -L$(shell $(LLVM) --libdir) $(LDLIBS)
# NVRTC and the CUDA driver are opened at run time: neither is needed here. The
# back end brings its own copy of what reads expressions.
$(BUILD)/dil-gpu.so: $(gpu) $(keyspans) $(tables) $(patches) $(rt) | $(BUILD)/part.map
	$(call say,link)$(part) -o $@ $^ $(LDLIBS)
$(BUILD)/dilrt-cuda.so: $(cuda) $(tables) $(patches) $(rt) | $(BUILD)/part.map
	$(call say,link)$(part) -o $@ $^ $(LDLIBS)
$(BUILD)/dilrt-nccl.so: $(call folder,runtime/link/nccl) $(rt) \
                        | $(BUILD)/part.map
	$(call say,link)$(part) -o $@ $^ $(LDLIBS)
$(BUILD)/dilrt-mpi.so: $(call folder,runtime/link/mpi) $(rt) | $(BUILD)/part.map
	$(call say,link)$(part) -o $@ $^ $(shell $(MPICC) --showme:link) $(LDLIBS)
$(BUILD)/runtime/link/mpi/%.o: EXTRA = $(patsubst -I%,-isystem %,$(shell \
                                   $(MPICC) --showme:compile))
# The run time as one object, the GPU's part included, for libraries that carry
# it: `dil build --standalone`. What calls of ready kernels need, and no more.
carried := $(filter-out $(call folder,$(addprefix runtime/,cache npy rank ring link \
           link/socket stream)),$(runtime)) $(cuda) $(tables)
$(BUILD)/dilrt.o: $(carried)
	$(call say,link)$(CC) -r -nostdlib -Wl,--strip-debug -o $@ $^
# The same for hosts without shared libraries: one object, so that names which
# are no host's business can be its own.
$(BUILD)/libdilrt.a: $(BUILD)/dilrt.o
	$(call say,ar)$(OBJCOPY) -w --keep-global-symbol='dil_*' $< $(BUILD)/rt.o \
	  && rm -f $@ && $(AR) rcs $@ $(BUILD)/rt.o
# The templates as bytes of the module, so that nothing is looked up.
templates := $(sort $(wildcard $(foreach d,templates templates/*,$(addprefix \
             $(d)/*.,cu cuh h))))
# A row a file: its name by a sed expression, its text.
embed = for f in $^; do echo "{\"$$(echo $$f | sed '$(1)')\","; sed \
  's/\\/\\\\/g; s/"/\\"/g; s/^/"/; s/$$/\\n"/' $$f; echo "},"; done > $@
$(BUILD)/compiler/codegen/gpu/emit/templates.inc: $(templates)
	@mkdir -p $(@D)
	$(call say,embed)$(call embed,)
presets := $(sort $(wildcard examples/presets/*.dil))
$(BUILD)/compiler/front/presets.inc: $(presets)
	@mkdir -p $(@D)
	$(call say,embed)$(call embed,s|.*/\(.*\)\.dil|\1|)
$(BUILD)/compiler/front/preset.o: $(BUILD)/compiler/front/presets.inc
$(BUILD)/compiler/codegen/gpu/emit/emit.o: $(BUILD)/compiler/codegen/gpu/emit/templates.inc

# The header's template and DLPack's header, as bytes of the program.
quoted = { echo "static const char $(1)[] ="; \
  sed 's/\\/\\\\/g; s/"/\\"/g; s/^/"/; s/$$/\\n"/' $(2); echo ";"; }
$(BUILD)/compiler/library/library_texts.inc: templates/kernel.h.in runtime/dlpack.h
	@mkdir -p $(@D)
	$(call say,embed)($(call quoted,kernel_template,$<); \
	  $(call quoted,dlpack_header,$(word 2,$^))) > $@
$(BUILD)/compiler/library/library_header.o: $(BUILD)/compiler/library/library_texts.inc

# What the parts of dil must agree on: a number of all headers that they share,
# in place of one that somebody has to raise.
agreed := $(sort $(wildcard $(foreach d,compiler runtime,$(foreach e,h def,$(d)/*.$(e) \
          $(d)/*/*.$(e))) runtime/link/*/*.h runtime/cpu/*/*.h \
          runtime/cpu/*/*.def $(addprefix templates/,shared/launch.h \
          shared/splits.h decode/decode_launch.h hopper/hopper_launch.h rows.h)))
$(BUILD)/interface.h: $(agreed)
	@mkdir -p $(@D)
	$(call say,hash)sum=$$(cat $^ | sha256sum | cut -c 1-7) && \
	  printf 'enum { DIL_INTERFACE = 0x%s };\n' $$sum > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# The public headers, in one folder as they are installed.
$(BUILD)/include/dil:
	@mkdir -p $@ && ln -sf $(addprefix $(CURDIR)/,$(headers)) $@

$(BUILD)/%.o: %.c | $(BUILD)/interface.h $(BUILD)/include/dil
	@mkdir -p $(@D)
	$(call say,cc)$(CC) $(FLAGS) $(EXTRA) -c -o $@ $<
# Rows of the definition are read by loops that this level vectorises.
$(BUILD)/compiler/oracle/%.o: EXTRA = -O3
$(BUILD)/compiler/codegen/cpu/%.o: EXTRA = -isystem $(shell $(LLVM) --includedir)

$(BUILD)/grammar/parser.c $(BUILD)/grammar/parser.h &: grammar/dil.y \
                                                       grammar/keywords.def
	@mkdir -p $(@D)
	$(call say,bison)bison -Werror --defines=$(BUILD)/grammar/parser.h \
	  -o $(BUILD)/grammar/parser.c $<
$(BUILD)/grammar/scanner.c $(BUILD)/grammar/scanner.h &: grammar/dil.l
	@mkdir -p $(@D)
	$(call say,flex)flex --header-file=$(BUILD)/grammar/scanner.h \
	  -o $(BUILD)/grammar/scanner.c $<
$(BUILD)/grammar/%.o: $(BUILD)/grammar/%.c $(BUILD)/grammar/parser.h \
                      $(BUILD)/grammar/scanner.h
	$(call say,cc)$(CC) $(FLAGS) -Wno-conversion -Wno-unused-function -c -o $@ $<
$(core) $(cli): | $(BUILD)/grammar/parser.h $(BUILD)/grammar/scanner.h

# ---- tests ----------------------------------------------------------------

tests: all $(gpuhost) $(mpihost) $(hopper) $(train) $(trainmpi) $(suites) $(fuzzer) \
       $(BUILD)/tests/fuzz/fuzz_front.o $(emulator) $(older) $(counting)
$(BUILD)/tests/harness.a: $(harness)
	$(call say,ar)rm -f $@; $(AR) rcs $@ $^
.SECONDEXPANSION:
$(suites): $(BUILD)/tests/%: $$(call unit,$$*)
$(fuzzer): %: %.o
$(suites) $(fuzzer): $(core) $(tables) $(cli) $(runtime) $(BUILD)/tests/harness.a
	$(call say,link)$(LINK) $(hosted) -o $@ $(filter %.o,$^) \
	  $(filter %.a,$^) -lcheck -lsubunit -lrt $(CLILIBS) $(MORELIBS) $(LDLIBS)
$(BUILD)/tests/bench/pool_cuda: $(cuda)
$(hopper): $(hoppers) $(cuda) $(gpu)
$(turns) $(pools) $(gpuhost) $(mpihost) $(hopper): %: %.o $(core) $(tables) $(cli) $(runtime)
	$(call say,link)$(LINK) $(hosted) -o $@ $^ $(CLILIBS) $(LDLIBS)
# Kernels switch stacks, which no sanitizer follows, whatever OPT says.
$(emulated): override OPT = -O2 -g
$(BUILD)/tests/emulator/absent.o: EXTRA += -Wno-unused-parameter
$(BUILD)/tests/emulator/group.o: EXTRA += $(if $(filter x86_64,$(machine)), \
                                          -O3 -mavx2 -mfma)
$(BUILD)/emulator/libcuda.so.1: $(filter-out $(compiler) $(talker),$(emulated))
	@mkdir -p $(@D)
	$(call say,link)$(CC) -shared -Wl,-soname,$(@F) -o $@ $^ -lpthread -ldl
$(BUILD)/emulator/libnvrtc.so.13: $(compiler)
	@mkdir -p $(@D)
	$(call say,link)$(CC) -shared -Wl,-soname,$(@F) -o $@ $^ -ldl
$(BUILD)/emulator/libnccl.so.2: $(talker) $(BUILD)/emulator/libcuda.so.1
	$(call say,link)$(CC) -shared -Wl,-soname,$(@F) -Wl,--no-undefined \
	  -Wl,-rpath,'$$ORIGIN' -o $@ $^ -lpthread -lrt
$(BUILD)/older/libcuda.so.1: $(BUILD)/tests/older/cuda.o
$(BUILD)/older/libnvrtc.so.13: $(BUILD)/tests/older/nvrtc.o
$(older):
	@mkdir -p $(@D)
	$(call say,link)$(CC) -shared -o $@ $^ -ldl
$(counting): $(BUILD)/tests/counting/nvrtc.o
	@mkdir -p $(@D)
	$(call say,link)$(CC) -shared -Wl,-soname,$(@F) -o $@ $^
$(BUILD)/emulator/%.h: tests/emulator/%.h
	@mkdir -p $(@D)
	$(call say,copy)cp $< $@
# What tests/support/fault.c makes fail goes through it.
faults   := malloc calloc realloc open openat read write fsync renameat
$(BUILD)/tests/test_cache_faults $(BUILD)/tests/test_library: \
  MORELIBS = $(faults:%=-Wl,--wrap=%)
# One suite has our own allocations fail.
faulty := malloc calloc realloc aligned_alloc posix_memalign strdup free mmap \
          munmap mprotect pthread_create open_memstream arena_take
$(BUILD)/tests/test_faults: $(allocs)
$(BUILD)/tests/test_faults: MORELIBS = $(addprefix -Wl$(,)--wrap=,$(faulty))
, := ,
$(BUILD)/examples/host/libattend.a: examples/host/train.dil $(BUILD)/dil $(library)
	@mkdir -p $(@D)
	$(call say,dil)$(BUILD)/dil build $< --backward --standalone --emit=a,h \
	  -o $(@:.a=)
$(train): $(addprefix examples/host/train,.c _one.c .h) \
          $(BUILD)/examples/host/libattend.a
	$(call say,link)$(LINK) -std=c99 $(WARN) -I$(@D) -o $@ \
	  $(filter-out %.h,$^) -lm -lpthread
$(BUILD)/examples/host/train_ranks: $(BUILD)/libdil.so $(BUILD)/libdilrt.so \
                        $(BUILD)/include/dil \
                        $(addprefix examples/host/train,.c _ranks.c .h)
	@mkdir -p $(@D)
	$(call say,link)$(LINK) -std=c99 $(WARN) -DTRAIN_RANKS -I$(BUILD)/include \
	  $(patsubst -I%,-isystem %,$(shell $(MPICC) --showme:compile)) -o $@ \
	  $(filter %.c,$^) $(filter %.so,$^) -Wl,-rpath,'$$ORIGIN/../..' -lm \
	  $(shell $(MPICC) --showme:link)
# A host sees the headers as they are installed.
$(gpuhost).o: EXTRA = -I$(BUILD)/include
# Suites of the back end's insides are linked with it.
$(cpusuite): $(cpu)
$(BUILD)/tests/test_cpu_bounds: $(BUILD)/compiler/codegen/gpu/emit/cover.o
$(BUILD)/tests/test_hopper_tables $(BUILD)/tests/test_hopper_states \
$(BUILD)/tests/test_hopper_sections $(BUILD)/tests/test_hopper_count \
$(BUILD)/tests/test_cuda: $(cuda)
$(cpusuite): MORELIBS = $(shell $(LLVM) --libs) -L$(shell $(LLVM) --libdir)
.SECONDARY: $(units) $(fuzzer).o $(turns).o $(pools:=.o) $(gpuhost).o \
            $(mpihost).o $(hoppers)

# What the machine lacks comes first; only then is anything built.
check demo:
	@.ci/deps
	@$(MAKE) --no-print-directory $@-here
deps:
	@.ci/deps
check-here: tests
	@BUILD=$(BUILD) tests/run.sh
demo-here: all
	@examples/demo.sh
# Rings alone: what travels, parts of a sequence, threads, processes.
check-ring: tests
	@BUILD=$(BUILD) tests/run.sh partition shards ring ring_backward ring_bytes ring_handshake \
	  checkpoint linked_ranks link rendezvous ranks processes process_faults mpi \
	  mpi_faults mpi_train ring_examples gpu-ring
bench: all
	@BUILD=$(BUILD) tests/bench/bench.sh

# The whole of it under the sanitizers, generated code excepted.
asan:
	@$(MAKE) --no-print-directory BUILD=build/asan check-here \
	  OPT='$(san) -fsanitize=address,undefined -fno-sanitize-recover=all'
# Threads: the pool's suite, and kernels that run on it.
tsan:
	@$(MAKE) --no-print-directory BUILD=build/tsan tsan-here \
	  OPT='$(san) -fsanitize=thread'
tsan-here: tests
	@BUILD=$(BUILD) tests/tsan.sh

# What `tests/run.sh gpu` and `bench-gpu` need on a machine with a GPU and
# without compilers: programs, loadable parts, libraries that they ask for.
bundled := $(BUILD)/tests/test_edges $(BUILD)/tests/test_numeric \
           $(BUILD)/tests/test_laws $(BUILD)/tests/test_rerun \
           $(BUILD)/tests/test_hopper $(BUILD)/tests/test_decode \
           $(BUILD)/tests/test_launch $(BUILD)/tests/test_choice \
           $(BUILD)/tests/test_pages $(BUILD)/tests/test_packed \
           $(BUILD)/tests/test_shards $(BUILD)/tests/test_linked_ranks \
           $(BUILD)/tests/test_gradients_cuda \
           $(fuzzer) $(turns) $(gpuhost) $(hopper) $(pools)
gpuparts := $(addprefix $(BUILD)/,dil $(filter-out dil-cpu.so,$(parts)) \
              libdil.so.$(abi)) $(rt)
gpu-bundle: $(bundled) $(gpuparts) $(older)
	@rm -rf $(BUILD)/gpu && mkdir -p $(BUILD)/gpu/lib $(BUILD)/gpu/older \
	  $(BUILD)/gpu/tests/fuzz $(BUILD)/gpu/tests/bench
	$(call say,copy)cp $(filter $(suites),$(bundled)) $(BUILD)/gpu/tests
	@cp $(fuzzer) $(BUILD)/gpu/tests/fuzz
	@cp $(turns) $(pools) $(hopper) $(BUILD)/gpu/tests/bench
	@cp $(gpuhost) $(BUILD)/gpu/tests
	@cp $(older) $(BUILD)/gpu/older
	@$(MAKE) --no-print-directory $(extension) && cp $(extension) $(BUILD)/gpu || \
	  echo "      without the extension of the Python host"
	@cp $(gpuparts) $(BUILD)/gpu
	@find $(BUILD)/gpu -type f -exec strip --strip-debug {} +
	@ldd $(bundled) | awk '/=> .*(check|subunit|jansson|png|xxhash|ffi|crypto|libz)/ \
	  { print $$3 }' | sort -u | xargs -I{} cp -L {} $(BUILD)/gpu/lib
# Both steps, where one machine has all.
check-gpu: gpu-bundle
	@BUILD=$(BUILD) tests/run.sh gpu gpu_api schedule sanitizers torch_cuda
bench-gpu: gpu-bundle
	@BUILD=$(BUILD) tests/run.sh bench-gpu

# Random patterns against the oracle, then the front end on random bytes.
FUZZ_COUNT   ?= 3000
FUZZ_SEED    ?= 1
FUZZ_SECONDS ?= 60
fuzz: all $(fuzzer)
	$(fuzzer) --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)
	@BUILD=build/fuzz SECONDS_EACH=$(FUZZ_SECONDS) tests/fuzz/front.sh
# 5000 patterns, forward and backward, and 3000 backward on ranks; 200 ranks that
# are struck forward, and 200 backward.
fuzz-long: all $(fuzzer)
	$(fuzzer) --count 5000 --seed $(FUZZ_SEED)
	$(fuzzer) --count 5000 --seed $(FUZZ_SEED) --backward
	$(fuzzer) --count 3000 --seed $(FUZZ_SEED) --ring
	$(fuzzer) --count 2000 --seed $(FUZZ_SEED) --choices
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --grids
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --grids --backward
	FORMS_ROUNDS=1000000 $(BUILD)/tests/test_forms
	@STRIKES=50 TEST_LIMIT=7200 BUILD=$(BUILD) tests/run.sh process_faults mpi_faults
# libFuzzer needs clang; called by tests/fuzz/front.sh where it is installed.
$(BUILD)/tests/fuzz/fuzz_front: $(BUILD)/tests/fuzz/fuzz_front.o $(core) \
                                $(tables) $(cli) $(runtime)
	$(call say,link)$(LINK) -fsanitize=fuzzer -o $@ $^ $(CLILIBS) $(LDLIBS)

# ---- the house --------------------------------------------------------------

# Prints the floors of the house, then proves them.
layers: all
	@cat tests/layers.txt
	@BUILD=$(BUILD) tests/layers.sh
# Records what the libraries promise; `check` compares with it.
abi: all
	@TMP=$$(mktemp -d) && BUILD=$(abspath $(BUILD)) TMP=$$TMP tests/abi.sh \
	  record; status=$$?; rm -rf $$TMP; exit $$status
wc:
	@tests/wc.sh
# ---- Python -----------------------------------------------------------------
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

# Writes the gallery of examples/README.md; `check` compares with it.
gallery: all
	@DIL=$(abspath $(BUILD)/dil) examples/gallery.sh examples
# Writes the table of tests/README.md; `check` compares with it.
tests-table: tests
	@BUILD=$(BUILD) tests/coverage.sh write

# Where things go; DESTDIR stands before all of it while it is being packed.
# Loadable parts are looked for in lib/dil beside the program's bin, and beside
# the libraries: nothing built knows its prefix.
bindir     ?= $(PREFIX)/bin
libdir     ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
datadir    ?= $(PREFIX)/share
partdir    := $(PREFIX)/lib/dil
made       := $(BUILD)/install
version    := $(shell sed -n 's/^\#define DIL_VERSION "\(.*\)"/\1/p' runtime/dilrt.h)
filled     := dil.pc dilrt.pc dilConfig.cmake dilConfigVersion.cmake
# Rows: a file, where it goes, its mode.
place       = $(foreach f,$(1),$(f):$(2)/$(notdir $(f)):$(3))
installed   = $(BUILD)/dil:$(bindir)/dil:755 \
  $(call place,$(BUILD)/libdil.so.$(abi) $(rt),$(libdir),644) \
  $(call place,$(addprefix $(BUILD)/,$(parts) dilrt.o),$(partdir),644) \
  $(call place,$(BUILD)/libdilrt.a,$(libdir),644) \
  $(call place,$(headers),$(includedir)/dil,644) \
  $(call place,$(addprefix $(made)/,$(filter %.pc,$(filled))),$(libdir)/pkgconfig,644) \
  $(call place,$(addprefix $(made)/,$(filter %.cmake,$(filled))),$(libdir)/cmake/dil,644) \
  $(call place,compiler/cli/dil.1,$(datadir)/man/man1,644) \
  $(call place,grammar/dil.5,$(datadir)/man/man5,644) \
  $(call place,$(presets),$(datadir)/dil/presets,644) \
  $(made)/bash:$(datadir)/bash-completion/completions/dil:644 \
  $(made)/zsh:$(datadir)/zsh/site-functions/_dil:644 \
  $(made)/fish:$(datadir)/fish/vendor_completions.d/dil.fish:644
linked      = $(libdir)/libdil.so $(libdir)/libdilrt.so
# Files for pkg-config find the folders below the prefix from where they lie, so
# that a prefix may be moved; $$ is theirs.
space      := $(empty) $(empty)
up          = $(subst $(space),/,$(foreach part,$(subst /, ,$(1)),..))
below       = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
pcprefix    = $(if $(filter $(PREFIX)/%,$(libdir)),$${pcfiledir}/$(call \
  up,$(patsubst $(PREFIX)/%,%,$(libdir)/pkgconfig)),$(PREFIX))
# What names the places, and what the program writes by itself.
fill:
	@mkdir -p $(made)
	@for f in $(filled); do sed -e 's,@PREFIX@,$(PREFIX),g' \
	  -e 's,@BINDIR@,$(bindir),g' -e 's,@LIBDIR@,$(libdir),g' \
	  -e 's,@INCLUDEDIR@,$(includedir),g' -e 's,@VERSION@,$(version),g' \
	  -e 's,@PC_PREFIX@,$(pcprefix),g' -e 's,@PC_BINDIR@,$(call below,$(bindir)),g' \
	  -e 's,@PC_LIBDIR@,$(call below,$(libdir)),g' \
	  -e 's,@PC_INCLUDEDIR@,$(call below,$(includedir)),g' \
	  -e 's,@ABI@,$(abi),g' compiler/cli/install/$$f.in > $(made)/$$f || exit 1; done
	@for s in bash zsh fish; do $(BUILD)/dil completion $$s > $(made)/$$s || \
	  exit 1; done
install: all
	@$(MAKE) --no-print-directory -o all fill
	@for row in $(installed); do from=$${row%%:*} to=$${row#*:}; \
	  install -D -m $${to#*:} "$$from" "$(DESTDIR)$${to%:*}" || exit 1; done
	@for link in $(linked); do \
	  ln -sf "$${link##*/}.$(abi)" "$(DESTDIR)$$link" || exit 1; done
	@echo "installed below $(DESTDIR)$(PREFIX)"
uninstall:
	@for row in $(installed); do to=$${row#*:}; \
	  rm -f "$(DESTDIR)$${to%:*}"; done
	@rm -f $(addprefix $(DESTDIR),$(linked))
	@-rmdir -p $(addprefix $(DESTDIR),$(partdir) $(includedir)/dil \
	  $(libdir)/cmake/dil $(libdir)/pkgconfig $(datadir)/dil/presets) \
	  2>/dev/null; true
# Hosts and CMake projects, built against a copy that lies below a DESTDIR.
check-install: all
	@BUILD=$(BUILD) tests/run.sh install

clean:
	rm -rf build dil

# A changed prefix or flag makes everything anew.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(CC) $(FLAGS))' | cmp -s - $@ || \
	  printf '%s\n' '$(subst ','\'',$(CC) $(FLAGS))' > $@
$(core) $(tables) $(cli) $(runtime) $(cpu) $(gpu) $(cuda) $(harness) $(units) $(fuzzer).o \
  $(turns).o $(pools:=.o) $(gpuhost).o $(mpihost).o $(hoppers) $(emulated) \
  $(allocs) $(BUILD)/tests/fuzz/fuzz_front.o \
  $(BUILD)/compiler/cli/main.o: \
  $(BUILD)/flags

FORCE:
.PHONY: all tests gallery check check-here check-ring demo demo-here deps bench asan \
        tsan tsan-here gpu-bundle check-gpu bench-gpu fuzz fuzz-long layers \
        abi wc tests-table python deps-python check-python bench-python wheel fill \
        install uninstall check-install clean FORCE
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
