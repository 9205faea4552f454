/* The usual turn of an ASGI worker: all frames that have come are read at once, each plain request
 * in them is opened, the first step of each is run, and their answers leave together.
 *
 * A frame that is not plain, and all behind it in the buffer, is left to `AsgiReactor`.
 */

#include <sys/uio.h>

#include "asgi.h"

enum {
    OPEN = 64,
    CHANNEL_BUFFER_BYTES = 256 << 10,
    CHANNEL_JOIN_BYTES = 256 << 10,
    WINDOW_BYTES = 256 << 10,
    MAX_REASON_BYTES = 1000,
    MAX_INPUT_BYTES = 60 << 10,
    MAX_PARTS = 64,
};

/* The frames of the server, as `channel._FRAME_RULES` has them: kind, flags, least and largest
 * payload. */
static const struct {
    uint32_t kind, flags, min_bytes, max_bytes;
} frame_rules[] = {
    {OPEN, 7, 8, MAX_PAYLOAD_BYTES},
    {65, 0, 4, 4},                       /* STREAM_CANCEL */
    {66, 0, 8, 8},                       /* WINDOW */
    {67, 1, 4, MAX_PAYLOAD_BYTES},       /* MESSAGE */
    {68, 0, 6, 6 + MAX_REASON_BYTES},    /* CLOSE */
    {69, FLAG_END, 4, 4 + MAX_INPUT_BYTES}, /* INPUT */
};

static void replace(PyObject **place, PyObject *object)
{
    PyObject *before = *place;
    *place = object;
    Py_DecRef(before);
}

/* Calls a method for its effect; false with an exception. */
static int call_method(PyObject *object, int name)
{
    PyObject *result = PyObject_CallMethodObjArgs(object, names[name], NULL);
    Py_DecRef(result);
    return result != NULL;
}

/* ---- requests ---- */

/* Adds to a scope what the server does not send; false with an exception. */
static int complete_scope(ReactorState *reactor, PyObject *scope)
{
    PyObject *versions = PyDict_Copy(asgi_versions), *state;
    /* Most applications have none. */
    state = PyDict_Size(reactor->state) == 0 ? PyDict_New() : PyDict_Copy(reactor->state);
    PyObject *extensions = NULL;
    int done = versions != NULL && state != NULL
        && PyDict_SetItem(scope, names[NAME_ASGI], versions) == 0
        && PyDict_SetItem(scope, names[NAME_STATE], state) == 0;
    /* A session of TLS has an entry in it. */
    PyObject *sent = done ? PyDict_GetItemWithError(scope, names[NAME_EXTENSIONS]) : NULL;
    if (done && (sent == NULL || sent == &_Py_NoneStruct)) {
        extensions = PyDict_New();
        done = extensions != NULL
            && PyDict_SetItem(scope, names[NAME_EXTENSIONS], extensions) == 0;
    }
    Py_DecRef(versions);
    Py_DecRef(state);
    Py_DecRef(extensions);
    return done;
}

/* A stream of this scope and body; takes the references that it is given. */
static PyObject *new_stream(ReactorState *reactor, PyObject *id, PyObject *scope, PyObject *body)
{
    StreamState *stream =
        (StreamState *)PyType_GenericAlloc((PyTypeObject *)reactor->request_type, 0);
    if (stream == NULL) {
        Py_DecRef(id);
        Py_DecRef(scope);
        Py_DecRef(body);
        return NULL;
    }
    stream->id = id;
    stream->scope = scope;
    stream->body = body;
    stream->window = WINDOW_BYTES;
    stream->reactor = (PyObject *)reactor;
    Py_IncRef(stream->reactor);
    return (PyObject *)stream;
}

/* Opens the plain request of a frame without its header. False, perhaps with an exception, if the
 * scripts must do it. */
static int open_request(ReactorState *reactor, const unsigned char *payload, uint32_t length)
{
    uint32_t scope_size = word(payload + 4);
    if (scope_size > length - 8) {
        return 0;
    }
    const unsigned char *at = payload + 8, *middle = at + scope_size;
    PyObject *scope = read_scope(at, middle);
    if (scope == NULL) {
        return 0;
    }
    PyObject *id = PyLong_FromLongLong(word(payload));
    PyObject *body =
        PyBytes_FromStringAndSize((const char *)middle, length - 8 - scope_size);
    int is_new = id != NULL && body != NULL
        && (PyDict_Size(reactor->streams) == 0
            || PyDict_GetItemWithError(reactor->streams, id) == NULL)
        && PyErr_Occurred() == NULL;
    if (!is_new || !complete_scope(reactor, scope)) {
        Py_DecRef(id);
        Py_DecRef(body);
        Py_DecRef(scope);
        return 0;
    }
    PyObject *stream = new_stream(reactor, id, scope, body);
    if (stream == NULL) {
        return 0;
    }
    /* The stream holds its id. */
    int done = PyDict_SetItem(reactor->streams, id, stream) == 0;
    if (done && PyList_Append(reactor->opened, stream) < 0) {
        PyDict_DelItem(reactor->streams, id);
        done = 0;
    }
    Py_DecRef(stream);
    return done;
}

