/* test_cache_trust.c - what the cache refuses: damage of every byte, cuts, and
 * whatever others may have had their hands in. */
#include "tests/support/cache_box.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- damage -------------------------------------------------------------- */

enum { ENTRY_ROOM = 4096 };

/* Refused, told, and as good as new after it was made anew. */
static void expect_refused(const char *what, int where) {
  box_warnings = 0;
  dil_cache *c = box_cache(CACHE_ON);
  if (box_has(c, "some key", "some value"))
    ck_abort_msg("%s at %d was not seen", what, where);
  ck_assert_int_eq(box_warnings, 1);
  box_put(c, "some key", "some value");
  cache_free(c);
  if (!box_disk_has("some key", "some value"))
    ck_abort_msg("after %s at %d it was not made anew", what, where);
}

START_TEST(every_flipped_byte_is_seen) {
  char bytes[ENTRY_ROOM], bad[ENTRY_ROOM];
  box_disk_put("some key", "some value");
  size_t size = box_read(box_path("some key"), bytes, sizeof bytes);
  ck_assert_uint_lt(size, sizeof bytes);
  for (size_t i = 0; i < size; i++)
    for (int flip = 0; flip < 2; flip++) {
      memcpy(bad, bytes, size);
      bad[i] = (char)(bad[i] ^ (flip ? 1 << i % 8 : 0xff));
      box_write(box_path("some key"), bad, size);
      expect_refused("a flipped byte", (int)i);
    }
}
END_TEST

START_TEST(every_cut_is_seen) {
  char bytes[ENTRY_ROOM];
  box_disk_put("some key", "some value");
  size_t size = box_read(box_path("some key"), bytes, sizeof bytes - 1);
  for (size_t length = 0; length < size; length++) {
    box_write(box_path("some key"), bytes, length);
    expect_refused("a cut", (int)length);
  }
  bytes[size] = 0;
  box_write(box_path("some key"), bytes, size + 1);
  expect_refused("a byte too many", (int)size);
}
END_TEST

START_TEST(an_entry_under_another_name) {
  char bytes[ENTRY_ROOM];
  box_disk_put("another key", "another value");
  size_t size = box_read(box_path("another key"), bytes, sizeof bytes);
  box_write(box_path("some key"), bytes, size);
  expect_refused("another key's entry", 0);
}
END_TEST

/* ---- who may have written it --------------------------------------------- */

START_TEST(entries_that_are_no_plain_files) {
  box_disk_put("some key", "some value");
  char real[PATH_MAX + 8], path[PATH_MAX];
  snprintf(path, sizeof path, "%s", box_path("some key"));
  snprintf(real, sizeof real, "%s-real", path);
  ck_assert_int_eq(rename(path, real), 0);
  ck_assert_int_eq(symlink(real, path), 0);
  expect_refused("a symbolic link", 0);
  ck_assert_int_eq(unlink(path), 0);
  ck_assert_int_eq(mkfifo(path, 0600), 0);
  expect_refused("a pipe", 0);
}
END_TEST

START_TEST(a_folder_as_an_entry) {
  box_disk_put("some key", "some value");
  ck_assert_int_eq(unlink(box_path("some key")), 0);
  ck_assert_int_eq(mkdir(box_path("some key"), 0700), 0);
  dil_cache *c = box_cache(CACHE_ON);
  ck_assert(!box_has(c, "some key", "some value"));
  box_put(c, "some key", "some value");
  ck_assert(box_has(c, "some key", "some value")); /* from memory */
  cache_free(c);
  ck_assert_int_eq(box_warnings, 2); /* read, then written */
}
END_TEST

START_TEST(entries_that_others_may_write) {
  static const mode_t modes[] = {0620, 0602, 0666};
  for (int i = 0; i < 3; i++) {
    box_disk_put("some key", "some value");
    ck_assert_int_eq(chmod(box_path("some key"), modes[i]), 0);
    expect_refused("a mode", i);
  }
}
END_TEST

START_TEST(entries_of_others) {
  if (geteuid() != 0) return; /* only root can give files away */
  box_disk_put("some key", "some value");
  ck_assert_int_eq(chown(box_path("some key"), 4321, 4321), 0);
  expect_refused("another user's entry", 0);
}
END_TEST

