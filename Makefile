# dil: see README.md. `make demo` and `make check` set a fresh machine up.
# BUILD names the build folder, so that variants live side by side.

BUILD    ?= build
CC       ?= cc
LLVM     ?= llvm-config-19
PREFIX   ?= /usr/local
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
            -Wstrict-prototypes -Wmissing-prototypes \
            -Werror=implicit-function-declaration $(if $(CI),-Werror)
OPT      ?= -O2 -g
CFLAGS   += -std=gnu11 -fPIC $(OPT) $(WARN) -MMD -MP -D_GNU_SOURCE \
            -Icompiler -Iruntime -I$(BUILD) -DDIL_LIBDIR='"$(PREFIX)/lib/dil"'
LDLIBS   := -lm -lpthread -ldl
CORELIBS := -ljansson -lpng -lxxhash

runtime := $(patsubst %.c,$(BUILD)/%.o,$(wildcard runtime/*.c))
core    := $(patsubst %.c,$(BUILD)/%.o,$(filter-out compiler/main.c,$(wildcard compiler/*.c))) \
           $(BUILD)/grammar/parser.o $(BUILD)/grammar/scanner.o
cpu     := $(patsubst %.c,$(BUILD)/%.o,$(wildcard compiler/cpu/*.c))

all: dil $(BUILD)/libdil.so $(BUILD)/libdilrt.so $(BUILD)/dil-cpu.so

dil: $(BUILD)/dil
	cp $< $@
$(BUILD)/dil: $(BUILD)/compiler/main.o $(core) $(runtime)
	$(CC) $(OPT) $(LDFLAGS) -Wl,--export-dynamic-symbol=dil_fail -o $@ $^ $(CORELIBS) $(LDLIBS)
$(BUILD)/libdil.so: $(core) $(runtime)
	$(CC) $(OPT) $(LDFLAGS) -shared -o $@ $^ $(CORELIBS) $(LDLIBS)
$(BUILD)/libdilrt.so: $(runtime)
	$(CC) $(OPT) $(LDFLAGS) -shared -o $@ $^ $(LDLIBS)
# The back end brings its own copy of the arena; of its host it asks dil_fail.
$(BUILD)/dil-cpu.so: $(cpu) $(BUILD)/compiler/util.o
	$(CC) $(OPT) $(LDFLAGS) -shared -Wl,-Bsymbolic -o $@ $^ $(shell $(LLVM) --libs) -L$(shell $(LLVM) --libdir) $(LDLIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<
$(BUILD)/compiler/cpu/%.o: CFLAGS += -isystem $(shell $(LLVM) --includedir)

$(BUILD)/grammar/parser.c $(BUILD)/grammar/parser.h: grammar/dil.y grammar/keywords.def
	@mkdir -p $(@D)
	bison -Werror --defines=$(BUILD)/grammar/parser.h -o $(BUILD)/grammar/parser.c $<
$(BUILD)/grammar/scanner.c $(BUILD)/grammar/scanner.h: grammar/dil.l
	@mkdir -p $(@D)
	flex --header-file=$(BUILD)/grammar/scanner.h -o $(BUILD)/grammar/scanner.c $<
$(BUILD)/grammar/%.o: $(BUILD)/grammar/%.c $(BUILD)/grammar/parser.h $(BUILD)/grammar/scanner.h
	$(CC) $(CFLAGS) -Igrammar -Wno-conversion -Wno-unused-function -c -o $@ $<
$(core): | $(BUILD)/grammar/parser.h

clean:
	rm -rf build dil

.PHONY: all clean
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
