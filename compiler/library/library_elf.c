/* library_elf.c - object files as bytes: finding sections and symbols in them,
 * and giving an object's symbols other names. In: ELF files of this
 * architecture, from anywhere: every offset is checked before it is used. Out:
 * places in those bytes, or new bytes. */
#include "library.h"
#include "runtime/arch.h"
#include "runtime/base/status.h"
#include <elf.h>
#include <stdlib.h>
#include <string.h>

struct elf {
  const char *bytes;
  size_t size;
  const Elf64_Shdr *section;
  size_t section_count;
  const char *names; /* of sections */
  size_t names_size;
};

static bool elf_holds(const elf *e, uint64_t offset, uint64_t size) {
  return offset <= e->size && size <= e->size - offset;
}

/* A name that ends within its table; NULL: it does not. */
static const char *name_in(const char *table, size_t size, size_t offset) {
  if (offset >= size || !memchr(table + offset, 0, size - offset)) return NULL;
  return table + offset;
}

static bool read_sections(elf *e, const Elf64_Ehdr *head) {
  uint64_t size = (uint64_t)head->e_shnum * sizeof(Elf64_Shdr);
  if (head->e_shentsize != sizeof(Elf64_Shdr) || head->e_shoff % 8 ||
      !elf_holds(e, head->e_shoff, size) || head->e_shstrndx >= head->e_shnum)
    return false;
  e->section = (const Elf64_Shdr *)(e->bytes + head->e_shoff);
  e->section_count = head->e_shnum;
  const Elf64_Shdr *names = &e->section[head->e_shstrndx];
  if (!elf_holds(e, names->sh_offset, names->sh_size)) return false;
  e->names = e->bytes + names->sh_offset;
  e->names_size = names->sh_size;
  return true;
}

static bool elf_open(elf *e, const void *bytes, size_t size) {
  const Elf64_Ehdr *head = bytes;
  *e = (elf){.bytes = bytes, .size = size};
  return size >= sizeof *head && (uintptr_t)bytes % 8 == 0 &&
         !memcmp(head->e_ident, ELFMAG, SELFMAG) &&
         head->e_ident[EI_CLASS] == ELFCLASS64 &&
         head->e_ident[EI_DATA] == ELFDATA2LSB &&
         head->e_machine == dil_host_arch.elf_machine && read_sections(e, head);
}

bool elf_find_section(const void *bytes, size_t size, const char *name,
                      const char **data, size_t *length) {
  elf e;
  if (!elf_open(&e, bytes, size)) return false;
  for (size_t i = 0; i < e.section_count; i++) {
    const Elf64_Shdr *s = &e.section[i];
    const char *own = name_in(e.names, e.names_size, s->sh_name);
    if (!own || strcmp(own, name) || s->sh_type == SHT_NOBITS ||
        !elf_holds(&e, s->sh_offset, s->sh_size))
      continue;
    *data = e.bytes + s->sh_offset;
    *length = s->sh_size;
    return true;
  }
  return false;
}

/* ---- symbols ------------------------------------------------------------- */

typedef struct elf_symbols {
  const Elf64_Sym *symbol;
  size_t count;
  const char *names;
  size_t names_size, names_index;
} elf_symbols;

static bool find_symbols(const elf *e, elf_symbols *s) {
  for (size_t i = 0; i < e->section_count; i++) {
    const Elf64_Shdr *at = &e->section[i];
    if (at->sh_type != SHT_SYMTAB) continue;
    if (at->sh_link >= e->section_count || at->sh_offset % 8 ||
        !elf_holds(e, at->sh_offset, at->sh_size))
      return false;
    const Elf64_Shdr *names = &e->section[at->sh_link];
    if (!elf_holds(e, names->sh_offset, names->sh_size)) return false;
    *s =
        (elf_symbols){(const Elf64_Sym *)(e->bytes + at->sh_offset),
                      at->sh_size / sizeof(Elf64_Sym),
                      e->bytes + names->sh_offset, names->sh_size, at->sh_link};
    return true;
  }
  return false;
}

static bool is_for_the_world(const Elf64_Sym *s) {
  return ELF64_ST_BIND(s->st_info) != STB_LOCAL && s->st_shndx != SHN_UNDEF;
}

void elf_each_global(const void *bytes, size_t size,
                     void (*visit)(void *context, const char *name),
                     void *context) {
  elf e;
  elf_symbols s;
  if (!elf_open(&e, bytes, size) || !find_symbols(&e, &s)) return;
  for (size_t i = 0; i < s.count; i++) {
    if (!is_for_the_world(&s.symbol[i])) continue;
    const char *name = name_in(s.names, s.names_size, s.symbol[i].st_name);
    if (name) visit(context, name);
  }
}

/* ---- other names --------------------------------------------------------- */

/* Bytes that the new names need at most. */
static size_t names_room(const elf_symbols *s, size_t prefix) {
  size_t room = s->names_size;
  for (size_t i = 0; i < s->count; i++) {
    const char *name = name_in(s->names, s->names_size, s->symbol[i].st_name);
    if (name && is_for_the_world(&s->symbol[i]))
      room += prefix + strlen(name) + 1;
  }
  return room;
}

/* The new names stand after a copy of the old ones, which section names and
 * other symbols may share. */
static size_t put_names(const elf_symbols *s, const char *prefix,
                        Elf64_Sym *renamed, char *names) {
  size_t used = s->names_size;
  memcpy(names, s->names, used);
  for (size_t i = 0; i < s->count; i++) {
    const char *name = name_in(s->names, s->names_size, s->symbol[i].st_name);
    if (!name || !is_for_the_world(&s->symbol[i])) continue;
    renamed[i].st_name = (Elf64_Word)used;
    renamed[i].st_other = STV_HIDDEN;
    used += (size_t)sprintf(names + used, "%s%s", prefix, name) + 1;
  }
  return used;
}

dil_status elf_rename(const void *bytes, size_t size, const char *prefix,
                      void **out, size_t *out_size) {
  elf e;
  elf_symbols s;
  if (!elf_open(&e, bytes, size) || !find_symbols(&e, &s))
    return dil_fail(DIL_ENVIRONMENT, "the run time's object is damaged");
  size_t start = (size + 7) / 8 * 8;
  char *copy = calloc(1, start + names_room(&s, strlen(prefix)) + 8);
  if (!copy) return dil_fail(DIL_MEMORY, "no memory for the run time");
  memcpy(copy, bytes, size);
  Elf64_Sym *renamed =
      (Elf64_Sym *)(copy + ((const char *)s.symbol - e.bytes));
  size_t used = put_names(&s, prefix, renamed, copy + start);
  Elf64_Shdr *sections =
      (Elf64_Shdr *)(copy + ((const char *)e.section - e.bytes));
  sections[s.names_index].sh_offset = start;
  sections[s.names_index].sh_size = used;
  *out = copy;
  *out_size = (start + used + 7) / 8 * 8;
  return DIL_OK;
}
