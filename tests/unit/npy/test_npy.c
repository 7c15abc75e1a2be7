/* test_npy.c - arrays in files: what numpy writes, what it would never write.
 *
 * Headers are spelled out byte by byte, so that reader and writer are not
 * only each other's mirror. */
#include "runtime/base/random.h"
#include "runtime/npy/npy.h"
#include "tests/support/suite.h"
#include <check.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/dil-npy-XXXXXX";

static const char *place(const char *name) {
  static char path[300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void put(const char *name, const void *bytes, size_t size) {
  FILE *file = fopen(place(name), "wb");
  ck_assert_ptr_nonnull(file);
  ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
  fclose(file);
}

/* A file of version 1, 2 or 3 as numpy would lay it out; its size. */
static size_t spell(char *file, int version, const char *header,
                    const void *data, size_t size) {
  size_t length = strlen(header), start = version == 1 ? 10 : 12;
  memcpy(file, "\x93NUMPY", 6);
  file[6] = (char)version;
  file[7] = 0;
  memset(file + 8, 0, 4);
  file[8] = (char)length;
  file[9] = (char)(length >> 8);
  memcpy(file + start, header, length);
  if (size) memcpy(file + start + length, data, size);
  return start + length + size;
}

static void put_array(const char *name, int version, const char *header,
                      const void *data, size_t size) {
  static char file[4096];
  put(name, file, spell(file, version, header, data, size));
}

static dil_tensor get(const char *name, dil_npy *array) {
  dil_status status = dil_npy_read(place(name), array);
  ck_assert_msg(status == DIL_OK, "%s", dil_last_error());
  return array->tensor;
}

static void refuse(const char *name, dil_status wanted, const char *reason) {
  dil_npy array;
  ck_assert_int_eq(dil_npy_read(place(name), &array), wanted);
  ck_assert_ptr_null(array.tensor.data);
  ck_assert_msg(strstr(dil_last_error(), reason) != NULL, "%s not in: %s",
                reason, dil_last_error());
  ck_assert_ptr_nonnull(strstr(dil_last_error(), name));
}

/* ---- reading ------------------------------------------------------------- */

START_TEST(all_versions_are_read) {
  static const float data[6] = {0, 1, 2, 3, 4, 5};
  for (int version = 1; version <= 3; version++) {
    dil_npy array;
    put_array("a.npy", version,
              "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } \n",
              data, sizeof data);
    dil_tensor t = get("a.npy", &array);
    ck_assert_int_eq(t.dtype, DIL_F32);
    ck_assert_int_eq(t.rank, 2);
    ck_assert_int_eq(t.shape[0], 2);
    ck_assert_int_eq(t.shape[1], 3);
    ck_assert_int_eq(t.stride[0], 3);
    ck_assert_mem_eq(t.data, data, sizeof data);
    dil_npy_free(&array);
  }
}
END_TEST

START_TEST(headers_may_be_spelled_otherwise) {
  static const char *const headers[] = {
      "{\"shape\":(2,),\"descr\":\"<i4\",\"fortran_order\":True}",
      "{ 'fortran_order' : False , 'descr' : '<i4' , 'shape' : ( 2 , ) , }\n",
      "{'descr': '<i4', 'fortran_order': False, 'shape': (1,2)}",
      "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 2, 1,), }",
  };
  static const int32_t data[2] = {-5, 7};
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
    dil_npy array;
    put_array("b.npy", 1, headers[i], data, sizeof data);
    dil_tensor t = get("b.npy", &array);
    ck_assert_int_eq(dil_tensor_count(&t), 2);
    ck_assert_mem_eq(t.data, data, sizeof data);
    dil_npy_free(&array);
  }
}
END_TEST

START_TEST(fortran_order_is_turned) {
  int32_t data[24], k = 0;
  for (int32_t c = 0; c < 4; c++) /* first index fastest */
    for (int32_t b = 0; b < 3; b++)
      for (int32_t a = 0; a < 2; a++) data[k++] = 100 * a + 10 * b + c;
  dil_npy array;
  put_array("f.npy", 1,
            "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 4), }",
            data, sizeof data);
  dil_tensor t = get("f.npy", &array);
  for (int32_t a = 0; a < 2; a++)
    for (int32_t b = 0; b < 3; b++)
      for (int32_t c = 0; c < 4; c++)
        ck_assert_int_eq(((int32_t *)t.data)[12 * a + 4 * b + c],
                         100 * a + 10 * b + c);
  dil_npy_free(&array);
}
END_TEST

START_TEST(wide_elements_are_narrowed) {
  dil_npy array;
  const double reals[4] = {0.1, -INFINITY, (double)NAN, 1e-300};
  put_array("d.npy", 1,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }", reals,
            sizeof reals);
  dil_tensor t = get("d.npy", &array);
  const float *got = t.data;
  ck_assert_int_eq(t.dtype, DIL_F32);
  ck_assert(got[0] == 0.1f && got[1] == -INFINITY && isnan(got[2]) &&
            got[3] == 0);
  dil_npy_free(&array);
  const int64_t integers[2] = {INT32_MIN, INT32_MAX};
  put_array("i.npy", 1,
            "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 1), }",
            integers, sizeof integers);
  t = get("i.npy", &array);
  ck_assert_int_eq(t.dtype, DIL_I32);
  ck_assert_int_eq(((int32_t *)t.data)[0], INT32_MIN);
  ck_assert_int_eq(((int32_t *)t.data)[1], INT32_MAX);
  dil_npy_free(&array);
}
END_TEST

