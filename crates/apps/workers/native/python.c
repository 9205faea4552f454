/* The native part of the Python worker: the module, and the hot path of a WSGI worker, which takes
 * plain requests off a slot, calls the application and answers with the usual response, a list of one
 * `bytes`. Everything else is left to `wire.py` and `wsgi.py`, which share the state of slots and
 * responses with this file and do all of it without it. `asgi_*.c` is the same for ASGI.
 *
 * Invariants:
 * - A frame that is not plain (whole, no flags, no upgrade) is not touched: `serve` returns, and the
 *   scripts take it.
 * - What the server can see is what the scripts would have sent (one table of tests runs on both).
 * - The interpreter is released while this waits for the server.
 * - A length is compared with its bound before it is used; no byte of a frame is trusted.
 * - A process that the application has forked answers nothing.
 */

#include <errno.h>
#include <sys/uio.h>

#include "answer_ring.h"
#include "shared.h"

enum {
    REQUEST = 1,
    HEAD = 17,
    BUFFER_BYTES = 64 << 10,
    KEY_PLACES = 256,
    MAX_KEY = 64,
};

/* The state of `wire.Slot` that both sides use. */
typedef struct {
    PyObject head;
    Py_ssize_t start, end, seq, ended_seq, hijacked_seq, noticed_seq, scanned_to;
    PyObject *buffer;
    char has_other_sender, has_streamed_body, is_pull_pending, may_have_ring;
    AnswerRing ring;
} SlotState;

/* The state of `wsgi.Response`. */
typedef struct {
    PyObject head;
    PyObject *slot, *connection, *head_bytes, *headers;
    long long started;
    int string_count;
    char is_finished, is_head_sent;
} ResponseState;

/* Names of variables, each in the place of its hash: clients choose some, so a new one takes the
 * place of the old one. */
static PyObject *keys[KEY_PLACES];

unsigned forks;

static PyObject *body_key;

/* ---- environments ---- */

PyObject *key_object(const char *text, Py_ssize_t size)
{
    if (size > MAX_KEY || size == 0) {
        return PyUnicode_FromStringAndSize(text, size);
    }
    PyObject **place = &keys[place_of(text, size, KEY_PLACES)];
    if (*place != NULL) {
        Py_ssize_t known_size;
        const char *known = PyUnicode_AsUTF8AndSize(*place, &known_size);
        if (known != NULL && known_size == size && memcmp(known, text, size) == 0) {
            Py_IncRef(*place);
            return *place;
        }
        PyErr_Clear();
        Py_DecRef(*place);
    }
    *place = PyUnicode_FromStringAndSize(text, size);
    if (*place != NULL) {
        Py_IncRef(*place);
    }
    return *place;
}

/* The environment of a request: `base` with what was sent. NULL without an exception if the scripts
 * must read it, with one if Python is out of memory. */
static PyObject *read_environ(PyObject *base, const unsigned char *at, const unsigned char *stop)
{
    if (at >= stop || *at++ != '{') {
        return NULL;
    }
    PyObject *environ = PyDict_Copy(base);
    while (environ != NULL && at != NULL && at < stop && *at != '0') {
        const char *name, *value;
        Py_ssize_t name_size, value_size;
        at = read_text(at, stop, &name, &name_size);
        at = at == NULL ? NULL : read_text(at, stop, &value, &value_size);
        if (at == NULL || (name_size == 12 && memcmp(name, "HTTP_UPGRADE", 12) == 0)) {
            at = NULL;
            break;
        }
        PyObject *key = key_object(name, name_size);
        PyObject *text = key == NULL ? NULL : PyUnicode_FromStringAndSize(value, value_size);
        int failed = text == NULL || PyDict_SetItem(environ, key, text) < 0;
        Py_DecRef(key);
        Py_DecRef(text);
        if (failed) {
            Py_DecRef(environ);
            return NULL;
        }
    }
    if (environ != NULL && (at == NULL || at + 1 != stop)) {
        Py_DecRef(environ);
        return NULL;
    }
    return environ;
}

/* ---- heads ---- */

/* Text that travels as it is: ASCII without control characters but tabs. NULL for any other. */
static const char *plain_text(PyObject *object, Py_ssize_t *size)
{
    if (!is_exactly(object, &PyUnicode_Type)) {
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, size);
    if (text == NULL) {
        PyErr_Clear();
        return NULL;
    }
    for (Py_ssize_t n = 0; n < *size; n++) {
        unsigned char byte = (unsigned char)text[n];
        if (byte >= 127 || (byte < 32 && byte != '\t')) {
            return NULL;
        }
    }
    return text;
}

