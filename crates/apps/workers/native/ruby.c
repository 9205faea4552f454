/* The hot path of a Rack worker: takes plain requests off a slot, makes their environments, and
 * sends the usual response, an array of one String, in one frame. The scripts call the application
 * in between. Everything else is left to `wire.rb` and `response.rb`, which share the state of the
 * slot with this file: its instance variables. Bytes that have come are in memory of this file. The
 * slot's buffer gets them when the scripts are to receive, or look for a CANCEL (`hand_over`), and
 * has them until this file receives again.
 *
 * Invariants:
 * - A frame that is not plain (whole, no flags) is not touched: `receive` returns nil, and the
 *   scripts take it.
 * - What the server can see is what the scripts would have sent (one table of tests runs on both).
 * - Ruby is released while this waits for the server. Bytes that came stay, whatever an interrupt
 *   raises then.
 * - A frame that was begun is finished, whatever an interrupt raises meanwhile.
 * - A length is compared with its bound before it is used; no byte of a frame is trusted.
 * - A process that the application has forked answers nothing.
 * - Memory of Ruby's objects is only read. No Ruby code runs, no other thread, and no collection,
 *   between the look at it and the use of it.
 */

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#include "ruby_api.h"

enum {
    REQUEST = 1,
    HEAD = 17,
    FLAG_END = 1,
    MAX_PAYLOAD_BYTES = 64 << 20,
    BUFFER_BYTES = 64 << 10,
    FRAME_HEADER = 8,
    HEAD_PREFIX = 16,
    /* Larger heads and bodies are left to the scripts. */
    MAX_HEAD_BYTES = 16 << 10,
    MAX_BODY_BYTES = 64 << 10,
    MAX_STRINGS = 2000,
    OUTGOING_BYTES = HEAD_PREFIX + MAX_HEAD_BYTES + MAX_BODY_BYTES,
    COMMON_NAMES = 9,
    KEY_PLACES = 256,
    MAX_KEY = 64,
    MIN_STATUS = 200,
    MAX_STATUS = 599,
};

/* One slot as this file sees it. */
typedef struct {
    VALUE slot, base, input_type, hijacker_type, input;
    int fd, error, is_rack_3;
    /* Whether `incoming` has the bytes that have come, from `start` to `limit`. Else the slot's
     * buffer has them. */
    int holds_bytes;
    /* Whether the slot's thread waits for more of them, without Ruby. */
    int is_waiting;
    long start, limit, seq;
    /* When the last request was taken. */
    int64_t started;
    /* Bytes of `outgoing` that are sent, and all. They differ when an interrupt has raised: the
     * rest leaves before anything else is sent or received. */
    long sent, size;
    unsigned char incoming[BUFFER_BYTES + 1], outgoing[OUTGOING_BYTES];
} PlainSlot;

/* What the scripts tell: see `setup`. */
static VALUE nil_value, true_value, false_value, status_200, common_names;

/* Names of variables, each in the place of its hash: clients choose some, so a new one takes the
 * place of the old one. The strings are in `keys`, an Array. */
static VALUE keys;
static struct {
    unsigned char size;
    char text[MAX_KEY];
} key_texts[KEY_PLACES];

static VALUE input_key, hijack_key, finished_key;
static ID id_start, id_limit, id_scanned_to, id_buffer, id_seq, id_ended_seq, id_env, id_hijacked,
    id_has_other_sender, id_has_streamed_body, id_is_pull_pending, id_request, id_slot, id_intern;

/* Whether the application has forked this process. */
static int is_forked;

static uint32_t word(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_word(unsigned char *at, uint32_t value)
{
    for (int n = 0; n < 4; n++) {
        at[n] = (unsigned char)(value >> 8 * n);
    }
}

static int64_t now_micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000 + now.tv_nsec / 1000;
}

static long get_number(VALUE slot, ID name) { return rb_num2long(rb_ivar_get(slot, name)); }

static void set_number(VALUE slot, ID name, long value)
{
    rb_ivar_set(slot, name, rb_int2inum(value));
}

/* ---- slots ---- */

static void mark_slot(void *self)
{
    const PlainSlot *plain = self;
    rb_gc_mark(plain->slot);
    rb_gc_mark(plain->base);
    rb_gc_mark(plain->input_type);
    rb_gc_mark(plain->hijacker_type);
    rb_gc_mark(plain->input);
}

static void free_slot(void *self) { ruby_xfree(self); }

static size_t size_of_slot(const void *self)
{
    (void)self;
    return sizeof(PlainSlot);
}