START_TEST(what_does_not_fit_is_refused) {
  const double reals[2] = {0, 1e39};
  put_array("d.npy", 1,
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", reals,
            sizeof reals);
  refuse("d.npy", DIL_INPUT, "element 1 does not fit f32");
  const int64_t integers[2] = {0, INT64_C(1) << 31};
  put_array("i.npy", 1,
            "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
            integers, sizeof integers);
  refuse("i.npy", DIL_INPUT, "element 1 does not fit i32");
}
END_TEST

START_TEST(small_shapes) {
  dil_npy array;
  put_array("s.npy", 1,
            "{'descr': '|b1', 'fortran_order': False, 'shape': (), }", "\1", 1);
  dil_tensor t = get("s.npy", &array);
  ck_assert_int_eq(t.rank, 0);
  ck_assert_int_eq(t.dtype, DIL_U8);
  ck_assert_int_eq(*(uint8_t *)t.data, 1);
  dil_npy_free(&array);
  put_array("e.npy", 1,
            "{'descr': '<f2', 'fortran_order': False, 'shape': (3, 0), }", "",
            0);
  t = get("e.npy", &array);
  ck_assert_int_eq(t.dtype, DIL_F16);
  ck_assert_int_eq(dil_tensor_count(&t), 0);
  ck_assert_ptr_nonnull(t.data);
  dil_npy_free(&array);
}
END_TEST

/* Each with 8 bytes of data behind it. */
static const struct {
  const char *header, *reason;
} wrong_headers[] = {
    {"", "column 1: { is missing"},
    {"{", "a key or } is missing"},
    {"{}", "lacks 'descr'"},
    {"{'descr': '<f4', 'fortran_order': False}", "lacks 'shape'"},
    {"{'descr': '<f4', 'shape': (2,)}", "lacks 'fortran_order'"},
    {"{'descr': '<f4', 'descr': '<f4'}", "stands twice"},
    {"{'descr': '<f4', 'order': False}", "key before is unknown"},
    {"{'descr' '<f4'}", ": is missing"},
    {"{'descr': '<f4' 'shape': (2,)}", "a comma or } is missing"},
    {"{'descr': <f4}", "the element type is no string"},
    {"{'descr': '<f4}", "the element type is no string"},
    {"{'descr': '<f\x1b'}", "the element type is no string"},
    {"{'descr': [('x', '<f4')]}", "records of several fields"},
    {"{'descr': '>f4'}", "big-endian elements; save them with astype('<f4')"},
    {"{'descr': 'f4'}", "elements of type 'f4'"},
    {"{'descr': '<c8'}", "elements of type '<c8'"},
    {"{'descr': '|f4'}", "elements of type '|f4'"},
    {"{'descr': '|O'}", "elements of type '|O'"},
    {"{'descr': ''}", "elements of type ''"},
    {"{'fortran_order': 0}", "not True or False"},
    {"{'shape': 2}", "the shape is no tuple"},
    {"{'shape': (2)}", "the shape is no tuple"},
    {"{'shape': (,)}", "what is no size"},
    {"{'shape': (-2,)}", "what is no size"},
    {"{'shape': (2 3)}", "a comma or ) is missing"},
    {"{'shape': (99999999999999999999,)}", "what is no size"},
    {"{'shape': (1, 1, 1, 1, 2)}", "more than 4 dimensions"},
    {"{'shape': (2,", "what is no size"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} 1",
     "more stands behind the }"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
     "has 8 bytes of data where its shape needs 12"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
     "has 8 bytes of data where its shape needs 4"},
    {"{'descr': '<f4', 'fortran_order': False, "
     "'shape': (4294967296, 4294967296)}", "the shape is too large"},
    {"{'descr': '<f8', 'fortran_order': False, "
     "'shape': (4294967296, 1073741824)}", "the shape is too large"},
};