/* Status and fields joined by NUL, with how many strings they are; NULL without an exception if the
 * scripts must look at them. */
static PyObject *join_head(PyObject *status, PyObject *headers, int *count)
{
    Py_ssize_t size, total = 0, fields = PyList_Size(headers);
    if (fields > 1000 || plain_text(status, &size) == NULL || size > MAX_HEAD_BYTES) {
        return NULL;
    }
    total = size;
    for (Py_ssize_t n = 0; n < fields; n++) {
        PyObject *field = PyList_GetItem(headers, n);
        if (!is_exactly(field, &PyTuple_Type) || PyTuple_Size(field) != 2) {
            return NULL;
        }
        for (int part = 0; part < 2; part++) {
            if (plain_text(PyTuple_GetItem(field, part), &size) == NULL) {
                return NULL;
            }
            total += 1 + size;
            if (total > MAX_HEAD_BYTES) {
                return NULL;
            }
        }
    }
    PyObject *head = PyBytes_FromStringAndSize(NULL, total);
    if (head == NULL) {
        return NULL;
    }
    char *at = PyBytes_AsString(head);
    const char *text = PyUnicode_AsUTF8AndSize(status, &size);
    memcpy(at, text, size);
    at += size;
    for (Py_ssize_t n = 0; n < fields; n++) {
        PyObject *field = PyList_GetItem(headers, n);
        for (int part = 0; part < 2; part++) {
            text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(field, part), &size);
            *at++ = 0;
            memcpy(at, text, size);
            at += size;
        }
    }
    *count = (int)(1 + 2 * fields);
    return head;
}

/* PEP 3333's `start_response`. What is unusual goes to `Response._start_checked`. */
static PyObject *start_response(PyObject *self, PyObject *args, PyObject *named)
{
    ResponseState *response = (ResponseState *)self;
    Py_ssize_t count = PyTuple_Size(args);
    int is_plain = count == 2 || (count == 3 && PyTuple_GetItem(args, 2) == &_Py_NoneStruct);
    if (named == NULL && is_plain && response->head_bytes == NULL) {
        PyObject *headers = PyTuple_GetItem(args, 1);
        if (is_exactly(headers, &PyList_Type)) {
            PyObject *head = join_head(PyTuple_GetItem(args, 0), headers, &response->string_count);
            if (head != NULL) {
                response->head_bytes = head;
                response->headers = headers;
                Py_IncRef(headers);
                /* It is callable as `write`. */
                Py_IncRef(self);
                return self;
            }
            PyErr_Clear();
        }
    }
    PyObject *checked = PyObject_GetAttrString(self, "_start_checked");
    if (checked == NULL) {
        return NULL;
    }
    PyObject *result = PyObject_Call(checked, args, named);
    Py_DecRef(checked);
    return result;
}

static PyMethodDef response_methods[] = {
    {"start_response", (PyCFunction)(void (*)(void))start_response, METH_VARARGS | METH_KEYWORDS,
        "start_response($self, status, headers, exc_info=None)\n--\n\n"
        "The callable that PEP 3333 hands to the application."},
    {0},
};

/* ---- sockets ---- */

/* Receives at least one byte, without the interpreter; 0 at the end, -1 with an exception of a signal
 * handler: one that is due runs before this waits. */
static Py_ssize_t receive(int fd, char *buffer, size_t size)
{
    while (PyErr_CheckSignals() == 0) {
        void *state = PyEval_SaveThread();
        Py_ssize_t got = recv(fd, buffer, size, 0);
        int error = errno;
        PyEval_RestoreThread(state);
        if (got >= 0) {
            return got;
        }
        if (error != EINTR) {
            return 0;
        }
    }
    return -1;
}

/* Sends all parts; false if the server has gone. What the socket does not take at once waits without
 * the interpreter. */
static int send_parts(int fd, struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    void *state = NULL;
    int done = 0;
    for (;;) {
        Py_ssize_t sent = sendmsg(fd, &message, flags);
        if (sent < 0 && errno == EAGAIN && state == NULL) {
            state = PyEval_SaveThread();
            flags = MSG_NOSIGNAL;
            continue;
        }
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            break;
        }
        while (message.msg_iovlen > 0 && (size_t)sent >= message.msg_iov->iov_len) {
            sent -= message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen == 0) {
            done = 1;
            break;
        }
        message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
        message.msg_iov->iov_len -= sent;
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    return done;
}

/* ---- requests ---- */

/* What `serve` is called with. */
typedef struct {
    SlotState *slot;
    int fd;
    unsigned forks;
    PyObject *app, *base, *response_type, *input_type, *end_failed, *finish, *disconnected;
} Work;

