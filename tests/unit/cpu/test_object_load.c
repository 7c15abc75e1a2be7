/* test_object_load.c - the object loader, on objects that the C compiler makes.
 *
 * Whole objects must run; damaged ones, by the thousand, must be refused or
 * loaded, and nothing else. What a damaged object says is never executed. */
#include "runtime/base/random.h"
#include "runtime/cpu/object_load.h"
#include "tests/support/suite.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct object_file {
  char *bytes;
  size_t size;
} object_file;

static char folder[] = "/tmp/dil-load-XXXXXX";

static const char whole_source[] =
    "static const double table[8] = {0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5};\n"
    "int counter = 40;\n"
    "static long cleared[100];\n"
    "static int twice(int x) { return 2 * x; }\n"
    "static int thrice(int x) { return 3 * x; }\n"
    "static int (*const calls[2])(int) = {twice, thrice};\n"
    "double read_table(int i) { return table[i & 7]; }\n"
    "int call(int i, int x) { return calls[i & 1](x); }\n"
    "int count(void) { return ++counter; }\n"
    "int *address(void) { return &counter; }\n"
    "long add(int i) { return cleared[i] += i; }\n"
    "const char *text(void) { return \"attention\"; }\n"
    "int pick(int i) { switch (i) { case 0: return 11; case 1: return 7;\n"
    "  case 2: return 5; case 3: return 23; case 4: return 90;\n"
    "  case 5: return count(); default: return -1; } }\n";

static object_file read_file(const char *path) {
  object_file f = {NULL, 0};
  FILE *stream = fopen(path, "rb");
  ck_assert_msg(stream != NULL, "no %s", path);
  fseek(stream, 0, SEEK_END);
  f.size = (size_t)ftell(stream);
  rewind(stream);
  f.bytes = malloc(f.size);
  ck_assert_uint_eq(fread(f.bytes, 1, f.size, stream), f.size);
  fclose(stream);
  return f;
}

static object_file compile(const char *source, const char *flags) {
  const char *compiler = getenv("CC");
  char path[64], command[512];
  snprintf(path, sizeof path, "%s/object.c", folder);
  FILE *stream = fopen(path, "w");
  ck_assert_ptr_nonnull(stream);
  fputs(source, stream);
  fclose(stream);
  snprintf(command, sizeof command, "%s -c -O2 %s -o %s/object.o %s",
           compiler ? compiler : "cc", flags, folder, path);
  ck_assert_int_eq(system(command), 0);
  snprintf(path, sizeof path, "%s/object.o", folder);
  return read_file(path);
}

static dil_object *load(object_file f) {
  dil_object *object;
  dil_status status = dil_object_load(f.bytes, f.size, "test", &object);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  return object;
}

static void refuse(object_file f, const char *reason) {
  dil_object *object;
  dil_status status = dil_object_load(f.bytes, f.size, "test", &object);
  ck_assert_int_eq(status, DIL_INPUT);
  ck_assert_ptr_null(object);
  ck_assert_msg(strstr(dil_last_error(), reason) != NULL, "%s",
                dil_last_error());
}

/* A pointer to data becomes one to a function by its bits. */
#define ENTRY(object, name, type)                        \
  __extension__({                                        \
    void *found_ = dil_object_symbol((object), (name));  \
    __typeof__(type) entry_;                             \
    ck_assert_msg(found_ != NULL, "no %s", (name));      \
    memcpy(&entry_, &found_, sizeof entry_);             \
    entry_;                                              \
  })

