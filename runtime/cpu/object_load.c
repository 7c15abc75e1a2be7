/* object_load.c - maps a relocatable ELF object and makes it executable.
 *
 * In: the bytes of an object file without undefined symbols, from a compiler,
 * a cache or a library; every number in them is checked before it is used.
 * Out: mapped sections: code is read-execute, constants are read-only, data is
 * read-write, so that nothing is ever writable and executable. */
#include "object_load.h"
#include "runtime/arch.h"
#include "runtime/base/status.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  PAGE_SIZE = 4096,
  MEMORY_MAX = 1 << 28 /* far from what 32-bit relocations cannot reach */
};

static dil_status object_damaged(const dil_object *o, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static dil_status object_damaged(const dil_object *o, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return dil_fail(DIL_INPUT, "object '%s': %s", o->name, text);
}

/* ---- reading ------------------------------------------------------------- */

static bool lies_within(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

static dil_status object_read_header(dil_object *o) {
  Elf64_Ehdr header;
  if (o->size < sizeof header)
    return object_damaged(o, "%zu bytes are too few for ELF", o->size);
  memcpy(&header, o->image, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG))
    return object_damaged(o, "it is not ELF");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL ||
      header.e_machine != dil_host_arch.elf_machine)
    return object_damaged(o, "it is not a relocatable %s object",
                          dil_host_arch.name);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff % 8 ||
      !lies_within(header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr),
                   o->size))
    return object_damaged(o, "its section table lies outside of the file");
  if (header.e_shstrndx >= header.e_shnum)
    return object_damaged(o, "it has no section names");
  o->sections = (Elf64_Shdr *)(void *)(o->image + header.e_shoff);
  o->section_count = header.e_shnum;
  return DIL_OK;
}

/* The strings of a section, or NULL; the last byte is 0. */
static const char *strings_of(const dil_object *o, const Elf64_Shdr *s) {
  if (s->sh_type != SHT_STRTAB || s->sh_size == 0) return NULL;
  const char *strings = o->image + s->sh_offset;
  return strings[s->sh_size - 1] ? NULL : strings;
}

static const char *section_name(const dil_object *o, size_t index) {
  return o->section_names + o->sections[index].sh_name;
}

static dil_status object_check_extents(dil_object *o) {
  uint64_t table = (uint64_t)((char *)o->sections - o->image);
  uint64_t table_end = table + o->section_count * sizeof *o->sections;
  for (size_t i = 0; i < o->section_count; i++) {
    const Elf64_Shdr *s = &o->sections[i];
    if (s->sh_type != SHT_NULL && s->sh_type != SHT_NOBITS &&
        !lies_within(s->sh_offset, s->sh_size, o->size))
      return object_damaged(o, "section %zu lies outside of the file", i);
    /* The table is written to: nothing that was checked may lie in it. */
    if (s->sh_type != SHT_NULL && s->sh_type != SHT_NOBITS && s->sh_size &&
        s->sh_offset < table_end && s->sh_offset + s->sh_size > table)
      return object_damaged(o, "section %zu lies in the section table", i);
    if (s->sh_addralign & (s->sh_addralign - 1) || s->sh_addralign > PAGE_SIZE)
      return object_damaged(o, "section %zu is aligned to %llu", i,
                            (unsigned long long)s->sh_addralign);
    if ((s->sh_type == SHT_SYMTAB || s->sh_type == SHT_RELA) &&
        (s->sh_offset % 8 || s->sh_entsize != sizeof(Elf64_Sym)))
      return object_damaged(o, "section %zu is a table of unknown layout", i);
  }
  _Static_assert(sizeof(Elf64_Sym) == sizeof(Elf64_Rela), "checked together");
  return DIL_OK;
}

static dil_status object_read_section_names(dil_object *o) {
  Elf64_Ehdr header;
  memcpy(&header, o->image, sizeof header);
  const Elf64_Shdr *names = &o->sections[header.e_shstrndx];
  o->section_names = strings_of(o, names);
  if (!o->section_names)
    return object_damaged(o, "its section names are damaged");
  for (size_t i = 0; i < o->section_count; i++)
    if (o->sections[i].sh_name >= names->sh_size)
      return object_damaged(o, "the name of section %zu is damaged", i);
  return DIL_OK;
}

/* Refuses loaded sections of kinds that the loader does not know. Sections
 * that are not loaded are no part of the program. */
