/* `receive`, and `send` of a response in one piece: the usual part of `asgi_http.HttpRequest`.
 *
 * Only objects of exactly Python's own types are looked at, and `type` of an event before anything
 * changes: whatever is wrong with an event is found by the scripts.
 */

#include "asgi.h"

enum {
    STREAM_RESPONSE = 80,
    RESPONSE_HEADER = 20,
    MAX_STRINGS = 0xFFFF,
    MAX_OUTBOX_BYTES = 1 << 20,
    MAX_GATHER_NS = 1000000,
};

/* ---- heads ---- */

/* Whether none of eight bytes is below a space, or 127. May be false for others as well: a borrow
 * reaches the next byte only from one that is below. */
static int are_eight_plain(const char *text)
{
    const uint64_t ones = 0x0101010101010101u, highest = 0x80 * ones;
    uint64_t eight;
    memcpy(&eight, text, 8);
    uint64_t below = (eight - 0x20 * ones) & ~eight, deleted = eight ^ 0x7f * ones;
    return ((below | ((deleted - ones) & ~deleted)) & highest) == 0;
}

/* Whether text has no control character but tabs. */
static int is_plain(const char *text, Py_ssize_t size)
{
    while (size >= 8 && are_eight_plain(text)) {
        text += 8;
        size -= 8;
    }
    for (Py_ssize_t n = 0; n < size; n++) {
        unsigned char byte = (unsigned char)text[n];
        if (byte == 127 || (byte < 32 && byte != '\t')) {
            return 0;
        }
    }
    return 1;
}

/* An item of exactly a list or a tuple, borrowed. */
static PyObject *item_of(PyObject *sequence, Py_ssize_t n)
{
    return is_exactly(sequence, &PyTuple_Type) ? PyTuple_GetItem(sequence, n)
                                               : PyList_GetItem(sequence, n);
}

/* The length of exactly a list or a tuple; -1 of anything else. */
static Py_ssize_t length_of(PyObject *sequence)
{
    if (is_exactly(sequence, &PyTuple_Type)) {
        return PyTuple_Size(sequence);
    }
    return is_exactly(sequence, &PyList_Type) ? PyList_Size(sequence) : -1;
}

/* Bytes that the names and values of `headers` take in a head, a border before each; -1 if the
 * scripts must look at them. */
static Py_ssize_t fields_size(PyObject *headers, Py_ssize_t count)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *field = item_of(headers, n);
        if (length_of(field) != 2) {
            return -1;
        }
        for (int part = 0; part < 2; part++) {
            PyObject *text = item_of(field, part);
            if (!is_exactly(text, &PyBytes_Type)) {
                return -1;
            }
            Py_ssize_t size = PyBytes_Size(text);
            if (size > MAX_HEAD_BYTES || !is_plain(PyBytes_AsString(text), size)) {
                return -1;
            }
            total += 1 + size;
            if (total > MAX_HEAD_BYTES) {
                return -1;
            }
        }
    }
    return total;
}

/* Status and fields joined by NUL; NULL if the scripts must do it. Runs no Python. */
static PyObject *join_head(long status, PyObject *headers, int *string_count)
{
    Py_ssize_t count = headers == NULL ? 0 : length_of(headers);
    if (count < 0 || count > (MAX_STRINGS - 1) / 2) {
        return NULL;
    }
    Py_ssize_t size = fields_size(headers, count);
    if (size < 0 || size + 3 > MAX_HEAD_BYTES) {
        return NULL;
    }
    PyObject *head = PyBytes_FromStringAndSize(NULL, 3 + size);
    if (head == NULL) {
        return NULL;
    }
    char *at = PyBytes_AsString(head);
    *at++ = (char)('0' + status / 100);
    *at++ = (char)('0' + status / 10 % 10);
    *at++ = (char)('0' + status % 10);
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *field = item_of(headers, n);
        for (int part = 0; part < 2; part++) {
            PyObject *text = item_of(field, part);
            Py_ssize_t length = PyBytes_Size(text);
            *at++ = 0;
            memcpy(at, PyBytes_AsString(text), length);
            at += length;
        }
    }
    *string_count = (int)(1 + 2 * count);
    return head;
}

/* `http.response.start`. */
static int send_start(StreamState *stream, PyObject *event)
{
    PyObject *status = PyDict_GetItemWithError(event, names[NAME_STATUS]);
    if (status == NULL || !is_exactly(status, &PyLong_Type)) {
        return 0;
    }
    long code = PyLong_AsLong(status);
    if (code < 200 || code > 599) {
        return 0;
    }
    PyObject *headers = PyDict_GetItemWithError(event, names[NAME_HEADERS]);
    if (headers == NULL && PyErr_Occurred() != NULL) {
        return 0;
    }
    int string_count;
    PyObject *head =
        join_head(code, headers == &_Py_NoneStruct ? NULL : headers, &string_count);
    if (head == NULL) {
        return 0;
    }
    if (!is_absent(stream->head_bytes) || stream->is_disconnected || stream->is_ended) {
        Py_DecRef(head);
        return 0;
    }
    PyObject *before = stream->head_bytes;
    stream->head_bytes = head;
    stream->string_count = string_count;
    Py_DecRef(before);
    return 1;
}