/* A plain request at the front of the buffer, which then is taken: sets environment and body. False
 * if the scripts must take it, or with an exception. */
static int take_request(Work *work, PyObject **environ, PyObject **input)
{
    SlotState *slot = work->slot;
    Py_ssize_t here = slot->end - slot->start;
    if (here < FRAME_HEADER + 4) {
        return 0;
    }
    const unsigned char *frame =
        (const unsigned char *)PyByteArray_AsString(slot->buffer) + slot->start;
    uint32_t length = word(frame + 4), environ_size = word(frame + 8);
    if (frame[0] != REQUEST || frame[1] || frame[2] || frame[3] || length > MAX_PAYLOAD_BYTES
        || length < 4 || environ_size > length - 4
        || here - FRAME_HEADER < (Py_ssize_t)length) {
        return 0;
    }
    const unsigned char *text = frame + FRAME_HEADER + 4, *body = text + environ_size;
    Py_ssize_t body_size = length - 4 - environ_size;
    *environ = read_environ(work->base, text, body);
    if (*environ == NULL) {
        return 0;
    }
    PyObject *bytes = body_size ? PyBytes_FromStringAndSize((const char *)body, body_size) : NULL;
    *input = body_size && bytes == NULL
        ? NULL
        : PyObject_CallFunctionObjArgs(work->input_type, bytes, NULL);
    Py_DecRef(bytes);
    if (*input == NULL || PyDict_SetItem(*environ, body_key, *input) < 0) {
        Py_DecRef(*input);
        Py_DecRef(*environ);
        return 0;
    }
    slot->start += FRAME_HEADER + length;
    slot->seq++;
    slot->has_streamed_body = 0;
    return 1;
}

/* Whether a plain request waits behind this one, so that an answer on the socket follows soon. */
static int has_next(const SlotState *slot)
{
    Py_ssize_t here = slot->end - slot->start;
    if (here < FRAME_HEADER) {
        return 0;
    }
    const unsigned char *frame =
        (const unsigned char *)PyByteArray_AsString(slot->buffer) + slot->start;
    return frame[0] == REQUEST && !(frame[1] | frame[2] | frame[3])
        && here - FRAME_HEADER >= (Py_ssize_t)word(frame + 4);
}

/* Whether an answer can go through the ring; makes it where it is missing. A request that has sent
 * something by the socket is answered there, so that the server reads one behind the other. */
static int has_ring(SlotState *slot, int fd)
{
    AnswerRing *ring = &slot->ring;
    if (slot->noticed_seq == slot->seq) {
        return 0;
    }
    if (ring->memory == NULL && slot->may_have_ring && !ring->is_refused) {
        ring_make(ring, fd);
    }
    return ring->memory != NULL;
}

/* Sends the usual response in one frame. 1: sent; 0: the scripts must send it; -1: an exception. */
static int send_usual(Work *work, ResponseState *response, PyObject *result)
{
    if (!is_exactly(result, &PyList_Type) || PyList_Size(result) != 1) {
        return 0;
    }
    PyObject *body = PyList_GetItem(result, 0);
    if (!is_exactly(body, &PyBytes_Type) || response->head_bytes == NULL || response->is_head_sent
        || response->is_finished || response->connection != NULL) {
        return 0;
    }
    Py_ssize_t body_size = PyBytes_Size(body), head_size = PyBytes_Size(response->head_bytes);
    if (body_size > MAX_JOIN_BYTES) {
        return 0;
    }
    SlotState *slot = work->slot;
    if (slot->has_other_sender || slot->hijacked_seq == slot->seq) {
        return 0;
    }
    /* From here on other threads see that the response has ended, as they need the interpreter. */
    slot->ended_seq = slot->seq;
    response->is_head_sent = response->is_finished = 1;
    unsigned char prefix[16] = {HEAD, FLAG_END};
    prefix[2] = (unsigned char)response->string_count;
    prefix[3] = (unsigned char)(response->string_count >> 8);
    put_word(prefix + 4, (uint32_t)(8 + head_size + body_size));
    put_word(prefix + 8, (uint32_t)((now_nanos() - response->started) / 1000));
    put_word(prefix + 12, (uint32_t)head_size);
    size_t size = sizeof prefix + (size_t)head_size + (size_t)body_size;
    struct iovec parts[3] = {
        {prefix, sizeof prefix},
        {PyBytes_AsString(response->head_bytes), head_size},
        {PyBytes_AsString(body), body_size},
    };
    if (has_next(slot) && has_ring(slot, work->fd)
        && ring_put(&slot->ring, (uint32_t)slot->seq, parts, 3, size)) {
        return 1;
    }
    /* While the socket is full another thread may change the application's list. */
    PyObject *head = response->head_bytes;
    Py_IncRef(head);
    Py_IncRef(body);
    int sent = send_parts(work->fd, parts, 3);
    Py_DecRef(head);
    Py_DecRef(body);
    if (!sent) {
        PyErr_SetNone(work->disconnected);
        return -1;
    }
    return 1;
}