/* The run goes on without the disk, and says so once. */
static void expect_no_folder(cache_mode mode, const char *why) {
  box_warnings = 0;
  dil_cache *c = box_cache(mode);
  if (box_warnings != 1 || !strstr(box_said, why))
    ck_abort_msg("wanted one warning with '%s', got %d: %s", why, box_warnings,
                 box_said);
  ck_assert(!box_has(c, "some key", "some value"));
  box_put(c, "some key", "some value");
  ck_assert(box_has(c, "some key", "some value"));
  cache_free(c);
  ck_assert_int_eq(box_warnings, 1);
}

START_TEST(folders_that_others_may_write) {
  ck_assert_int_eq(mkdir(box_folder, 0700), 0);
  static const mode_t modes[] = {0770, 0707, 01777};
  for (int i = 0; i < 3; i++) {
    ck_assert_int_eq(chmod(box_folder, modes[i]), 0);
    expect_no_folder(CACHE_ON, "others may write to it");
    expect_no_folder(CACHE_READ_ONLY, "others may write to it");
  }
}
END_TEST

START_TEST(folders_that_are_links_or_pipes) {
  char real[PATH_MAX];
  snprintf(real, sizeof real, "%s-real", box_folder);
  ck_assert_int_eq(mkdir(real, 0700), 0);
  ck_assert_int_eq(symlink(real, box_folder), 0);
  expect_no_folder(CACHE_ON, "it is a symbolic link");
  ck_assert_int_eq(unlink(box_folder), 0);
  ck_assert_int_eq(mkfifo(box_folder, 0600), 0);
  expect_no_folder(CACHE_ON, strerror(ENOTDIR));
}
END_TEST

START_TEST(folders_of_others) {
  if (geteuid() != 0) return;
  ck_assert_int_eq(mkdir(box_folder, 0700), 0);
  ck_assert_int_eq(chown(box_folder, 4321, 4321), 0);
  expect_no_folder(CACHE_ON, "it is another user's");
  expect_no_folder(CACHE_READ_ONLY, "it is another user's");
}
END_TEST

/* Of what the superuser laid down one may read, but not write beside it. */
START_TEST(folders_of_the_superuser) {
  if (geteuid() != 0) return;
  box_disk_put("some key", "some value");
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", box_folder);
  *strrchr(path, '/') = 0;
  ck_assert_int_eq(chmod(path, 0755), 0);
  ck_assert_int_eq(chmod(box_folder, 0755), 0);
  ck_assert_int_eq(chmod(box_path("some key"), 0644), 0);
  ck_assert_int_eq(seteuid(4321), 0);
  dil_cache *c = box_cache(CACHE_READ_ONLY);
  bool found = box_has(c, "some key", "some value");
  cache_free(c);
  expect_no_folder(CACHE_ON, "it is another user's");
  ck_assert_int_eq(seteuid(0), 0);
  ck_assert(found);
}
END_TEST

START_TEST(a_folder_that_cannot_be_made) {
  box_write(box_folder, "", 0);
  strcat(box_folder, "/below");
  expect_no_folder(CACHE_ON, strerror(ENOTDIR));
  *strrchr(box_folder, '/') = 0;
}
END_TEST

START_TEST(the_folder_is_made_for_its_user_alone) {
  mode_t before = umask(0);
  box_disk_put("some key", "some value");
  umask(before);
  struct stat found;
  ck_assert_int_eq(stat(box_folder, &found), 0);
  ck_assert_uint_eq(found.st_mode & 0777, 0700);
  ck_assert_int_eq(stat(box_path("some key"), &found), 0);
  ck_assert_uint_eq(found.st_mode & 0777, 0600);
}
END_TEST

int main(void) {
  const box_case cases[] = {
      {"damage",
       (const TTest *const[]){
            every_flipped_byte_is_seen, every_cut_is_seen,
            an_entry_under_another_name, NULL}},
      {"trust",
       (const TTest *const[]){
            entries_that_are_no_plain_files, a_folder_as_an_entry,
            entries_that_others_may_write, entries_of_others,
            folders_that_others_may_write, folders_that_are_links_or_pipes,
            folders_of_others, folders_of_the_superuser,
            a_folder_that_cannot_be_made, the_folder_is_made_for_its_user_alone,
            NULL}},
      {NULL, NULL}};
  return box_run("cache_trust", cases);
}
