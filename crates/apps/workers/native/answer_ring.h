/* Answers through memory that the server shares (PROTOCOL.md, "The ring of answers"): no system call
 * and no wake-up for an answer that another follows at once. `crates/sys/src/shared_ring.rs` reads.
 *
 * Invariants:
 * - An answer is there as a whole before the number that says so.
 * - Without room, before the server has said that it reads, or where the kernel has no such memory,
 *   nothing is written: the socket serves.
 */

#ifndef PENSTOCK_ANSWER_RING_H
#define PENSTOCK_ANSWER_RING_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    RING_BYTES = 32 << 10,
    RING_DATA_AT = 4096,
    RING_FILE_BYTES = RING_DATA_AT + RING_BYTES,
    RING_TAKEN_AT = 64,
    RING_IS_READ_AT = 128,
    RING_HEADER = 8,
    ANSWER_RING = 27,
    FLAG_HAS_FD = 2,
    SEALS = 0x1 | 0x2 | 0x4,
    ADD_SEALS = 1033,
    CLOSE_ON_EXEC_AND_SEALABLE = 0x1 | 0x2,
};

/* All zeros: not made yet. */
typedef struct {
    unsigned char *memory;
    uint32_t written;
    char is_refused;
} AnswerRing;

/* Hands the memory over; false if the socket does not take it now. */
static int ring_announce(int socket, int memory)
{
    unsigned char frame[8] = {ANSWER_RING, FLAG_HAS_FD};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec part = {frame, sizeof frame};
    struct msghdr message = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof memory);
    memcpy(CMSG_DATA(rights), &memory, sizeof memory);
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof frame;
}

/* Makes the ring of this socket; tried again only where the socket was full. */
static void ring_make(AnswerRing *ring, int socket)
{
    ring->is_refused = 1;
    int memory =
        (int)syscall(SYS_memfd_create, "penstock-answers", CLOSE_ON_EXEC_AND_SEALABLE);
    if (memory < 0) {
        return;
    }
    void *at = MAP_FAILED;
    if (ftruncate(memory, RING_FILE_BYTES) == 0 && fcntl(memory, ADD_SEALS, SEALS) == 0) {
        at = mmap(NULL, RING_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    if (at != MAP_FAILED && ring_announce(socket, memory)) {
        ring->memory = at;
        ring->is_refused = 0;
    } else if (at != MAP_FAILED) {
        ring->is_refused = errno != EAGAIN;
        munmap(at, RING_FILE_BYTES);
    }
    close(memory);
}

static void ring_free(AnswerRing *ring)
{
    if (ring->memory != NULL) {
        munmap(ring->memory, RING_FILE_BYTES);
    }
}

static void ring_copy(AnswerRing *ring, uint32_t to, const void *from, size_t size)
{
    uint32_t at = to % RING_BYTES;
    size_t first = size < RING_BYTES - at ? size : RING_BYTES - at;
    memcpy(ring->memory + RING_DATA_AT + at, from, first);
    memcpy(ring->memory + RING_DATA_AT, (const unsigned char *)from + first, size - first);
}

static uint32_t ring_number(const AnswerRing *ring, int at)
{
    return __atomic_load_n((uint32_t *)(void *)(ring->memory + at), __ATOMIC_ACQUIRE);
}

/* Writes an answer for the request of this number; false if it must go by the socket. */
static int ring_put(
    AnswerRing *ring, uint32_t number, const struct iovec *parts, int count, size_t size)
{
    if (ring_number(ring, RING_IS_READ_AT) != 1) {
        return 0;
    }
    uint32_t taken = ring_number(ring, RING_TAKEN_AT);
    uint32_t waiting = ring->written - taken;
    size_t record = (RING_HEADER + size + 7) / 8 * 8;
    if (waiting > RING_BYTES || record > RING_BYTES - waiting) {
        return 0;
    }
    uint32_t header[2] = {number, (uint32_t)size}, at = ring->written;
    ring_copy(ring, at, header, sizeof header);
    at += sizeof header;
    for (int n = 0; n < count; n++) {
        ring_copy(ring, at, parts[n].iov_base, parts[n].iov_len);
        at += (uint32_t)parts[n].iov_len;
    }
    ring->written += (uint32_t)record;
    __atomic_store_n((uint32_t *)(void *)ring->memory, ring->written, __ATOMIC_RELEASE);
    return 1;
}

#endif