/* Calls a function of the scripts, whose result does not matter; false with an exception. */
static int call(PyObject *function, PyObject *one, PyObject *two, PyObject *three)
{
    PyObject *result = PyObject_CallFunctionObjArgs(function, one, two, three, NULL);
    Py_DecRef(result);
    return result != NULL;
}

/* Gives the exception that is set to the scripts; false if it ends the thread. */
static int end_failed(Work *work, PyObject *environ, PyObject *response)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    int done = call(work->end_failed, environ, response, value);
    Py_DecRef(type);
    Py_DecRef(value);
    Py_DecRef(traceback);
    return done;
}

/* Runs one request to its end; false with an exception that ends the thread. */
static int run_request(Work *work, PyObject *environ, ResponseState *response)
{
    PyObject *self = (PyObject *)response;
    PyObject *start = PyCFunction_NewEx(&response_methods[0], self, NULL);
    PyObject *result =
        start == NULL ? NULL : PyObject_CallFunctionObjArgs(work->app, environ, start, NULL);
    Py_DecRef(start);
    if (result == NULL) {
        return end_failed(work, environ, self);
    }
    int done = 1;
    int sent = forks == work->forks ? send_usual(work, response, result) : 0;
    if (sent < 0) {
        done = end_failed(work, environ, self);
    } else if (sent == 0) {
        done = call(work->finish, result, environ, self);
    }
    Py_DecRef(result);
    return done;
}

/* serve(slot, fd, app, base, Response, BytesIO, end_failed, finish, Disconnected): answers plain
 * requests until the next frame is none, or the server has closed the socket. */
static PyObject *serve(PyObject *module, PyObject *args)
{
    Work work;
    (void)module;
    if (!PyArg_ParseTuple(args, "OiOOOOOOO", (PyObject **)&work.slot, &work.fd, &work.app,
            &work.base, &work.response_type, &work.input_type, &work.end_failed, &work.finish,
            &work.disconnected)) {
        return NULL;
    }
    SlotState *slot = work.slot;
    work.forks = forks;
    while (forks == work.forks && !slot->is_pull_pending) {
        if (slot->start == slot->end) {
            Py_ssize_t size = PyByteArray_Size(slot->buffer);
            if (size != BUFFER_BYTES) {
                break;
            }
            slot->start = slot->end = slot->scanned_to = 0;
            Py_ssize_t got = receive(work.fd, PyByteArray_AsString(slot->buffer), size);
            if (got < 0) {
                return NULL;
            }
            if (got == 0 || forks != work.forks) {
                break;
            }
            slot->end = got;
        }
        PyObject *environ, *input;
        long long started = now_nanos();
        if (!take_request(&work, &environ, &input)) {
            /* The scripts come to the same end, and say more. */
            PyErr_Clear();
            break;
        }
        PyObject *made = PyType_GenericAlloc((PyTypeObject *)work.response_type, 0);
        int goes_on = made != NULL;
        if (goes_on) {
            ResponseState *response = (ResponseState *)made;
            response->slot = (PyObject *)slot;
            Py_IncRef(response->slot);
            response->started = started;
            goes_on = run_request(&work, environ, response);
        }
        Py_DecRef(made);
        Py_DecRef(environ);
        Py_DecRef(input);
        if (!goes_on) {
            return NULL;
        }
    }
    return none();
}

/* after_fork(): the application has forked this process. */
static PyObject *after_fork(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    forks++;
    return none();
}

/* ---- types ---- */

void free_object(PyObject *self)
{
    PyTypeObject *type = self->type;
    ((freefunc)PyType_GetSlot(type, SLOT_FREE))(self);
    Py_DecRef((PyObject *)type);
}

static void slot_dealloc(PyObject *self)
{
    Py_DecRef(((SlotState *)self)->buffer);
    ring_free(&((SlotState *)self)->ring);
    free_object(self);
}

#define SLOT_MEMBER(name, kind, field) {name, kind, offsetof(SlotState, field), 0, NULL}