static void run_whole(const char *flags) {
  object_file f = compile(whole_source, flags);
  dil_object *object = load(f);
  ck_assert(ENTRY(object, "read_table", double (*)(int))(3) == 3.5);
  int (*call)(int, int) = ENTRY(object, "call", int (*)(int, int));
  ck_assert_int_eq(call(0, 7), 14);
  ck_assert_int_eq(call(1, 7), 21);
  ck_assert_int_eq(ENTRY(object, "count", int (*)(void))(), 41);
  int *counter = ENTRY(object, "address", int *(*)(void))();
  ck_assert_int_eq(*counter, 41);
  ck_assert_ptr_eq(counter, dil_object_symbol(object, "counter"));
  long (*add)(int) = ENTRY(object, "add", long (*)(int));
  ck_assert_int_eq(add(99), 99);
  ck_assert_int_eq(add(99), 198);
  ck_assert_str_eq(ENTRY(object, "text", const char *(*)(void))(), "attention");
  int (*pick)(int) = ENTRY(object, "pick", int (*)(int));
  ck_assert_int_eq(pick(3), 23);
  ck_assert_int_eq(pick(5), 42);
  ck_assert_int_eq(pick(6), -1);
  ck_assert_ptr_null(dil_object_symbol(object, "twice"));
  ck_assert_ptr_null(dil_object_symbol(object, "nothing"));
  dil_object_free(object);
  free(f.bytes);
}

START_TEST(objects_run) {
  run_whole("-fPIC");
  run_whole("-fPIC -g -fno-inline");
  run_whole("-fPIC -fno-plt -ffunction-sections -fdata-sections");
  run_whole("-fPIC -O0");
  run_whole("-fPIC -mcmodel=small -fno-asynchronous-unwind-tables");
}
END_TEST

/* The access rights of the mapping that holds an address, as "r-xp". */
static void rights_of(const void *address, char rights[8]) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  ck_assert_ptr_nonnull(maps);
  strcpy(rights, "none");
  while (fgets(line, sizeof line, maps)) {
    unsigned long start, end;
    char found[8];
    if (sscanf(line, "%lx-%lx %7s", &start, &end, found) == 3 &&
        (unsigned long)address >= start && (unsigned long)address < end)
      strcpy(rights, found);
  }
  fclose(maps);
}

START_TEST(nothing_is_writable_and_executable) {
  object_file f = compile("int data = 3; const int constant = 4;\n"
                          "int get(void) { return data; }\n",
                          "-fPIC");
  dil_object *object = load(f);
  char rights[8];
  rights_of(dil_object_symbol(object, "get"), rights);
  ck_assert_str_eq(rights, "r-xp");
  rights_of(dil_object_symbol(object, "constant"), rights);
  ck_assert_str_eq(rights, "r--p");
  rights_of(dil_object_symbol(object, "data"), rights);
  ck_assert_str_eq(rights, "rw-p");
  dil_object_free(object);
  free(f.bytes);
}
END_TEST

START_TEST(undefined_symbols_are_named) {
  object_file f = compile("double expf(double); int outer(int);\n"
                          "double f(double x) { return expf(x) + outer(1); }\n",
                          "-fPIC -fno-builtin");
  refuse(f, "2 undefined symbols: ");
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "'expf'"));
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "'outer'"));
  free(f.bytes);
}
END_TEST

START_TEST(what_cannot_be_served_is_refused) {
  object_file f = compile("_Thread_local int x; int *f(void) { return &x; }\n",
                          "-fPIC -ftls-model=local-exec");
  refuse(f, "thread-local");
  free(f.bytes);
  f = compile("int x[9]; int *f(int i) { return x + i; }\n",
              "-fno-pic -mcmodel=small -fno-common");
  refuse(f, "does not fit");
  free(f.bytes);
  f = compile("static void f(void) __attribute__((constructor));\n"
              "volatile int x; static void f(void) { x = 1; }\n", "-fPIC");
  refuse(f, "is not loaded");
  free(f.bytes);
  f = compile("typedef int nothing;\n", "-fPIC");
  refuse(f, "nothing to load");
  free(f.bytes);
}
END_TEST

START_TEST(other_files_are_refused) {
  static char text[200] = "int main(void) { return 0; }";
  refuse((object_file){text, 0}, "too few");
  refuse((object_file){text, 20}, "too few");
  refuse((object_file){text, sizeof text}, "not ELF");
  object_file self = read_file("/proc/self/exe");
  refuse(self, "not a relocatable");
  free(self.bytes);
}
END_TEST

/* ---- gdb and perf -------------------------------------------------------- */