static dil_status object_check_loaded(dil_object *o) {
  for (size_t i = 0; i < o->section_count; i++) {
    const Elf64_Shdr *s = &o->sections[i];
    const char *name = section_name(o, i);
    const uint64_t both = SHF_WRITE | SHF_EXECINSTR;
    if (!(s->sh_flags & SHF_ALLOC)) continue;
    if (s->sh_type != SHT_PROGBITS && s->sh_type != SHT_NOBITS &&
        s->sh_type != SHT_NOTE && s->sh_type != dil_host_arch.elf_unwind)
      return object_damaged(
          o, "section '%.99s' is of type %u, which is not loaded", name,
          s->sh_type);
    if (s->sh_flags & (SHF_TLS | SHF_COMPRESSED))
      return object_damaged(o, "section '%.99s' is thread-local or compressed",
                            name);
    if ((s->sh_flags & both) == both)
      return object_damaged(
          o, "section '%.99s' is both writable and executable", name);
  }
  return DIL_OK;
}

static dil_status object_read_symbols(dil_object *o) {
  const Elf64_Shdr *table = NULL;
  for (size_t i = 0; i < o->section_count; i++) {
    if (o->sections[i].sh_type != SHT_SYMTAB) continue;
    if (table) return object_damaged(o, "it has two symbol tables");
    table = &o->sections[i];
  }
  if (!table || table->sh_size < sizeof *o->symbols)
    return object_damaged(o, "it has no symbols");
  if (table->sh_link >= o->section_count)
    return object_damaged(o, "its symbols have no names");
  const Elf64_Shdr *names = &o->sections[table->sh_link];
  o->strings = strings_of(o, names);
  if (!o->strings) return object_damaged(o, "its symbol names are damaged");
  o->symbols = (const Elf64_Sym *)(const void *)(o->image + table->sh_offset);
  o->symbol_count = table->sh_size / sizeof *o->symbols;
  for (size_t i = 0; i < o->symbol_count; i++)
    if (o->symbols[i].st_name >= names->sh_size)
      return object_damaged(o, "the name of symbol %zu is damaged", i);
  return DIL_OK;
}

static dil_status object_check_symbols(dil_object *o) {
  for (size_t i = 0; i < o->symbol_count; i++) {
    const Elf64_Sym *s = &o->symbols[i];
    const char *name = o->strings + s->st_name;
    uint8_t type = ELF64_ST_TYPE(s->st_info);
    if (type == STT_TLS || type == STT_GNU_IFUNC)
      return object_damaged(o, "symbol '%.99s' is resolved at run time", name);
    if (s->st_shndx == SHN_ABS || s->st_shndx == SHN_UNDEF) continue;
    if (s->st_shndx >= o->section_count)
      return object_damaged(o, "symbol '%.99s' is in no section", name);
    if (!lies_within(s->st_value, s->st_size,
                     o->sections[s->st_shndx].sh_size))
      return object_damaged(o, "symbol '%.99s' lies outside of its section",
                            name);
  }
  return DIL_OK;
}

/* Assemblers name the table of addresses (GOT); the loader makes it. */
static const char got_name[] = "_GLOBAL_OFFSET_TABLE_";

static dil_status object_refuse_undefined(dil_object *o) {
  enum { NAMED_MAX = 3 };
  char names[NAMED_MAX * 104] = "";
  int count = 0, used = 0;
  for (size_t i = 1; i < o->symbol_count; i++) {
    const char *name = o->strings + o->symbols[i].st_name;
    if (o->symbols[i].st_shndx != SHN_UNDEF || !strcmp(name, got_name) ||
        count++ >= NAMED_MAX)
      continue;
    used += snprintf(names + used, sizeof names - (size_t)used, "%s'%.99s'",
                     used ? ", " : "", name);
  }
  if (count == 0) return DIL_OK;
  return object_damaged(o, "%d undefined symbol%s: %s%s", count,
                        count > 1 ? "s" : "", names,
                        count > NAMED_MAX ? ", ..." : "");
}

/* ---- relocations --------------------------------------------------------- */

static arch_relocation relocation_of(const Elf64_Rela *r) {
  size_t type = ELF64_R_TYPE(r->r_info);
  return type < dil_host_arch.relocation_count
             ? dil_host_arch.relocations[type]
             : (arch_relocation){0};
}

/* The relocations of a section that is loaded; 0 of any other section. */
static size_t relocations_of(const dil_object *o, const Elf64_Shdr *s,
                             const Elf64_Rela **first) {
  if (s->sh_type != SHT_RELA || s->sh_info >= o->section_count ||
      !(o->sections[s->sh_info].sh_flags & SHF_ALLOC))
    return 0;
  *first = (const Elf64_Rela *)(const void *)(o->image + s->sh_offset);
  return s->sh_size / sizeof **first;
}