static PyMemberDef slot_members[] = {
    SLOT_MEMBER("_start", MEMBER_SSIZE, start),
    SLOT_MEMBER("_end", MEMBER_SSIZE, end),
    SLOT_MEMBER("_seq", MEMBER_SSIZE, seq),
    SLOT_MEMBER("_ended_seq", MEMBER_SSIZE, ended_seq),
    SLOT_MEMBER("_hijacked_seq", MEMBER_SSIZE, hijacked_seq),
    SLOT_MEMBER("_noticed_seq", MEMBER_SSIZE, noticed_seq),
    SLOT_MEMBER("_scanned_to", MEMBER_SSIZE, scanned_to),
    SLOT_MEMBER("_buffer", MEMBER_OBJECT, buffer),
    SLOT_MEMBER("_has_other_sender", MEMBER_BOOL, has_other_sender),
    SLOT_MEMBER("_has_streamed_body", MEMBER_BOOL, has_streamed_body),
    SLOT_MEMBER("_is_pull_pending", MEMBER_BOOL, is_pull_pending),
    SLOT_MEMBER("_may_have_ring", MEMBER_BOOL, may_have_ring),
    {0},
};

static PyType_Slot slot_slots[] = {
    {SLOT_DEALLOC, (void *)slot_dealloc}, {SLOT_MEMBERS, slot_members}, {0}};

static PyType_Spec slot_spec = {
    "penstock_worker._native.SlotState", sizeof(SlotState), 0, TYPE_DEFAULT | TYPE_BASE, slot_slots};

static int response_traverse(PyObject *self, visitproc visit, void *argument)
{
    ResponseState *response = (ResponseState *)self;
    PyObject *held[] = {response->slot, response->connection, response->head_bytes,
        response->headers, (PyObject *)self->type};
    for (int n = 0; n < 5; n++) {
        int stopped = held[n] == NULL ? 0 : visit(held[n], argument);
        if (stopped) {
            return stopped;
        }
    }
    return 0;
}

static int response_clear(PyObject *self)
{
    ResponseState *response = (ResponseState *)self;
    PyObject *held[] = {
        response->slot, response->connection, response->head_bytes, response->headers};
    response->slot = response->connection = response->head_bytes = response->headers = NULL;
    for (int n = 0; n < 4; n++) {
        Py_DecRef(held[n]);
    }
    return 0;
}

static void response_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    response_clear(self);
    free_object(self);
}

#define RESPONSE_MEMBER(name, kind, field) {name, kind, offsetof(ResponseState, field), 0, NULL}

static PyMemberDef response_members[] = {
    RESPONSE_MEMBER("slot", MEMBER_OBJECT, slot),
    RESPONSE_MEMBER("connection", MEMBER_OBJECT, connection),
    RESPONSE_MEMBER("head", MEMBER_OBJECT, head_bytes),
    RESPONSE_MEMBER("headers", MEMBER_OBJECT, headers),
    RESPONSE_MEMBER("started", MEMBER_LONG_LONG, started),
    RESPONSE_MEMBER("string_count", MEMBER_INT, string_count),
    RESPONSE_MEMBER("is_finished", MEMBER_BOOL, is_finished),
    RESPONSE_MEMBER("is_head_sent", MEMBER_BOOL, is_head_sent),
    {0},
};

static PyType_Slot response_slots[] = {
    {SLOT_DEALLOC, (void *)response_dealloc},
    {SLOT_TRAVERSE, (void *)response_traverse},
    {SLOT_CLEAR, (void *)response_clear},
    {SLOT_MEMBERS, response_members},
    {SLOT_METHODS, response_methods},
    {0},
};

static PyType_Spec response_spec = {"penstock_worker._native.ResponseState",
    sizeof(ResponseState), 0, TYPE_DEFAULT | TYPE_BASE | TYPE_GC, response_slots};

static PyMethodDef functions[] = {
    {"serve", serve, METH_VARARGS, NULL},
    {"after_fork", after_fork, METH_NOARGS, NULL},
    {0},
};

static PyModuleDef definition = {
    .base = {{1, NULL}, NULL, 0, NULL},
    .name = "penstock_worker._native",
    .size = -1,
    .methods = functions,
};

/* The module: types and functions. The number is that of the stable ABI. */
__attribute__((visibility("default"))) PyObject *PyInit__native(void)
{
    PyObject *module = PyModule_Create2(&definition, 3);
    PyObject *slot = PyType_FromSpec(&slot_spec), *response = PyType_FromSpec(&response_spec);
    body_key = PyUnicode_InternFromString("wsgi.input");
    if (module == NULL || slot == NULL || response == NULL || body_key == NULL
        || PyModule_AddObjectRef(module, "SlotState", slot) < 0
        || PyModule_AddObjectRef(module, "ResponseState", response) < 0 || add_asgi(module) < 0) {
        return NULL;
    }
    return module;
}
