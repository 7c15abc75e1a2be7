# tests.mk - what tests are made of, and the targets that run them. In: the
# Makefile's objects. Out: suites, fuzzers and benchmarks below $(BUILD)/tests.

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
hopper   := $(BUILD)/tests/gpu/hopper_bench
# An example that trains, with its attention made ahead of time.
train    := $(BUILD)/examples/host/train
trainmpi  = $(if $(MPICC),$(BUILD)/examples/host/train_ranks)
hoppers  := $(call objects,tests/gpu/*.c)
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
san      := -O1 -g -fno-omit-frame-pointer

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
$(addprefix $(BUILD)/tests/emulator/,group.o warp.o): \
  EXTRA += $(if $(filter x86_64,$(machine)),-O3 -mavx2 -mfma)
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
faults   := malloc calloc realloc open openat read write fsync rename renameat
$(addprefix $(BUILD)/tests/test_,cache_faults library ring_backward): \
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

# As many jobs as there are processors, unless the caller says how many.
jobs = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
# What the machine lacks comes first; only then is anything built.
check demo:
	@.ci/deps
	@$(MAKE) $(jobs) --no-print-directory $@-here
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
	  mpi_faults mpi_train ring_examples gpu-ring gpu-ring-back
# Suites of which a check runs a part, whole: kernels by NVRTC for both chips, and
# more of the comparisons on the emulated GPU. Before an issue is closed.
check-long: tests
	@DIL_TEST_LONG=1 EMULATED_SHARE=12 TEST_LIMIT=7200 BUILD=$(BUILD) tests/run.sh \
	  nvrtc emulator
bench: all
	@BUILD=$(BUILD) tests/bench/bench.sh

# The whole of it under the sanitizers, generated code excepted.
asan:
	@$(MAKE) $(jobs) --no-print-directory BUILD=build/asan check-here \
	  OPT='$(san) -fsanitize=address,undefined -fno-sanitize-recover=all'
# Threads: the pool's suite, and kernels that run on it.
tsan:
	@$(MAKE) $(jobs) --no-print-directory BUILD=build/tsan tsan-here \
	  OPT='$(san) -fsanitize=thread'
tsan-here: tests
	@BUILD=$(BUILD) tests/tsan.sh

# What `tests/run.sh gpu` and `bench-gpu` need on a machine with a GPU and
# without compilers: programs, loadable parts, libraries that they ask for.
bundled := $(BUILD)/tests/test_edges $(BUILD)/tests/test_numeric \
           $(BUILD)/tests/test_laws $(BUILD)/tests/test_rerun \
           $(BUILD)/tests/test_hopper $(BUILD)/tests/test_hopper_grid \
           $(BUILD)/tests/test_decode $(BUILD)/tests/test_grid_kernels \
           $(BUILD)/tests/test_launch $(BUILD)/tests/test_choice \
           $(BUILD)/tests/test_pages $(BUILD)/tests/test_packed \
           $(BUILD)/tests/test_shards $(BUILD)/tests/test_linked_ranks \
           $(BUILD)/tests/test_gradients_cuda $(BUILD)/tests/test_hopper_gather \
           $(BUILD)/tests/test_hopper_block_list \
           $(fuzzer) $(turns) $(gpuhost) $(hopper) $(pools)
gpuparts := $(addprefix $(BUILD)/,dil $(filter-out dil-cpu.so,$(parts)) \
              libdil.so.$(abi)) $(rt)
gpu-bundle: $(bundled) $(gpuparts) $(older)
	@rm -rf $(BUILD)/gpu && mkdir -p $(BUILD)/gpu/lib $(BUILD)/gpu/older \
	  $(BUILD)/gpu/tests/fuzz $(BUILD)/gpu/tests/bench
	$(call say,copy)cp $(filter $(suites),$(bundled)) $(BUILD)/gpu/tests
	@sed -n 's,.*\$$BUILD/\(tests/test_[a-z_]*\)".*,$(BUILD)/gpu/\1,p' \
	  tests/gpu/gpu.sh | xargs ls >/dev/null # all that it names
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
fuzz-long: tests
	$(fuzzer) --count 5000 --seed $(FUZZ_SEED)
	$(fuzzer) --count 5000 --seed $(FUZZ_SEED) --backward
	$(fuzzer) --count 3000 --seed $(FUZZ_SEED) --ring
	$(fuzzer) --count 2000 --seed $(FUZZ_SEED) --choices
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --grids
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --grids --backward
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --packed
	$(fuzzer) --count 1000 --seed $(FUZZ_SEED) --packed --backward
	FORMS_ROUNDS=1000000 $(BUILD)/tests/test_forms
	@STRIKES=50 TEST_LIMIT=7200 BUILD=$(BUILD) tests/run.sh process_faults mpi_faults
# libFuzzer needs clang; called by tests/fuzz/front.sh where it is installed.
$(BUILD)/tests/fuzz/fuzz_front: $(BUILD)/tests/fuzz/fuzz_front.o $(core) \
                                $(tables) $(cli) $(runtime)
	$(call say,link)$(LINK) -fsanitize=fuzzer -o $@ $^ $(CLILIBS) $(LDLIBS)

$(harness) $(units) $(fuzzer).o $(turns).o $(pools:=.o) $(gpuhost).o $(mpihost).o \
  $(hoppers) $(emulated) $(allocs) $(BUILD)/tests/fuzz/fuzz_front.o: $(BUILD)/flags
.PHONY: tests check check-here check-long check-ring demo demo-here deps bench asan tsan \
        tsan-here gpu-bundle check-gpu bench-gpu fuzz fuzz-long
