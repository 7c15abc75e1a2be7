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
# From archives: as shared libraries, that of SHA-256 would take a millisecond of every
# start, and the others of the program as much together. CRYPTO=-lcrypto and
# CLILIBS='$(CORELIBS) -lffi' where there are no archives.
CRYPTO   ?= -Wl,-Bstatic -lcrypto -Wl,-Bdynamic -Wl,--exclude-libs,libcrypto.a
CLILIBS  ?= -Wl,-Bstatic $(CORELIBS) -lz -lffi -Wl,-Bdynamic
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
keyspans := $(call objects,compiler/pattern/key_span.c compiler/pattern/expr.c \
            compiler/base/arena.c)
headers  := compiler/dil.h runtime/dilrt.h runtime/dlpack.h runtime/status.def
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
          shared/splits.h decode/decode_launch.h hopper/grid_launch.h \
          hopper/hopper_launch.h rows.h)))
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

# Tests, the Python host, and where things go.
include tests/tests.mk examples/python/python.mk compiler/cli/install/install.mk

# ---- the house ------------------------------------------------------------

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
# Writes the gallery of examples/README.md; `check` compares with it.
gallery: all
	@DIL=$(abspath $(BUILD)/dil) examples/gallery.sh examples
# Writes the table of tests/README.md; `check` compares with it.
tests-table: tests
	@BUILD=$(BUILD) tests/coverage.sh write

clean:
	rm -rf build dil

# A changed prefix or flag makes everything anew.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(CC) $(FLAGS))' | cmp -s - $@ || \
	  printf '%s\n' '$(subst ','\'',$(CC) $(FLAGS))' > $@
$(core) $(tables) $(cli) $(runtime) $(cpu) $(gpu) $(cuda) \
  $(BUILD)/compiler/cli/main.o: $(BUILD)/flags

FORCE:
.PHONY: all layers abi wc gallery tests-table clean FORCE
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