static dil_status object_check_relocation(const dil_object *o,
                                          const Elf64_Shdr *to,
                                          const Elf64_Rela *r) {
  const char *name = o->section_names + to->sh_name;
  arch_relocation kind = relocation_of(r);
  if (!kind.known)
    return object_damaged(o, "relocation of unknown type %llu in '%.99s'",
                          (unsigned long long)ELF64_R_TYPE(r->r_info), name);
  if (to->sh_type == SHT_NOBITS ||
      !lies_within(r->r_offset, kind.width, to->sh_size))
    return object_damaged(o, "relocation outside of section '%.99s'", name);
  size_t symbol = ELF64_R_SYM(r->r_info);
  if (symbol >= o->symbol_count)
    return object_damaged(o, "relocation in '%.99s' to no symbol", name);
  size_t section = o->symbols[symbol].st_shndx;
  if (section != SHN_ABS && section != SHN_UNDEF &&
      !(o->sections[section].sh_flags & SHF_ALLOC))
    return object_damaged(o, "relocation in '%.99s' to what is not loaded",
                          name);
  return DIL_OK;
}

static dil_status object_check_relocations(dil_object *o) {
  for (size_t i = 0; i < o->section_count; i++) {
    const Elf64_Shdr *s = &o->sections[i];
    const Elf64_Rela *first = NULL;
    if (s->sh_type == SHT_REL)
      return object_damaged(o, "relocations without addends");
    size_t count = relocations_of(o, s, &first);
    for (size_t k = 0; k < count; k++) {
      dil_status status =
          object_check_relocation(o, &o->sections[s->sh_info], &first[k]);
      if (status) return status;
    }
  }
  return DIL_OK;
}

static size_t object_got_entries(const dil_object *o) {
  size_t entries = 0;
  for (size_t i = 0; i < o->section_count; i++) {
    const Elf64_Rela *first = NULL;
    size_t count = relocations_of(o, &o->sections[i], &first);
    for (size_t k = 0; k < count; k++) entries += relocation_of(&first[k]).got;
  }
  return entries;
}

static uint64_t symbol_address(const dil_object *o, const Elf64_Sym *s) {
  if (s == o->symbols || s->st_shndx == SHN_ABS) return s->st_value;
  if (s->st_shndx == SHN_UNDEF) /* by object_refuse_undefined, got_name */
    return (uint64_t)(uintptr_t)(o->memory + o->got_start);
  return (uint64_t)(uintptr_t)o->address[s->st_shndx] + s->st_value;
}

static bool value_fits(uint64_t value, arch_range limits) {
  if (limits == RANGE_ANY) return true;
  if (limits == RANGE_UNSIGNED) return value <= UINT32_MAX;
  return (int64_t)value >= INT32_MIN && (int64_t)value <= INT32_MAX;
}

static dil_status object_relocate_one(dil_object *o, char *section,
                                      const Elf64_Rela *r) {
  const Elf64_Sym *symbol = &o->symbols[ELF64_R_SYM(r->r_info)];
  arch_relocation kind = relocation_of(r);
  uint64_t value = symbol_address(o, symbol);
  char *place = section + r->r_offset;
  if (kind.got) {
    *o->got_end = value;
    value = (uint64_t)(uintptr_t)o->got_end++;
  }
  value += (uint64_t)r->r_addend;
  if (kind.relative) value -= (uint64_t)(uintptr_t)place;
  if (!value_fits(value, kind.limits))
    return object_damaged(o, "relocation to '%.99s' does not fit 32 bits",
                          o->strings + symbol->st_name);
  memcpy(place, &value, kind.width);
  return DIL_OK;
}

static dil_status object_relocate(dil_object *o) {
  for (size_t i = 0; i < o->section_count; i++) {
    const Elf64_Shdr *s = &o->sections[i];
    const Elf64_Rela *first = NULL;
    size_t count = relocations_of(o, s, &first);
    for (size_t k = 0; k < count; k++) {
      dil_status status =
          object_relocate_one(o, o->address[s->sh_info], &first[k]);
      if (status) return status;
    }
  }
  return DIL_OK;
}

/* ---- placing ------------------------------------------------------------- */

static zone zone_of(const Elf64_Shdr *s) {
  return s->sh_flags & SHF_EXECINSTR ? ZONE_CODE
         : s->sh_flags & SHF_WRITE   ? ZONE_DATA
                                     : ZONE_CONSTANT;
}

static size_t round_size(size_t value, size_t alignment) {
  return alignment < 2 ? value : (value + alignment - 1) & -alignment;
}

/* Leaves each loaded section's offset in sh_addr. Sums cannot wrap: each
 * addend and, after each addition, the sum is at most MEMORY_MAX. */