START_TEST(wrong_headers_are_refused) {
  for (size_t i = 0; i < sizeof wrong_headers / sizeof *wrong_headers; i++) {
    put_array("w.npy", 1 + (int)(i % 3), wrong_headers[i].header, "12345678",
              8);
    refuse("w.npy", DIL_INPUT, wrong_headers[i].reason);
  }
}
END_TEST

START_TEST(other_files_are_refused) {
  put("x.npy", "", 0);
  refuse("x.npy", DIL_INPUT, "is not a .npy file");
  put("x.npy", "words", 5);
  refuse("x.npy", DIL_INPUT, "is not a .npy file");
  put("x.npy", "\x93NUMPY\1", 7);
  refuse("x.npy", DIL_INPUT, "ends within its header");
  put("x.npy", "PK\3\4 a zip file", 16);
  refuse("x.npy", DIL_INPUT, "is not a .npy file");
  put("x.npy", "\x93NUMPY\4\0\2\0{}", 12);
  refuse("x.npy", DIL_INPUT, "version 4.0");
  put("x.npy", "\x93NUMPY\1\0\xff\0{}", 12);
  refuse("x.npy", DIL_INPUT, "ends within its header");
  put("x.npy", "\x93NUMPY\2\0\xff\xff\xff\xff{}", 14);
  refuse("x.npy", DIL_INPUT, "header has 4294967295 bytes");
  refuse("none.npy", DIL_ENVIRONMENT, "No such file");
  refuse("", DIL_ENVIRONMENT, "Is a directory");
}
END_TEST

START_TEST(pipes_are_read) {
  static char file[200];
  const char *header =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  size_t size = spell(file, 1, header, "12345678", 8);
  for (int extra = -1; extra <= 1; extra++) {
    int ends[2];
    char path[32];
    dil_npy array;
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_gt(write(ends[1], file, size + (size_t)extra), 0);
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    dil_status status = dil_npy_read(path, &array);
    close(ends[0]);
    ck_assert_int_eq(status, extra ? DIL_INPUT : DIL_OK);
    if (!status) ck_assert_mem_eq(array.tensor.data, "12345678", 8);
    dil_npy_free(&array);
  }
}
END_TEST

/* ---- writing ------------------------------------------------------------- */

START_TEST(files_are_what_numpy_writes) {
  const float data[6] = {1, 2, 3, 4, 5, 6};
  char want[152], got[200];
  dil_tensor t = dil_tensor_make((void *)(uintptr_t)data, DIL_F32, 2,
                                 (int64_t[]){2, 3});
  memset(want, ' ', 128);
  memcpy(want, "\x93NUMPY\1\0\x76\0", 10);
  const char *text = "{'descr': '<f4', 'fortran_order': False, "
                     "'shape': (2, 3), }";
  memcpy(want + 10, text, strlen(text));
  want[127] = '\n';
  memcpy(want + 128, data, sizeof data);
  ck_assert_int_eq(dil_npy_write(place("o.npy"), &t), DIL_OK);
  FILE *file = fopen(place("o.npy"), "rb");
  ck_assert_ptr_nonnull(file);
  ck_assert_uint_eq(fread(got, 1, sizeof got, file), sizeof want);
  fclose(file);
  ck_assert_mem_eq(got, want, sizeof want);
}
END_TEST

