/* The connection scope of a request: one `marshal` value of the few forms that
 * `crates/wire/src/environ/asgi.rs` writes.
 *
 * Most of a scope is as it was in the request before. So its entries and header fields are compared
 * with those, place by place, as bytes: an equal one is the same object again, if that cannot
 * change.
 */

#include "asgi.h"

enum {
    MAX_DEPTH = 6,
    NAME_PLACES = 128,
    MAX_NAME = 32,
    MAX_ENTRIES = 24,
    MAX_FIELDS = 24,
    MAX_KEPT_BYTES = 160,
};

/* What was at a place of the request before: its bytes, which may be none, and what they are. */
typedef struct {
    unsigned char bytes[MAX_KEPT_BYTES];
    /* Those of the key, and all. */
    Py_ssize_t key_size, size;
    PyObject *object;
} Kept;

/* Entries by their place in the scope: `object` is the key. The values are in `kept_scope`, which
 * is copied for each request. */
static Kept entries[MAX_ENTRIES];
static int entry_count;
static PyObject *kept_scope;

/* Fields by their place in the list of headers. */
static Kept fields[MAX_FIELDS];

/* Names of header fields, each in the place of its hash, as `key_object` keeps those of
 * variables. */
static PyObject *field_names[NAME_PLACES];

static const unsigned char *read_value(
    const unsigned char *at, const unsigned char *stop, int depth, PyObject **value);

/* A name of a header field; most are the same in each request. */
static PyObject *field_name(const unsigned char *bytes, Py_ssize_t size)
{
    if (size > MAX_NAME || size == 0) {
        return PyBytes_FromStringAndSize((const char *)bytes, size);
    }
    PyObject **place = &field_names[place_of(bytes, size, NAME_PLACES)];
    if (*place == NULL || PyBytes_Size(*place) != size
        || memcmp(PyBytes_AsString(*place), bytes, size) != 0) {
        PyObject *made = PyBytes_FromStringAndSize((const char *)bytes, size);
        if (made == NULL) {
            return NULL;
        }
        Py_DecRef(*place);
        *place = made;
    }
    Py_IncRef(*place);
    return *place;
}

/* Bytes behind the letter `s`: sets where they are. */
static const unsigned char *read_bytes(
    const unsigned char *at, const unsigned char *stop, const unsigned char **bytes,
    Py_ssize_t *size)
{
    if (stop - at < 5 || *at != 's') {
        return NULL;
    }
    uint32_t length = word(at + 1);
    at += 5;
    if (length > (size_t)(stop - at)) {
        return NULL;
    }
    *bytes = at;
    *size = length;
    return at + length;
}

/* A field of the list of headers: a tuple of two bytes. */
static const unsigned char *read_field(
    const unsigned char *at, const unsigned char *stop, PyObject **value)
{
    const unsigned char *name, *text;
    Py_ssize_t name_size, text_size;
    if (stop - at < 2 || at[0] != ')' || at[1] != 2) {
        return NULL;
    }
    at = read_bytes(at + 2, stop, &name, &name_size);
    at = at == NULL ? NULL : read_bytes(at, stop, &text, &text_size);
    if (at == NULL) {
        return NULL;
    }
    PyObject *pair = PyTuple_New(2), *one = field_name(name, name_size);
    PyObject *two = PyBytes_FromStringAndSize((const char *)text, text_size);
    if (pair == NULL || one == NULL || two == NULL) {
        Py_DecRef(pair);
        Py_DecRef(one);
        Py_DecRef(two);
        return NULL;
    }
    PyTuple_SetItem(pair, 0, one);
    PyTuple_SetItem(pair, 1, two);
    *value = pair;
    return at;
}

/* Whether these bytes begin with those that are kept. No form is the beginning of another one. */
static int begins_with(const unsigned char *at, const unsigned char *stop, const Kept *kept)
{
    return kept->size > 0 && stop - at >= kept->size
        && memcmp(at, kept->bytes, (size_t)kept->size) == 0;
}

static void keep_bytes(Kept *kept, const unsigned char *at, Py_ssize_t size)
{
    kept->size = size <= MAX_KEPT_BYTES ? size : 0;
    /* Of a longer one the key stays. */
    memcpy(kept->bytes, at, (size_t)kept->size);
}