static const rb_data_type_t slot_type = {
    .name = "PenstockWorker::Native::PlainSlot",
    .mark = mark_slot,
    .free = free_slot,
    .size = size_of_slot,
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static PlainSlot *plain_slot(VALUE self) { return rb_check_typeddata(self, &slot_type); }

/* PlainSlot.new(slot, descriptor, base, class of inputs, class of hijackers, Rack's version) */
static VALUE new_slot(VALUE type, VALUE slot, VALUE fd, VALUE base, VALUE input_type,
    VALUE hijacker_type, VALUE rack_major)
{
    int number = (int)rb_num2long(fd), is_rack_3 = rb_num2long(rack_major) >= 3;
    PlainSlot *plain = ruby_xcalloc(1, sizeof *plain);
    plain->slot = slot;
    plain->base = base;
    plain->input_type = input_type;
    plain->hijacker_type = hijacker_type;
    plain->input = nil_value;
    plain->fd = number;
    plain->is_rack_3 = is_rack_3;
    return rb_data_typed_object_wrap(type, plain, &slot_type);
}

/* The stream of the request's body, for the scripts. */
static VALUE slot_input(VALUE self) { return plain_slot(self)->input; }

/* When the last request was taken, in microseconds. */
static VALUE slot_started(VALUE self) { return rb_int2inum((long)plain_slot(self)->started); }

/* Gives the slot the bytes that have come. */
static void give_bytes(PlainSlot *plain)
{
    if (!plain->holds_bytes) {
        return;
    }
    VALUE slot = plain->slot;
    long size = plain->limit - plain->start;
    /* One byte more, as `pad_buffer` of the scripts. */
    plain->incoming[plain->limit] = 0;
    rb_ivar_set(slot, id_buffer, rb_str_new((char *)plain->incoming + plain->start, size + 1));
    set_number(slot, id_start, 0);
    set_number(slot, id_scanned_to, 0);
    set_number(slot, id_limit, size);
    plain->holds_bytes = 0;
}

/* Takes them back; false if there are more than this file has room for, or if a piece of a body is
 * to come among them. */
static int take_bytes(PlainSlot *plain)
{
    if (plain->holds_bytes) {
        return 1;
    }
    VALUE slot = plain->slot, buffer = rb_ivar_get(slot, id_buffer);
    long start = get_number(slot, id_start), size = get_number(slot, id_limit) - start;
    if (rb_ivar_get(slot, id_is_pull_pending) != false_value || start < 0 || size < 0
        || size > BUFFER_BYTES || rb_str_strlen(buffer) < start + size) {
        return 0;
    }
    memcpy(plain->incoming, rb_string_value_ptr(&buffer) + start, size);
    plain->start = 0;
    plain->limit = size;
    plain->seq = get_number(slot, id_seq);
    rb_ivar_set(slot, id_has_streamed_body, false_value);
    plain->holds_bytes = 1;
    return 1;
}

/* hand_over: gives the slot's buffer what has come behind the request. False if there is no
 * request: the slot's thread waits for one, and what comes is that thread's. */
static VALUE hand_over(VALUE self)
{
    PlainSlot *plain = plain_slot(self);
    if (plain->is_waiting) {
        return false_value;
    }
    give_bytes(plain);
    return true_value;
}

/* ---- environments ---- */

/* The next of the strings that NUL separates: sets `text` and `size`, and `at` to the byte behind
 * the NUL, or to NULL behind the last. False if there is none. */
static int next_text(
    const unsigned char **at, const unsigned char *stop, const char **text, long *size)
{
    if (*at == NULL) {
        return 0;
    }
    const unsigned char *end = memchr(*at, 0, stop - *at);
    *text = (const char *)*at;
    *size = (end == NULL ? stop : end) - *at;
    *at = end == NULL ? NULL : end + 1;
    return 1;
}

/* A name as a String that Ruby keeps once; most are the same in each request. */
static VALUE key_string(const char *text, long size)
{
    if (size > MAX_KEY || size == 0) {
        return rb_str_new(text, size);
    }
    uint32_t hash = 2166136261u;
    for (long n = 0; n < size; n++) {
        hash = (hash ^ (unsigned char)text[n]) * 16777619u;
    }
    unsigned place = (hash ^ hash >> 16) % KEY_PLACES;
    if (key_texts[place].size == size && memcmp(key_texts[place].text, text, size) == 0) {
        return rb_ary_entry(keys, place);
    }
    VALUE key = rb_funcallv(rb_str_new(text, size), id_intern, 0, NULL);
    rb_ary_store(keys, place, key);
    key_texts[place].size = (unsigned char)size;
    memcpy(key_texts[place].text, text, size);
    return key;
}

/* The environment of a request: `base` with what was sent. False if the scripts must read it. */
static int read_environment(
    const PlainSlot *plain, const unsigned char *at, const unsigned char *stop, VALUE *environment)
{
    const char *name, *value;
    long name_size, value_size;
    VALUE env = rb_hash_dup(plain->base);
    for (int n = 0; n < COMMON_NAMES; n++) {
        if (!next_text(&at, stop, &value, &value_size)) {
            return 0;
        }
        if (value_size > 0) {
            rb_hash_aset(env, rb_ary_entry(common_names, n), rb_str_new(value, value_size));
        }
    }
    while (next_text(&at, stop, &name, &name_size)) {
        if (!next_text(&at, stop, &value, &value_size)) {
            return 0;
        }
        VALUE key = key_string(name, name_size);
        rb_hash_aset(env, key, rb_str_new(value, value_size));
    }
    *environment = env;
    return 1;
}

/* ---- the rest of a frame ---- */

static void *send_rest(void *argument)
{
    PlainSlot *plain = argument;
    const unsigned char *rest = plain->outgoing + plain->sent;
    long sent = send(plain->fd, rest, plain->size - plain->sent, MSG_NOSIGNAL);
    plain->error = sent < 0 ? errno : 0;
    plain->sent += sent > 0 ? sent : 0;
    if (plain->error == EAGAIN) {
        /* The application has made the descriptor non-blocking. */
        struct pollfd room = {.fd = plain->fd, .events = POLLOUT};
        poll(&room, 1, -1);
    }
    return NULL;
}

/* Sends the rest of the frame in `outgoing`, without Ruby; false if the server has gone. Raises
 * what an interrupt raises. */
static int finish_frame(PlainSlot *plain)
{
    while (plain->sent < plain->size) {
        /* It does not send if an interrupt is due. */
        plain->error = EINTR;
        rb_thread_call_without_gvl2(send_rest, plain, RUBY_UBF_IO, NULL);
        if (plain->error != 0 && plain->error != EINTR && plain->error != EAGAIN) {
            plain->sent = plain->size;
            return 0;
        }
        rb_thread_check_ints();
    }
    return 1;
}

/* ---- requests ---- */

static void *receive_bytes(void *argument)
{
    PlainSlot *plain = argument;
    ssize_t got = recv(plain->fd, plain->incoming, BUFFER_BYTES, 0);
    plain->error = got < 0 ? errno : 0;
    plain->start = 0;
    plain->limit = got > 0 ? got : 0;
    return NULL;
}

/* Receives at least one byte where there is none, without Ruby. False at the end, and for what the
 * scripts look at. Raises what an interrupt raises. */
static int fill_incoming(PlainSlot *plain)
{
    plain->is_waiting = 1;
    while (plain->start == plain->limit) {
        /* It does not receive if an interrupt is due. */
        plain->error = EINTR;
        rb_thread_call_without_gvl2(receive_bytes, plain, RUBY_UBF_IO, NULL);
        if (plain->start == plain->limit && plain->error != EINTR) {
            break;
        }
        rb_thread_check_ints();
    }
    plain->is_waiting = 0;
    return plain->start < plain->limit;
}

/* A plain request at the front of what has come: its environment and the bytes of its body. Gives
 * the size of the frame; 0 if the scripts must take it. */
static long read_request(const PlainSlot *plain, VALUE *environment, VALUE *body)
{
    const unsigned char *frame = plain->incoming + plain->start;
    long here = plain->limit - plain->start;
    if (here < FRAME_HEADER + 4) {
        return 0;
    }
    uint32_t length = word(frame + 4), environment_size = word(frame + 8);
    if (frame[0] != REQUEST || frame[1] || frame[2] || frame[3] || length > MAX_PAYLOAD_BYTES
        || length < 4 || environment_size > length - 4 || here - FRAME_HEADER < (long)length) {
        return 0;
    }
    const unsigned char *text = frame + FRAME_HEADER + 4, *rest = text + environment_size;
    if (!read_environment(plain, text, rest, environment)) {
        return 0;
    }
    *body = rb_str_new((const char *)rest, length - 4 - environment_size);
    return FRAME_HEADER + (long)length;
}

/* receive: the environment of the next request; nil if the scripts are to receive it. */
static VALUE slot_receive(VALUE self)
{
    PlainSlot *plain = plain_slot(self);
    VALUE slot = plain->slot, environment, body;
    plain->input = nil_value;
    /* An interrupt may have ended the last wait. */
    plain->is_waiting = 0;
    if (is_forked || !finish_frame(plain) || !take_bytes(plain)) {
        return nil_value;
    }
    int has_bytes = fill_incoming(plain);
    int64_t started = now_micros();
    long size = has_bytes ? read_request(plain, &environment, &body) : 0;
    if (size == 0) {
        give_bytes(plain);
        return nil_value;
    }
    plain->start += size;
    plain->started = started;
    VALUE request = rb_int2inum(++plain->seq);
    rb_ivar_set(slot, id_seq, request);
    rb_ivar_set(slot, id_env, environment);
    plain->input = rb_class_new_instance(1, &body, plain->input_type);
    rb_hash_aset(environment, input_key, plain->input);
    VALUE hijacker = rb_obj_alloc(plain->hijacker_type);
    rb_ivar_set(hijacker, id_slot, slot);
    rb_ivar_set(hijacker, id_request, request);
    rb_hash_aset(environment, hijack_key, hijacker);
    if (plain->is_rack_3) {
        rb_hash_aset(environment, finished_key, rb_ary_new());
    }
    return environment;
}

/* ---- responses ---- */

/* A head as it is written to `outgoing`. */
typedef struct {
    unsigned char *at, *stop;
    int count, is_plain;
} HeadWriter;

/* A String that travels as it is: ASCII without control characters but tabs. NULL for any other. */
static const char *plain_text(VALUE *object, long *size)
{
    if (rb_obj_class(*object) != rb_cString || !rb_enc_str_asciionly_p(*object)) {
        return NULL;
    }
    /* One byte a character. */
    *size = rb_str_strlen(*object);
    const char *text = rb_string_value_ptr(object);
    for (long n = 0; n < *size; n++) {
        unsigned char byte = (unsigned char)text[n];
        if (byte == 127 || (byte < 32 && byte != '\t')) {
            return NULL;
        }
    }
    return text;
}

static int push_text(HeadWriter *head, const char *text, long size)
{
    if (text == NULL || size >= head->stop - head->at) {
        return 0;
    }
    *head->at++ = 0;
    memcpy(head->at, text, size);
    head->at += size;
    head->count++;
    return 1;
}

static int push_field(VALUE name, VALUE value, VALUE argument)
{
    HeadWriter *head = (HeadWriter *)argument;
    long name_size, value_size;
    const char *text = plain_text(&name, &name_size);
    if (text == NULL || (name_size >= 5 && memcmp(text, "rack.", 5) == 0)
        || head->count > MAX_STRINGS || !push_text(head, text, name_size)) {
        head->is_plain = 0;
        return ST_STOP;
    }
    text = plain_text(&value, &value_size);
    if (!push_text(head, text, value_size)) {
        head->is_plain = 0;
        return ST_STOP;
    }
    return ST_CONTINUE;
}

/* Writes status and fields, joined by NUL, behind the place of the frame's numbers. False if the
 * scripts must look at them. */
static int write_head(PlainSlot *plain, VALUE status, VALUE headers, HeadWriter *head)
{
    /* Small numbers are a row of odd values: see `setup`. */
    VALUE above = status - status_200;
    if (status < status_200 || above % 2 != 0 || above > 2 * (MAX_STATUS - MIN_STATUS)
        || rb_obj_class(headers) != rb_cHash) {
        return 0;
    }
    int number = MIN_STATUS + (int)(above / 2);
    head->at = plain->outgoing + HEAD_PREFIX;
    head->stop = head->at + MAX_HEAD_BYTES;
    head->count = head->is_plain = 1;
    for (int unit = 100; unit > 0; unit /= 10) {
        *head->at++ = (unsigned char)('0' + number / unit % 10);
    }
    rb_hash_foreach(headers, push_field, (VALUE)head);
    return head->is_plain;
}

/* Sends the frame in `outgoing`; false if the server has gone. Bytes that the socket does not take
 * at once are left to `finish_frame`. */
static int send_frame(PlainSlot *plain, long size)
{
    plain->size = size;
    long sent = send(plain->fd, plain->outgoing, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        plain->sent = size;
        return 0;
    }
    plain->sent = sent > 0 ? sent : 0;
    return finish_frame(plain);
}

/* respond(status, headers, body): true if the response was sent, nil if the server has gone, false
 * if the scripts must send it. */
static VALUE slot_respond(VALUE self, VALUE status, VALUE headers, VALUE body)
{
    PlainSlot *plain = plain_slot(self);
    VALUE slot = plain->slot;
    HeadWriter head;
    if (is_forked || rb_obj_class(body) != rb_cString
        || rb_ivar_get(slot, id_hijacked) != false_value
        || rb_ivar_get(slot, id_has_other_sender) != false_value
        || !write_head(plain, status, headers, &head)) {
        return false_value;
    }
    /* Where the character behind the longest body would begin, or all of its bytes. */
    long body_size = rb_str_offset(body, MAX_BODY_BYTES + 1);
    if (body_size > MAX_BODY_BYTES) {
        return false_value;
    }
    /* From here on other threads see that the response has ended, as they need Ruby. */
    set_number(slot, id_ended_seq, plain->seq);
    unsigned char *prefix = plain->outgoing;
    uint32_t head_size = (uint32_t)(head.at - prefix - HEAD_PREFIX);
    memcpy(head.at, rb_string_value_ptr(&body), body_size);
    prefix[0] = HEAD;
    prefix[1] = FLAG_END;
    prefix[2] = (unsigned char)head.count;
    prefix[3] = (unsigned char)(head.count >> 8);
    put_word(prefix + 4, (uint32_t)(8 + head_size + body_size));
    put_word(prefix + 8, (uint32_t)(now_micros() - plain->started));
    put_word(prefix + 12, head_size);
    return send_frame(plain, HEAD_PREFIX + head_size + body_size) ? true_value : nil_value;
}

/* ---- the module ---- */

/* after_fork: the application has forked this process. */
static VALUE after_fork(VALUE module)
{
    (void)module;
    is_forked = 1;
    return nil_value;
}

static ID intern(const char *name) { return rb_intern2(name, (long)strlen(name)); }

static void keep(VALUE *place, VALUE value)
{
    /* In this order: it allocates, and a collection then would not find `value` in `place`. */
    rb_gc_register_address(place);
    *place = value;
}

/* setup(nil, true, false, common names, names of input, hijack and callbacks): values that no
 * function gives. True if small numbers are as this file takes them; false also the second time. */
static VALUE setup(VALUE module, VALUE nothing, VALUE yes, VALUE no, VALUE names, VALUE input,
    VALUE hijack, VALUE finished)
{
    (void)module;
    if (keys != 0) {
        return no;
    }
    nil_value = nothing;
    true_value = yes;
    false_value = no;
    keep(&common_names, names);
    keep(&input_key, input);
    keep(&hijack_key, hijack);
    keep(&finished_key, finished);
    keep(&keys, rb_ary_new());
    status_200 = rb_int2inum(MIN_STATUS);
    for (long n = MIN_STATUS; n <= MAX_STATUS; n++) {
        if (rb_int2inum(n) != status_200 + 2 * (VALUE)(n - MIN_STATUS)) {
            return no;
        }
    }
    return yes;
}

/* Called when Ruby loads this file. */
__attribute__((visibility("default"))) void Init_penstock_native(void)
{
    VALUE worker = rb_define_module("PenstockWorker");
    VALUE module = rb_define_module_under(worker, "Native");
    VALUE type = rb_define_class_under(module, "PlainSlot", rb_cObject);
    id_start = intern("@start");
    id_limit = intern("@limit");
    id_scanned_to = intern("@scanned_to");
    id_buffer = intern("@buffer");
    id_seq = intern("@seq");
    id_ended_seq = intern("@ended_seq");
    id_env = intern("@env");
    id_hijacked = intern("@hijacked");
    id_has_other_sender = intern("@has_other_sender");
    id_has_streamed_body = intern("@has_streamed_body");
    id_is_pull_pending = intern("@is_pull_pending");
    id_slot = intern("@slot");
    id_request = intern("@request");
    id_intern = intern("-@");
    rb_undef_alloc_func(type);
    rb_define_singleton_method(module, "setup", (any_function)setup, 7);
    rb_define_singleton_method(module, "after_fork", (any_function)after_fork, 0);
    rb_define_singleton_method(type, "new", (any_function)new_slot, 6);
    rb_define_method(type, "receive", (any_function)slot_receive, 0);
    rb_define_method(type, "respond", (any_function)slot_respond, 3);
    rb_define_method(type, "input", (any_function)slot_input, 0);
    rb_define_method(type, "started", (any_function)slot_started, 0);
    rb_define_method(type, "hand_over", (any_function)hand_over, 0);
}
