# install.mk - where things go. In: PREFIX, DESTDIR and the folders below them.

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
	@$(if $(DESTDIR),:,echo "programs find its libraries after \`ldconfig\`, or" \
	  "with LD_LIBRARY_PATH=$(libdir)")
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

.PHONY: fill install uninstall check-install
