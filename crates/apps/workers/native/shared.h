/* What the two native parts of the Python worker share: `python.c` (WSGI) and `asgi_*.c`. */

#ifndef PENSTOCK_SHARED_H
#define PENSTOCK_SHARED_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "abi3.h"

enum {
    FLAG_END = 1,
    MAX_PAYLOAD_BYTES = 64 << 20,
    MAX_HEAD_BYTES = 256 << 10,
    MAX_JOIN_BYTES = 64 << 10,
    FRAME_HEADER = 8,
};

/* How often the application has forked this process. */
extern unsigned forks;

/* A number for a short text, below `places`. */
static inline uint32_t place_of(const void *text, Py_ssize_t size, uint32_t places)
{
    const unsigned char *at = text;
    uint64_t hash = (uint64_t)size, eight;
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&eight, at, 8);
        hash = (hash ^ eight) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    eight = 0;
    for (; size > 0; size--, at++) {
        eight = eight << 8 | *at;
    }
    hash = (hash ^ eight) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 40) % places;
}

/* A name as text; most are the same in each request. */
PyObject *key_object(const char *text, Py_ssize_t size);

/* Frees an object of a heap type, which has given up what it holds. */
void free_object(PyObject *self);

/* Adds what `asgi_*.c` has to the module; negative with an exception. */
int add_asgi(PyObject *module);

static inline uint32_t word(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void put_word(unsigned char *at, uint32_t value)
{
    for (int n = 0; n < 4; n++) {
        at[n] = (unsigned char)(value >> 8 * n);
    }
}

static inline PyObject *none(void)
{
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

static inline long long now_nanos(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline int is_seven_bit(const unsigned char *at, Py_ssize_t size)
{
    uint64_t all = 0;
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t eight;
        memcpy(&eight, at, 8);
        all |= eight;
    }
    for (; size > 0; size--, at++) {
        all |= *at;
    }
    return (all & 0x8080808080808080u) == 0;
}

/* Text of the form that `crates/wire/src/environ.rs` writes: short ASCII (`z`), ASCII (`a`), UTF-8
 * (`u`). Sets `text` and `size`; gives the byte behind it, or NULL. */
static inline const unsigned char *read_text(
    const unsigned char *at, const unsigned char *stop, const char **text, Py_ssize_t *size)
{
    if (stop - at < 2) {
        return NULL;
    }
    int is_ascii = *at != 'u';
    if (*at == 'z') {
        *size = at[1];
        at += 2;
    } else if ((*at == 'a' || *at == 'u') && stop - at >= 5) {
        uint32_t length = word(at + 1);
        if (length > MAX_PAYLOAD_BYTES) {
            return NULL;
        }
        *size = length;
        at += 5;
    } else {
        return NULL;
    }
    if (stop - at < *size) {
        return NULL;
    }
    if (is_ascii && !is_seven_bit(at, *size)) {
        return NULL;
    }
    *text = (const char *)at;
    return at + *size;
}

#endif