static void check_equal(const dil_tensor *t, const dil_tensor *got) {
  int64_t at[4] = {0};
  ck_assert_int_eq(got->rank, t->rank);
  for (int64_t i = 0; i < dil_tensor_count(t); i++) {
    int64_t from = 0, rest = i;
    for (int32_t axis = t->rank; axis-- > 0; rest /= t->shape[axis]) {
      at[axis] = rest % t->shape[axis];
      from += at[axis] * t->stride[axis];
    }
    if (dil_element_read(t->data, t->dtype, from) !=
        dil_element_read(got->data, got->dtype, i))
      ck_abort_msg("element %d", (int)i);
  }
}

START_TEST(what_is_written_is_read) {
  static float data[720];
  for (int rank = 0; rank <= 4; rank++)
    for (int dtype = 0; dtype < DIL_DTYPE_COUNT; dtype++) {
      dil_npy array;
      dil_tensor t = dil_tensor_make(data, (dil_dtype)dtype, rank,
                                     (int64_t[]){2, 3, 4, 5});
      for (int64_t i = 0; i < dil_tensor_count(&t); i++)
        dil_element_write(data, (dil_dtype)dtype, i, (double)(i % 200));
      ck_assert_int_eq(dil_npy_write(place("r.npy"), &t), DIL_OK);
      dil_tensor got = get("r.npy", &array);
      ck_assert_int_eq(got.dtype, dtype == DIL_BF16 ? DIL_F32 : dtype);
      check_equal(&t, &got);
      dil_npy_free(&array);
    }
}
END_TEST

START_TEST(strided_tensors_are_gathered) {
  static float data[720];
  for (int i = 0; i < 720; i++) data[i] = (float)i;
  dil_npy array;
  dil_tensor t = dil_tensor_make(data, DIL_F32, 3, (int64_t[]){3, 4, 5});
  t.stride[0] = 200, t.stride[1] = 7, t.stride[2] = 1;
  ck_assert_int_eq(dil_npy_write(place("t.npy"), &t), DIL_OK);
  dil_tensor got = get("t.npy", &array);
  check_equal(&t, &got);
  dil_npy_free(&array);
  t.stride[0] = 0, t.stride[1] = 3, t.stride[2] = 100;
  ck_assert_int_eq(dil_npy_write(place("t.npy"), &t), DIL_OK);
  got = get("t.npy", &array);
  check_equal(&t, &got);
  dil_npy_free(&array);
}
END_TEST

static int files_in_folder(void) {
  DIR *entries = opendir(folder);
  ck_assert_ptr_nonnull(entries);
  int count = 0;
  for (const struct dirent *e; (e = readdir(entries)) != NULL;)
    count += e->d_name[0] != '.';
  closedir(entries);
  return count;
}

START_TEST(writing_replaces_or_leaves) {
  float data[2] = {1, 2};
  struct stat about;
  dil_npy array;
  dil_tensor t = dil_tensor_make(data, DIL_F32, 1, (int64_t[]){2});
  put("real.npy", "old", 3);
  ck_assert_int_eq(chmod(place("real.npy"), 0640), 0);
  unlink(place("link.npy"));
  ck_assert_int_eq(symlink("real.npy", place("link.npy")), 0);
  int before = files_in_folder();
  ck_assert_int_eq(dil_npy_write(place("link.npy"), &t), DIL_OK);
  ck_assert_int_eq(files_in_folder(), before);
  ck_assert_int_eq(lstat(place("link.npy"), &about), 0);
  ck_assert(S_ISLNK(about.st_mode));
  ck_assert_int_eq(lstat(place("real.npy"), &about), 0);
  ck_assert_int_eq(about.st_mode & 0777, 0640);
  get("real.npy", &array);
  dil_npy_free(&array);
  ck_assert_int_eq(dil_npy_write("/dev/null", &t), DIL_OK);
  ck_assert_int_eq(stat("/dev/null", &about), 0);
  ck_assert(S_ISCHR(about.st_mode));
}
END_TEST