extern struct {
  uint32_t version, action;
  jit_code_entry *relevant, *first;
} __jit_debug_descriptor;

static int entries(void) {
  int count = 0;
  jit_code_entry *before = NULL;
  for (jit_code_entry *e = __jit_debug_descriptor.first; e; e = e->next) {
    ck_assert_ptr_eq(e->previous, before);
    before = e;
    count++;
  }
  return count;
}

START_TEST(objects_are_listed_for_gdb) {
  object_file f = compile(whole_source, "-fPIC -g");
  dil_object *objects[3];
  for (int i = 0; i < 3; i++) objects[i] = load(f);
  ck_assert_int_eq(entries(), 3);
  jit_code_entry *entry = __jit_debug_descriptor.first;
  ck_assert_uint_eq(entry->image_size, f.size);
  ck_assert_mem_eq(entry->image, ELFMAG, SELFMAG);
  dil_object_free(objects[1]);
  ck_assert_int_eq(entries(), 2);
  dil_object_free(objects[2]);
  dil_object_free(objects[0]);
  ck_assert_int_eq(entries(), 0);
  free(f.bytes);
}
END_TEST

START_TEST(perf_map_names_functions) {
  char path[64], line[256], want[256];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
  object_file f = compile(whole_source, "-fPIC");
  setenv("DIL_PERF_MAP", "1", 1);
  dil_object *object = load(f);
  unsetenv("DIL_PERF_MAP");
  FILE *map = fopen(path, "r");
  ck_assert_ptr_nonnull(map);
  snprintf(want, sizeof want, "%lx ",
           (unsigned long)dil_object_symbol(object, "count"));
  int found = 0;
  while (fgets(line, sizeof line, map))
    found += !strncmp(line, want, strlen(want)) &&
             strstr(line, " test:count\n");
  ck_assert_int_eq(found, 1);
  fclose(map);
  unlink(path);
  dil_object_free(object);
  setenv("DIL_PERF_MAP", "yes", 1);
  ck_assert_int_eq(dil_object_load(f.bytes, f.size, "test", &object),
                   DIL_USAGE);
  unsetenv("DIL_PERF_MAP");
  free(f.bytes);
}
END_TEST

static void *load_often(void *argument) {
  const object_file *f = argument;
  for (int i = 0; i < 200; i++) {
    dil_object *objects[2] = {NULL, NULL};
    for (int k = 0; k < 2; k++)
      if (dil_object_load(f->bytes, f->size, "test", &objects[k])) return NULL;
    for (int k = 0; k < 2; k++) dil_object_free(objects[k]);
  }
  return argument;
}

START_TEST(threads_load_at_once) {
  object_file f = compile(whole_source, "-fPIC");
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, load_often, &f), 0);
  for (int i = 0; i < 3; i++) {
    void *result;
    pthread_join(threads[i], &result);
    ck_assert_ptr_eq(result, &f);
  }
  ck_assert_int_eq(entries(), 0);
  free(f.bytes);
}
END_TEST

/* ---- damage -------------------------------------------------------------- */

static uint32_t random_word(void) {
  static uint32_t counter[4];
  uint32_t out[4];
  counter[0]++;
  dil_philox(counter, (const uint32_t[2]){17, 4}, out);
  return out[0];
}

/* Loads a copy that is exactly as large as it is said to be. */
static int try_load(const char *bytes, size_t size) {
  char *copy = malloc(size ? size : 1);
  memcpy(copy, bytes, size);
  dil_object *object;
  dil_status status = dil_object_load(copy, size, "damaged", &object);
  free(copy);
  if (status == DIL_OK) {
    dil_object_symbol(object, "count");
    dil_object_free(object);
    return 1;
  }
  if (status != DIL_INPUT || !*dil_last_error())
    ck_abort_msg("status %d: %s", status, dil_last_error());
  return 0;
}