/* The field at place `n` of the list. */
static const unsigned char *read_field_at(
    Py_ssize_t n, const unsigned char *at, const unsigned char *stop, PyObject **value)
{
    if (n >= MAX_FIELDS) {
        return read_field(at, stop, value);
    }
    Kept *kept = &fields[n];
    if (begins_with(at, stop, kept)) {
        *value = kept->object;
        Py_IncRef(*value);
        return at + kept->size;
    }
    const unsigned char *next = read_field(at, stop, value);
    if (next != NULL) {
        PyObject *before = kept->object;
        keep_bytes(kept, at, next - at);
        kept->object = kept->size > 0 ? *value : NULL;
        Py_IncRef(kept->object);
        Py_DecRef(before);
    }
    return next;
}

static const unsigned char *read_list(
    const unsigned char *at, const unsigned char *stop, int depth, PyObject **value)
{
    /* An item takes a byte at least. */
    if (stop - at < 5 || word(at + 1) > (size_t)(stop - at)) {
        return NULL;
    }
    Py_ssize_t count = word(at + 1);
    at += 5;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t n = 0; list != NULL && at != NULL && n < count; n++) {
        PyObject *item;
        const unsigned char *next = read_field_at(n, at, stop, &item);
        if (next == NULL && PyErr_Occurred() == NULL) {
            next = read_value(at, stop, depth, &item);
        }
        at = next;
        if (at != NULL) {
            PyList_SetItem(list, n, item);
        }
    }
    if (list == NULL || at == NULL) {
        Py_DecRef(list);
        return NULL;
    }
    *value = list;
    return at;
}

static const unsigned char *read_tuple(
    const unsigned char *at, const unsigned char *stop, int depth, PyObject **value)
{
    if (stop - at < 2) {
        return NULL;
    }
    Py_ssize_t count = at[1];
    at += 2;
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t n = 0; tuple != NULL && at != NULL && n < count; n++) {
        PyObject *item;
        at = read_value(at, stop, depth, &item);
        if (at != NULL) {
            PyTuple_SetItem(tuple, n, item);
        }
    }
    if (tuple == NULL || at == NULL) {
        Py_DecRef(tuple);
        return NULL;
    }
    *value = tuple;
    return at;
}

static const unsigned char *read_dict(
    const unsigned char *at, const unsigned char *stop, int depth, PyObject **value)
{
    PyObject *dict = PyDict_New();
    at++;
    while (dict != NULL && at != NULL && at < stop && *at != '0') {
        const char *name;
        Py_ssize_t size;
        at = read_text(at, stop, &name, &size);
        PyObject *key = at == NULL ? NULL : key_object(name, size), *item = NULL;
        at = key == NULL ? NULL : read_value(at, stop, depth, &item);
        if (at != NULL && PyDict_SetItem(dict, key, item) < 0) {
            at = NULL;
        }
        Py_DecRef(key);
        Py_DecRef(item);
    }
    if (dict == NULL || at == NULL || at >= stop) {
        Py_DecRef(dict);
        return NULL;
    }
    *value = dict;
    return at + 1;
}

/* Any value: sets `value`, and gives the byte behind it; NULL if it is of another form or there is
 * an exception. */
static const unsigned char *read_value(
    const unsigned char *at, const unsigned char *stop, int depth, PyObject **value)
{
    const unsigned char *bytes;
    const char *text;
    Py_ssize_t size;
    *value = NULL;
    if (at >= stop || depth == MAX_DEPTH) {
        return NULL;
    }
    switch (*at) {
    case 'z':
    case 'a':
    case 'u':
        at = read_text(at, stop, &text, &size);
        if (at != NULL) {
            *value = PyUnicode_FromStringAndSize(text, size);
        }
        break;
    case 's':
        at = read_bytes(at, stop, &bytes, &size);
        if (at != NULL) {
            *value = PyBytes_FromStringAndSize((const char *)bytes, size);
        }
        break;
    case 'i':
        if (stop - at < 5) {
            return NULL;
        }
        *value = PyLong_FromLong((int32_t)word(at + 1));
        at += 5;
        break;
    case 'N':
        *value = none();
        at++;
        break;
    case ')':
        return read_tuple(at, stop, depth + 1, value);
    case '[':
        return read_list(at, stop, depth + 1, value);
    case '{':
        return read_dict(at, stop, depth + 1, value);
    default:
        return NULL;
    }
    return *value == NULL ? NULL : at;
}

/* Whether a value cannot change, nor what it holds. */
static int is_constant(PyObject *value)
{
    if (!is_exactly(value, &PyTuple_Type)) {
        return !is_exactly(value, &PyList_Type) && !is_exactly(value, &PyDict_Type);
    }
    int is_all = 1;
    for (Py_ssize_t n = 0; is_all && n < PyTuple_Size(value); n++) {
        PyObject *item = PyTuple_GetItem(value, n);
        is_all = !is_exactly(item, &PyTuple_Type) && is_constant(item);
    }
    return is_all;
}