START_TEST(writing_may_fail) {
  static float data[4096];
  dil_tensor t = dil_tensor_make(data, DIL_F32, 1, (int64_t[]){4096});
  int before = files_in_folder();
  ck_assert_int_eq(dil_npy_write(place("no/such.npy"), &t), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "no/such.npy"));
  ck_assert_int_eq(dil_npy_write(folder, &t), DIL_ENVIRONMENT);
  ck_assert_int_eq(dil_npy_write("/dev/full", &t), DIL_ENVIRONMENT);
  ck_assert_ptr_nonnull(strstr(dil_last_error(), "No space left"));
  ck_assert_int_eq(files_in_folder(), before);
}
END_TEST

/* ---- damage -------------------------------------------------------------- */

static uint32_t random_word(void) {
  static uint32_t counter[4];
  uint32_t out[4];
  counter[0]++;
  dil_philox(counter, (const uint32_t[2]){5, 23}, out);
  return out[0];
}

/* A file in memory at `path`, with these bytes. */
static void rewrite(int file, const char *bytes, size_t size) {
  ck_assert_int_eq(ftruncate(file, 0), 0);
  if (pwrite(file, bytes, size, 0) != (ssize_t)size) ck_abort_msg("no room");
}

static void try_read(const char *path) {
  dil_npy array;
  dil_status status = dil_npy_read(path, &array);
  if (status == DIL_OK && dil_tensor_count(&array.tensor) < 0)
    ck_abort_msg("a tensor of no size");
  if (status != DIL_OK && (status != DIL_INPUT || array.tensor.data))
    ck_abort_msg("status %d: %s", status, dil_last_error());
  dil_npy_free(&array);
}

START_TEST(damaged_files_are_refused_or_read) {
  static const char likely[] = "{}()[]'\":, 0123456789<>|fiub=\n";
  static char whole[400], copy[400];
  const char *header =
      "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }  \n";
  double data[6] = {1, 2, 3, 4, 5, 6};
  char path[32];
  int file = memfd_create("npy", MFD_CLOEXEC);
  ck_assert_int_ge(file, 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  for (int i = 0; i < 30000; i++) {
    size_t size = spell(whole, 1 + i % 3, header, data, sizeof data);
    memcpy(copy, whole, size);
    for (uint32_t k = random_word() % 3 + 1; k-- > 0;)
      copy[random_word() % 75] =
          (char)(random_word() % 4 ? likely[random_word() % 30]
                                   : (int)random_word());
    if (random_word() % 8 == 0) size = random_word() % size;
    rewrite(file, copy, size);
    try_read(path);
  }
  close(file);
}
END_TEST

static Suite *npy_suite(void) {
  Suite *suite = suite_create("npy");
  TCase *reading = tcase_create("reading"), *writing = tcase_create("writing");
  tcase_set_timeout(reading, 120);
  tcase_add_test(reading, all_versions_are_read);
  tcase_add_test(reading, headers_may_be_spelled_otherwise);
  tcase_add_test(reading, fortran_order_is_turned);
  tcase_add_test(reading, wide_elements_are_narrowed);
  tcase_add_test(reading, what_does_not_fit_is_refused);
  tcase_add_test(reading, small_shapes);
  tcase_add_test(reading, wrong_headers_are_refused);
  tcase_add_test(reading, other_files_are_refused);
  tcase_add_test(reading, pipes_are_read);
  tcase_add_test(reading, damaged_files_are_refused_or_read);
  tcase_add_test(writing, files_are_what_numpy_writes);
  tcase_add_test(writing, what_is_written_is_read);
  tcase_add_test(writing, strided_tensors_are_gathered);
  tcase_add_test(writing, writing_replaces_or_leaves);
  tcase_add_test(writing, writing_may_fail);
  suite_add_tcase(suite, reading);
  suite_add_tcase(suite, writing);
  return suite;
}

static void remove_folder(void) {
  DIR *entries = opendir(folder);
  for (const struct dirent *e; entries && (e = readdir(entries)) != NULL;)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
      unlink(place(e->d_name));
  if (entries) closedir(entries);
  rmdir(folder);
}

int main(void) {
  if (!mkdtemp(folder)) return 1;
  int failed = suite_run(npy_suite(), CK_NOFORK);
  remove_folder();
  return failed;
}