static dil_status object_place_sections(dil_object *o) {
  size_t end = 0;
  for (zone z = 0; z < ZONE_COUNT; z++) {
    o->zone_start[z] = end = round_size(end, PAGE_SIZE);
    for (size_t i = 0; i < o->section_count; i++) {
      Elf64_Shdr *s = &o->sections[i];
      if (!(s->sh_flags & SHF_ALLOC) || zone_of(s) != z) continue;
      s->sh_addr = end = round_size(end, s->sh_addralign);
      if (s->sh_size > MEMORY_MAX || (end += s->sh_size) > MEMORY_MAX)
        return object_damaged(o, "it needs more than %d MiB", MEMORY_MAX >> 20);
    }
    if (z != ZONE_CONSTANT) continue;
    o->got_start = end = round_size(end, sizeof *o->got_end);
    end += object_got_entries(o) * sizeof *o->got_end;
  }
  o->zone_start[ZONE_COUNT] = o->memory_size = round_size(end, PAGE_SIZE);
  return end ? DIL_OK : object_damaged(o, "it holds nothing to load");
}

static dil_status object_copy_sections(dil_object *o) {
  o->address = calloc(o->section_count, sizeof *o->address);
  if (!o->address) return dil_fail(DIL_MEMORY, "no memory to load a kernel");
  void *memory = mmap(NULL, o->memory_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return dil_fail(DIL_MEMORY, "cannot map %zu bytes for a kernel: %m",
                    o->memory_size);
  o->memory = memory;
  for (size_t i = 0; i < o->section_count; i++) {
    Elf64_Shdr *s = &o->sections[i];
    if (!(s->sh_flags & SHF_ALLOC)) continue;
    o->address[i] = o->memory + s->sh_addr;
    s->sh_addr = (uint64_t)(uintptr_t)o->address[i];
    if (s->sh_type != SHT_NOBITS)
      memcpy(o->address[i], o->image + s->sh_offset, s->sh_size);
  }
  o->got_end = (uint64_t *)(void *)(o->memory + o->got_start);
  return DIL_OK;
}

static dil_status object_protect(dil_object *o) {
  static const int access[ZONE_COUNT] = {
      [ZONE_CODE] = PROT_READ | PROT_EXEC,
      [ZONE_CONSTANT] = PROT_READ,
      [ZONE_DATA] = PROT_READ | PROT_WRITE,
  };
  for (zone z = 0; z < ZONE_COUNT; z++) {
    size_t start = o->zone_start[z];
    size_t length = o->zone_start[z + 1] - start;
    if (length && mprotect(o->memory + start, length, access[z]))
      return dil_fail(DIL_ENVIRONMENT,
                      "this system does not let a kernel be executed: %m");
  }
  return DIL_OK;
}

/* ---- the object ---------------------------------------------------------- */

static dil_status object_copy_image(dil_object *o, const void *bytes,
                                    size_t size, const char *name) {
  o->name = strdup(name);
  o->image = malloc(size ? size : 1);
  if (!o->name || !o->image)
    return dil_fail(DIL_MEMORY, "no memory to load a kernel");
  if (size) memcpy(o->image, bytes, size);
  o->size = size;
  return DIL_OK;
}

dil_status dil_object_load(const void *bytes, size_t size, const char *name,
                           dil_object **object) {
  static dil_status (*const steps[])(dil_object *) = {
      object_read_header,        object_check_extents,
      object_read_section_names, object_check_loaded,
      object_read_symbols,       object_check_symbols,
      object_refuse_undefined,   object_check_relocations,
      object_place_sections,     object_copy_sections,
      object_relocate,           object_protect,
      jit_debug_register,
  };
  *object = NULL;
  dil_object *o = calloc(1, sizeof *o);
  if (!o) return dil_fail(DIL_MEMORY, "no memory to load a kernel");
  dil_status status = object_copy_image(o, bytes, size, name);
  for (size_t i = 0; !status && i < sizeof steps / sizeof *steps; i++)
    status = steps[i](o);
  if (status) dil_object_free(o);
  else *object = o;
  return status;
}

void *dil_object_symbol(const dil_object *o, const char *name) {
  for (size_t i = 1; i < o->symbol_count; i++) {
    const Elf64_Sym *s = &o->symbols[i];
    if (ELF64_ST_BIND(s->st_info) != STB_LOCAL && s->st_shndx != SHN_ABS &&
        o->address[s->st_shndx] && !strcmp(o->strings + s->st_name, name))
      return o->address[s->st_shndx] + s->st_value;
  }
  return NULL;
}

void dil_object_free(dil_object *o) {
  if (!o) return;
  jit_debug_unregister(o);
  if (o->memory) munmap(o->memory, o->memory_size);
  free(o->address);
  free(o->image);
  free(o->name);
  free(o);
}