/* Whether the server may send a frame with this header. */
static int is_allowed(const unsigned char *frame)
{
    for (size_t n = 0; n < sizeof frame_rules / sizeof *frame_rules; n++) {
        if (frame_rules[n].kind == frame[0]) {
            uint32_t length = word(frame + 4);
            return (frame[1] & ~frame_rules[n].flags) == 0 && frame[2] == 0 && frame[3] == 0
                && length >= frame_rules[n].min_bytes && length <= frame_rules[n].max_bytes;
        }
    }
    return 0;
}

/* Whether all frames have headers that are allowed. Nothing is opened before all of them are looked
 * at. */
static int are_allowed(ReaderState *reader, PyObject *buffer)
{
    const unsigned char *bytes = (const unsigned char *)PyByteArray_AsString(buffer);
    Py_ssize_t at = reader->start;
    while (reader->end - at >= FRAME_HEADER + 4) {
        if (!is_allowed(bytes + at)) {
            return 0;
        }
        at += FRAME_HEADER + (Py_ssize_t)word(bytes + at + 4);
    }
    return 1;
}

/* Opens the plain requests at the front of the buffer. False if there is a frame behind them that
 * the scripts must take. */
static int open_requests(ReactorState *reactor, ReaderState *reader, PyObject *buffer)
{
    for (;;) {
        Py_ssize_t here = reader->end - reader->start;
        if (here < FRAME_HEADER + 4) {
            return 1;
        }
        const unsigned char *frame =
            (const unsigned char *)PyByteArray_AsString(buffer) + reader->start;
        uint32_t length = word(frame + 4);
        if (frame[0] != OPEN || frame[1] != 0) {
            return 0;
        }
        if (here - FRAME_HEADER < (Py_ssize_t)length) {
            return 1;
        }
        if (!open_request(reactor, frame + FRAME_HEADER, length)) {
            PyErr_Clear();
            return 0;
        }
        reader->start += FRAME_HEADER + length;
    }
}

/* ---- tasks ---- */

PyObject *catch_call_soon(
    PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *named)
{
    ReactorState *reactor = (ReactorState *)self;
    int has_context = named != NULL && PyTuple_Size(named) == 1
        && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(named, 0), "context") == 0;
    if (reactor->is_catching && reactor->step == NULL && count == 1 && has_context) {
        reactor->step = args[0];
        reactor->context = args[1];
        Py_IncRef(args[0]);
        Py_IncRef(args[1]);
        return none();
    }
    return call_with(reactor->call_soon, args, count, named);
}

/* Runs the step that was caught while a task was made, if it is that task's; another one is called
 * soon. False with an exception. */
static int run_caught(ReactorState *reactor, PyObject *task)
{
    PyObject *caught[] = {reactor->step, reactor->context}, *result;
    reactor->step = reactor->context = NULL;
    if (caught[0] == NULL) {
        return 1;
    }
    PyObject *owner = PyObject_GetAttr(caught[0], names[NAME_SELF]);
    if (owner == task) {
        result = PyObject_CallMethodObjArgs(caught[1], names[NAME_RUN], caught[0], NULL);
    } else {
        PyErr_Clear();
        PyObject *named = PyTuple_New(1);
        if (named != NULL) {
            Py_IncRef(names[NAME_CONTEXT]);
            PyTuple_SetItem(named, 0, names[NAME_CONTEXT]);
        }
        result = named == NULL ? NULL : call_with(reactor->call_soon, caught, 1, named);
        Py_DecRef(named);
    }
    Py_DecRef(owner);
    Py_DecRef(caught[0]);
    Py_DecRef(caught[1]);
    Py_DecRef(result);
    return result != NULL;
}

/* Makes the task of a stream and runs its first step; false with an exception. */
static int start_stream(ReactorState *reactor, PyObject *object)
{
    StreamState *stream = (StreamState *)object;
    PyObject *args = PyTuple_New(1), *coroutine = NULL, *task = NULL;
    if ((PyObject *)object->type == reactor->request_type) {
        coroutine = new_call(CALL_RUN, stream, NULL);
    } else {
        coroutine = PyObject_CallMethodObjArgs(object, names[NAME_RUN], reactor->app, NULL);
    }
    if (args != NULL && coroutine != NULL) {
        PyTuple_SetItem(args, 0, coroutine);
        /* It has no effect where tasks start by themselves. */
        reactor->is_catching = 1;
        task = PyObject_Call(task_type, args, reactor->task_options);
        reactor->is_catching = 0;
    } else {
        Py_DecRef(coroutine);
    }
    Py_DecRef(args);
    if (task == NULL) {
        replace(&reactor->step, NULL);
        replace(&reactor->context, NULL);
        return 0;
    }
    Py_IncRef(task);
    replace(&stream->task, task);
    int done = run_caught(reactor, task);
    Py_DecRef(task);
    return done;
}