/* An entry whose value is another one than before: sets it in `scope`, and keeps it. */
static const unsigned char *read_changed(
    Kept *kept, const unsigned char *at, const unsigned char *stop, PyObject *scope)
{
    PyObject *value;
    const unsigned char *next = read_value(at + kept->key_size, stop, 1, &value);
    if (next == NULL) {
        return NULL;
    }
    kept->size = 0;
    int done = PyDict_SetItem(scope, kept->object, value) == 0;
    if (done && is_constant(value)) {
        done = PyDict_SetItem(kept_scope, kept->object, value) == 0;
        if (done) {
            keep_bytes(kept, at, next - at);
        }
    }
    Py_DecRef(value);
    return done ? next : NULL;
}

/* A scope with the same keys as the one before; NULL, perhaps with an exception, if it is none. */
static PyObject *read_alike(const unsigned char *at, const unsigned char *stop)
{
    PyObject *scope = kept_scope == NULL ? NULL : PyDict_Copy(kept_scope);
    for (int n = 0; scope != NULL && at != NULL && n < entry_count; n++) {
        Kept *kept = &entries[n];
        if (begins_with(at, stop, kept)) {
            at += kept->size;
        } else if (stop - at > kept->key_size
            && memcmp(at, kept->bytes, (size_t)kept->key_size) == 0) {
            at = read_changed(kept, at, stop, scope);
        } else {
            at = NULL;
        }
    }
    if (scope != NULL && (at == NULL || at + 1 != stop || *at != '0')) {
        Py_DecRef(scope);
        scope = NULL;
    }
    return scope;
}

/* Keeps the key of the entry that these bytes begin with, in place `n`; gives the next entry, or
 * NULL if it cannot be kept. */
static const unsigned char *keep_key(int n, const unsigned char *at, const unsigned char *stop)
{
    const char *name;
    Py_ssize_t size;
    Kept *kept = &entries[n];
    const unsigned char *behind_key = read_text(at, stop, &name, &size);
    if (n == MAX_ENTRIES || behind_key == NULL || behind_key - at > MAX_KEPT_BYTES) {
        return NULL;
    }
    PyObject *key = key_object(name, size), *value, *before = kept->object;
    if (key == NULL) {
        return NULL;
    }
    kept->key_size = behind_key - at;
    kept->size = 0;
    memcpy(kept->bytes, at, (size_t)kept->key_size);
    kept->object = key;
    Py_DecRef(before);
    const unsigned char *next = read_value(behind_key, stop, 1, &value);
    if (next != NULL) {
        Py_DecRef(value);
    }
    return next != NULL && PyDict_SetItem(kept_scope, key, &_Py_NoneStruct) == 0 ? next : NULL;
}

/* Keeps the keys of a scope, and places for what the server does not send. */
static void keep_keys(const unsigned char *at, const unsigned char *stop)
{
    static const int added[] = {NAME_ASGI, NAME_STATE, NAME_EXTENSIONS};
    PyObject *before = kept_scope;
    int count = 0;
    kept_scope = PyDict_New();
    Py_DecRef(before);
    if (kept_scope == NULL) {
        at = NULL;
    }
    while (at != NULL && at < stop && *at != '0') {
        at = keep_key(count, at, stop);
        count++;
    }
    /* A key that comes twice has one place. */
    int is_kept = at != NULL && PyDict_Size(kept_scope) == count;
    for (int n = 0; is_kept && n < 3; n++) {
        is_kept = PyDict_SetItem(kept_scope, names[added[n]], &_Py_NoneStruct) == 0;
    }
    entry_count = is_kept ? count : 0;
    if (!is_kept) {
        PyObject *unfit = kept_scope;
        kept_scope = NULL;
        Py_DecRef(unfit);
        PyErr_Clear();
    }
}

PyObject *read_scope(const unsigned char *at, const unsigned char *stop)
{
    PyObject *scope;
    if (at >= stop || *at != '{') {
        return NULL;
    }
    scope = read_alike(at + 1, stop);
    if (scope != NULL) {
        return scope;
    }
    PyErr_Clear();
    if (read_value(at, stop, 0, &scope) != stop) {
        Py_DecRef(scope);
        return NULL;
    }
    keep_keys(at + 1, stop);
    return scope;
}