/* ---- bodies ---- */

/* STREAM_RESPONSE with the whole response. */
static PyObject *encode_response(StreamState *stream, PyObject *body, long long now)
{
    Py_ssize_t head_size = PyBytes_Size(stream->head_bytes), body_size = PyBytes_Size(body);
    PyObject *frame =
        PyBytes_FromStringAndSize(NULL, RESPONSE_HEADER + head_size + body_size);
    if (frame == NULL) {
        return NULL;
    }
    unsigned char *at = (unsigned char *)PyBytes_AsString(frame);
    at[0] = STREAM_RESPONSE;
    at[1] = FLAG_END;
    at[2] = (unsigned char)stream->string_count;
    at[3] = (unsigned char)(stream->string_count >> 8);
    put_word(at + 4, (uint32_t)(12 + head_size + body_size));
    put_word(at + 8, (uint32_t)PyLong_AsLong(stream->id));
    put_word(at + 12, (uint32_t)((now - stream->started) / 1000));
    put_word(at + 16, (uint32_t)head_size);
    memcpy(at + RESPONSE_HEADER, PyBytes_AsString(stream->head_bytes), head_size);
    memcpy(at + RESPONSE_HEADER + head_size, PyBytes_AsString(body), body_size);
    return frame;
}

/* Puts a frame behind the others of this turn; negative with an exception. */
static int queue_frame(ReactorState *reactor, PyObject *frame, long long now)
{
    WriterState *writer = (WriterState *)reactor->writer;
    Py_ssize_t size = writer->size + PyBytes_Size(frame);
    if (reactor->will_flush && size <= MAX_OUTBOX_BYTES) {
        if (PyList_Append(writer->frames, frame) < 0) {
            return -1;
        }
        writer->size = size;
        if (now - reactor->gathering_since <= MAX_GATHER_NS) {
            return 1;
        }
        reactor->gathering_since = now;
        return flush(reactor) ? 1 : -1;
    }
    PyObject *when = PyLong_FromLongLong(now);
    PyObject *result = when == NULL ? NULL
                                    : PyObject_CallMethodObjArgs((PyObject *)reactor,
                                          names[NAME_QUEUE_FRAME], frame, when, NULL);
    Py_DecRef(when);
    Py_DecRef(result);
    return result == NULL ? -1 : 1;
}

/* `http.response.body` of a whole response. */
static int send_body(StreamState *stream, PyObject *event)
{
    PyObject *more = PyDict_GetItemWithError(event, names[NAME_MORE_BODY]);
    if (more == NULL ? PyErr_Occurred() != NULL : more != &_Py_FalseStruct) {
        return 0;
    }
    PyObject *body = PyDict_GetItemWithError(event, names[NAME_BODY]);
    if (body == NULL || !is_exactly(body, &PyBytes_Type)
        || PyBytes_Size(body) > MAX_JOIN_BYTES) {
        return 0;
    }
    ReactorState *reactor = (ReactorState *)stream->reactor;
    if (!is_exactly(stream->head_bytes, &PyBytes_Type) || stream->is_head_sent
        || stream->is_disconnected || stream->is_ended || !is_absent(stream->receivers)
        || reactor->is_full) {
        return 0;
    }
    long long now = now_nanos();
    PyObject *frame = encode_response(stream, body, now);
    if (frame == NULL) {
        return -1;
    }
    stream->is_ended = 1;
    int done = queue_frame(reactor, frame, now);
    Py_DecRef(frame);
    return done;
}

int send_quickly(StreamState *stream, PyObject *event)
{
    if (!is_exactly(event, &PyDict_Type)) {
        return 0;
    }
    PyObject *kind = PyDict_GetItemWithError(event, names[NAME_TYPE]);
    int done = 0;
    if (kind != NULL && is_exactly(kind, &PyUnicode_Type)) {
        if (is_absent(stream->head_bytes)) {
            if (PyUnicode_CompareWithASCIIString(kind, "http.response.start") == 0) {
                done = send_start(stream, event);
            }
        } else if (PyUnicode_CompareWithASCIIString(kind, "http.response.body") == 0) {
            done = send_body(stream, event);
        }
    }
    if (done == 0) {
        PyErr_Clear();
    }
    return done;
}

PyObject *receive_quickly(StreamState *stream)
{
    if (is_absent(stream->body) || !is_exactly(stream->body, &PyBytes_Type)
        || !is_absent(stream->file) || stream->has_more || stream->is_disconnected
        || stream->is_ended) {
        return NULL;
    }
    PyObject *event = PyDict_Copy(request_event);
    if (event == NULL || PyDict_SetItem(event, names[NAME_BODY], stream->body) < 0) {
        Py_DecRef(event);
        PyErr_Clear();
        return NULL;
    }
    PyObject *body = stream->body;
    stream->body = NULL;
    Py_DecRef(body);
    return event;
}