/* ---- what leaves ---- */

int flush(ReactorState *reactor)
{
    WriterState *writer = (WriterState *)reactor->writer;
    if (reactor->is_blocked || reactor->is_stopped || writer->size == 0) {
        return 1;
    }
    struct iovec parts[MAX_PARTS];
    Py_ssize_t count = PyList_Size(writer->frames);
    /* A process that the application has forked may use the number of the descriptor again. */
    int is_usual = forks == 0 && count <= MAX_PARTS && writer->size <= CHANNEL_JOIN_BYTES;
    for (Py_ssize_t n = 0; is_usual && n < count; n++) {
        PyObject *frame = PyList_GetItem(writer->frames, n);
        is_usual = is_exactly(frame, &PyBytes_Type);
        if (is_usual) {
            parts[n].iov_base = PyBytes_AsString(frame);
            parts[n].iov_len = PyBytes_Size(frame);
        }
    }
    if (is_usual) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        Py_ssize_t sent = sendmsg(reactor->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent == writer->size) {
            writer->size = 0;
            return PyList_SetSlice(writer->frames, 0, count, NULL) == 0;
        }
        if (sent > 0) {
            PyObject *size = PyLong_FromLongLong(sent), *result = NULL;
            if (size != NULL) {
                result = PyObject_CallMethodObjArgs(
                    reactor->writer, names[NAME_DROP_SENT], size, NULL);
            }
            Py_DecRef(size);
            Py_DecRef(result);
            if (result == NULL) {
                return 0;
            }
        }
    }
    return call_method((PyObject *)reactor, NAME_SEND_QUEUED);
}

/* Starts all that is opened, and sends what it has answered; false with an exception. */
static int start_and_flush(ReactorState *reactor)
{
    int has_flush = reactor->will_flush, done = 1;
    if (!has_flush) {
        reactor->will_flush = 1;
        reactor->gathering_since = now_nanos();
    }
    while (done && PyList_Size(reactor->opened) > 0) {
        PyObject *stream = PyList_GetItem(reactor->opened, 0);
        Py_IncRef(stream);
        done = PyList_SetSlice(reactor->opened, 0, 1, NULL) == 0 && start_stream(reactor, stream);
        Py_DecRef(stream);
    }
    if (!has_flush) {
        reactor->will_flush = 0;
    }
    if (!done) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (!call_method((PyObject *)reactor, NAME_START_REST)) {
            PyErr_WriteUnraisable(NULL);
        }
        PyErr_Restore(type, value, traceback);
        return 0;
    }
    return flush(reactor);
}

PyObject *start_opened(PyObject *self, PyObject *unused)
{
    (void)unused;
    return start_and_flush((ReactorState *)self) ? none() : NULL;
}

/* ---- what comes ---- */

/* Whether tasks are asyncio's own: those may be started here. In its debug mode the loop wants to
 * see each step of each task. */
static int has_usual_tasks(ReactorState *reactor)
{
    PyObject *task = PyObject_GetAttr(tasks_module, names[NAME_TASK]);
    PyObject *factory =
        PyObject_CallMethodObjArgs(reactor->loop, names[NAME_GET_TASK_FACTORY], NULL);
    PyObject *debug = PyObject_CallMethodObjArgs(reactor->loop, names[NAME_GET_DEBUG], NULL);
    int is_usual =
        task == task_type && factory == &_Py_NoneStruct && debug == &_Py_FalseStruct;
    Py_DecRef(task);
    Py_DecRef(factory);
    Py_DecRef(debug);
    PyErr_Clear();
    return is_usual;
}

/* Receives into an empty buffer; false if the scripts must do it. */
static int receive_frames(ReactorState *reactor, ReaderState *reader)
{
    if (forks != 0 || reader->start != reader->end || reactor->is_stopped
        || PyByteArray_Size(reader->buffer) != CHANNEL_BUFFER_BYTES) {
        return 0;
    }
    Py_ssize_t got = recv(
        reactor->fd, PyByteArray_AsString(reader->buffer), CHANNEL_BUFFER_BYTES, MSG_DONTWAIT);
    if (got <= 0) {
        return 0;
    }
    reader->start = 0;
    reader->end = got;
    return 1;
}

PyObject *read_channel(PyObject *self, PyObject *unused)
{
    (void)unused;
    ReactorState *reactor = (ReactorState *)self;
    ReaderState *reader = (ReaderState *)reactor->reader;
    if (!has_usual_tasks(reactor) || !receive_frames(reactor, reader)) {
        return PyObject_CallMethodObjArgs(self, names[NAME_ON_READABLE], NULL);
    }
    /* A finalizer may run meanwhile, and do anything. */
    PyObject *buffer = reader->buffer;
    Py_IncRef(buffer);
    int is_all = are_allowed(reader, buffer) && open_requests(reactor, reader, buffer);
    Py_DecRef(buffer);
    if (!is_all && !call_method(self, NAME_TAKE_BUFFERED)) {
        return NULL;
    }
    return start_opened(self, NULL);
}