/* Where damage tells: header, section table, symbols, relocations. */
static size_t sensitive_place(object_file f) {
  Elf64_Ehdr header;
  memcpy(&header, f.bytes, sizeof header);
  uint32_t pick = random_word() % 4;
  if (pick == 0) return random_word() % sizeof header;
  size_t table = header.e_shoff, count = header.e_shnum;
  if (pick == 1) return table + random_word() % (count * sizeof(Elf64_Shdr));
  Elf64_Shdr section;
  memcpy(&section, f.bytes + table + random_word() % count * sizeof section,
         sizeof section);
  if (!section.sh_size || section.sh_type == SHT_NOBITS ||
      section.sh_type == SHT_NULL || section.sh_type == SHT_PROGBITS)
    return random_word() % f.size;
  return section.sh_offset + random_word() % section.sh_size;
}

static void damage(object_file f, int count) {
  static const unsigned char words[] = {0, 1, 0x7f, 0x80, 0xff, 8, 0xf1, 4};
  char *copy = malloc(f.size);
  int loaded = 0;
  for (int i = 0; i < count; i++) {
    memcpy(copy, f.bytes, f.size);
    for (uint32_t k = random_word() % 4 + 1; k-- > 0;) {
      size_t at = sensitive_place(f);
      copy[at] = (char)(random_word() % 2 ? words[random_word() % 8]
                                          : random_word());
    }
    loaded += try_load(copy, f.size);
  }
  free(copy);
  ck_assert_int_lt(loaded, count);
}

START_TEST(damaged_objects_are_refused_or_loaded) {
  object_file f = compile(whole_source, "-fPIC");
  damage(f, 20000);
  for (size_t size = 0; size < f.size; size++) try_load(f.bytes, size);
  free(f.bytes);
  f = compile(whole_source, "-fPIC -g -ffunction-sections -O0");
  damage(f, 10000);
  free(f.bytes);
}
END_TEST

/* Each header field of each section in turn takes each extreme value. */
START_TEST(extreme_section_fields_are_refused_or_loaded) {
  static const uint64_t extremes[] = {0, 1, 7, 63, 4096, UINT32_MAX,
                                      INT64_MAX, UINT64_MAX, UINT64_MAX - 63};
  object_file f = compile(whole_source, "-fPIC");
  Elf64_Ehdr header;
  memcpy(&header, f.bytes, sizeof header);
  for (size_t at = 0; at < header.e_shnum * sizeof(Elf64_Shdr); at += 4)
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes; i++) {
      char saved[8];
      char *place = f.bytes + header.e_shoff + at;
      size_t width = at % 64 >= 8 && at % 8 == 0 && at % 64 != 40 ? 8 : 4;
      memcpy(saved, place, width);
      memcpy(place, &extremes[i], width);
      try_load(f.bytes, f.size);
      memcpy(place, saved, width);
    }
  free(f.bytes);
}
END_TEST

static Suite *load_suite(void) {
  Suite *suite = suite_create("load");
  TCase *whole = tcase_create("whole"), *harmed = tcase_create("damaged");
  tcase_set_timeout(harmed, 120);
  tcase_add_test(whole, objects_run);
  tcase_add_test(whole, nothing_is_writable_and_executable);
  tcase_add_test(whole, undefined_symbols_are_named);
  tcase_add_test(whole, what_cannot_be_served_is_refused);
  tcase_add_test(whole, other_files_are_refused);
  tcase_add_test(whole, objects_are_listed_for_gdb);
  tcase_add_test(whole, perf_map_names_functions);
  tcase_add_test(whole, threads_load_at_once);
  tcase_add_test(harmed, damaged_objects_are_refused_or_loaded);
  tcase_add_test(harmed, extreme_section_fields_are_refused_or_loaded);
  suite_add_tcase(suite, whole);
  suite_add_tcase(suite, harmed);
  return suite;
}

static void remove_folder(void) {
  static const char *const names[] = {"object.c", "object.o"};
  for (int i = 0; i < 2; i++) {
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  rmdir(folder);
}

int main(void) {
  if (!mkdtemp(folder)) return 1;
  int failed = suite_run(load_suite(), CK_NOFORK);
  remove_folder();
  return failed;
}
