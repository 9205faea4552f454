/* The types whose state the native part and the scripts share, and what both hand each other. */

#include "asgi.h"

PyObject *names[NAME_COUNT];
PyObject *coroutine_type, *method_type, *tasks_module, *task_type, *request_class;
PyObject *asgi_versions, *request_event;

static const char *const name_texts[NAME_COUNT] = {
    [NAME_ASGI] = "asgi",
    [NAME_BODY] = "body",
    [NAME_EXTENSIONS] = "extensions",
    [NAME_HEADERS] = "headers",
    [NAME_MORE_BODY] = "more_body",
    [NAME_STATE] = "state",
    [NAME_STATUS] = "status",
    [NAME_TYPE] = "type",
    [NAME_AWAIT] = "_await",
    [NAME_CALL_SOON] = "call_soon",
    [NAME_CLOSE] = "close",
    [NAME_CODE] = "__code__",
    [NAME_CONTEXT] = "context",
    [NAME_DROP_SENT] = "drop_sent",
    [NAME_END_RAISED] = "_end_raised",
    [NAME_END_RETURNED] = "_end_returned",
    [NAME_GET_DEBUG] = "get_debug",
    [NAME_GET_TASK_FACTORY] = "get_task_factory",
    [NAME_ON_READABLE] = "_on_readable",
    [NAME_QUEUE_FRAME] = "queue_frame",
    [NAME_RECEIVE] = "receive",
    [NAME_RUN] = "run",
    [NAME_SELF] = "__self__",
    [NAME_SEND] = "send",
    [NAME_SEND_QUEUED] = "_send",
    [NAME_START_REST] = "_start_rest_soon",
    [NAME_TAKE_BUFFERED] = "_take_buffered",
    [NAME_TASK] = "Task",
    [NAME_THROW] = "throw",
};

PyObject *held_or_none(PyObject *object)
{
    object = object == NULL ? &_Py_NoneStruct : object;
    Py_IncRef(object);
    return object;
}

int traverse_objects(PyObject *self, int count, visitproc visit, void *argument)
{
    PyObject **held = (PyObject **)(self + 1);
    for (int n = 0; n < count; n++) {
        int stopped = held[n] == NULL ? 0 : visit(held[n], argument);
        if (stopped) {
            return stopped;
        }
    }
    return visit((PyObject *)self->type, argument);
}

int clear_objects(PyObject *self, int count)
{
    PyObject **held = (PyObject **)(self + 1);
    for (int n = 0; n < count; n++) {
        PyObject *object = held[n];
        held[n] = NULL;
        Py_DecRef(object);
    }
    return 0;
}

PyObject *call_with(
    PyObject *callable, PyObject *const *args, Py_ssize_t count, PyObject *named)
{
    PyObject *tuple = PyTuple_New(count), *dict = PyDict_New(), *result = NULL;
    int failed = tuple == NULL || dict == NULL;
    for (Py_ssize_t n = 0; !failed && n < count; n++) {
        Py_IncRef(args[n]);
        PyTuple_SetItem(tuple, n, args[n]);
    }
    Py_ssize_t more = named == NULL ? 0 : PyTuple_Size(named);
    for (Py_ssize_t n = 0; !failed && n < more; n++) {
        failed = PyDict_SetItem(dict, PyTuple_GetItem(named, n), args[count + n]) < 0;
    }
    if (!failed) {
        result = PyObject_Call(callable, tuple, dict);
    }
    Py_DecRef(tuple);
    Py_DecRef(dict);
    return result;
}

/* Traverses, clears and frees objects of a structure that begins with `count` others. */
#define HOLDER(prefix, count)                                                                      \
    static int prefix##_traverse(PyObject *self, visitproc visit, void *argument)                  \
    {                                                                                              \
        return traverse_objects(self, count, visit, argument);                                     \
    }                                                                                              \
    static int prefix##_clear(PyObject *self) { return clear_objects(self, count); }               \
    static void prefix##_dealloc(PyObject *self)                                                   \
    {                                                                                              \
        PyObject_GC_UnTrack(self);                                                                 \
        clear_objects(self, count);                                                                \
        free_object(self);                                                                         \
    }

#define HOLDER_SLOTS(prefix)                                                                       \
    {SLOT_CLEAR, (void *)prefix##_clear}, {SLOT_DEALLOC, (void *)prefix##_dealloc},                \
        {SLOT_TRAVERSE, (void *)prefix##_traverse}, {SLOT_MEMBERS, prefix##_members}

#define MEMBER(structure, name, kind, field) {name, kind, offsetof(structure, field), 0, NULL}

HOLDER(reader, 1)
HOLDER(writer, 1)
HOLDER(reactor, 12)
HOLDER(stream, 9)

static PyMemberDef reader_members[] = {
    MEMBER(ReaderState, "buffer", MEMBER_OBJECT, buffer),
    MEMBER(ReaderState, "_start", MEMBER_SSIZE, start),
    MEMBER(ReaderState, "_end", MEMBER_SSIZE, end),
    {0},
};

static PyMemberDef writer_members[] = {
    MEMBER(WriterState, "_frames", MEMBER_OBJECT, frames),
    MEMBER(WriterState, "size", MEMBER_SSIZE, size),
    {0},
};

static PyMemberDef reactor_members[] = {
    MEMBER(ReactorState, "_frame_reader", MEMBER_OBJECT, reader),
    MEMBER(ReactorState, "_frame_writer", MEMBER_OBJECT, writer),
    MEMBER(ReactorState, "_streams", MEMBER_OBJECT, streams),
    MEMBER(ReactorState, "_opened", MEMBER_OBJECT, opened),
    MEMBER(ReactorState, "loop", MEMBER_OBJECT, loop),
    MEMBER(ReactorState, "_app", MEMBER_OBJECT, app),
    MEMBER(ReactorState, "_state", MEMBER_OBJECT, state),
    MEMBER(ReactorState, "_request_type", MEMBER_OBJECT, request_type),
    MEMBER(ReactorState, "_task_options", MEMBER_OBJECT, task_options),
    MEMBER(ReactorState, "_call_soon", MEMBER_OBJECT, call_soon),
    MEMBER(ReactorState, "_gathering_since", MEMBER_LONG_LONG, gathering_since),
    MEMBER(ReactorState, "_fd", MEMBER_INT, fd),
    MEMBER(ReactorState, "is_full", MEMBER_BOOL, is_full),
    MEMBER(ReactorState, "_will_flush", MEMBER_BOOL, will_flush),
    MEMBER(ReactorState, "_is_blocked", MEMBER_BOOL, is_blocked),
    MEMBER(ReactorState, "_is_stopped", MEMBER_BOOL, is_stopped),
    {0},
};

static PyMethodDef reactor_methods[] = {
    {"read_channel", read_channel, METH_NOARGS, NULL},
    {"start_opened", start_opened, METH_NOARGS, NULL},
    {"catch_call_soon", (PyCFunction)(void (*)(void))catch_call_soon,
        METH_FASTCALL | METH_KEYWORDS, NULL},
    {0},
};

static PyMemberDef stream_members[] = {
    MEMBER(StreamState, "reactor", MEMBER_OBJECT, reactor),
    MEMBER(StreamState, "id", MEMBER_OBJECT, id),
    MEMBER(StreamState, "scope", MEMBER_OBJECT, scope),
    MEMBER(StreamState, "task", MEMBER_OBJECT, task),
    MEMBER(StreamState, "receivers", MEMBER_OBJECT, receivers),
    MEMBER(StreamState, "senders", MEMBER_OBJECT, senders),
    MEMBER(StreamState, "_body", MEMBER_OBJECT, body),
    MEMBER(StreamState, "_file", MEMBER_OBJECT, file),
    MEMBER(StreamState, "_head", MEMBER_OBJECT, head_bytes),
    MEMBER(StreamState, "started", MEMBER_LONG_LONG, started),
    MEMBER(StreamState, "window", MEMBER_SSIZE, window),
    MEMBER(StreamState, "_file_bytes_left", MEMBER_SSIZE, file_bytes_left),
    MEMBER(StreamState, "_string_count", MEMBER_INT, string_count),
    MEMBER(StreamState, "is_ended", MEMBER_BOOL, is_ended),
    MEMBER(StreamState, "is_disconnected", MEMBER_BOOL, is_disconnected),
    MEMBER(StreamState, "_is_head_sent", MEMBER_BOOL, is_head_sent),
    MEMBER(StreamState, "_has_more", MEMBER_BOOL, has_more),
    MEMBER(StreamState, "_is_pull_pending", MEMBER_BOOL, is_pull_pending),
    {0},
};

static PyType_Slot reader_slots[] = {HOLDER_SLOTS(reader), {0}};
static PyType_Slot writer_slots[] = {HOLDER_SLOTS(writer), {0}};
static PyType_Slot reactor_slots[] = {
    HOLDER_SLOTS(reactor), {SLOT_METHODS, reactor_methods}, {0}};
static PyType_Slot stream_slots[] = {HOLDER_SLOTS(stream), {0}};

#define SPEC(name, structure, slots)                                                               \
    {"penstock_worker._native." name, sizeof(structure), 0,                                        \
        TYPE_DEFAULT | TYPE_BASE | TYPE_GC, slots}

static PyType_Spec specs[] = {
    SPEC("ReaderState", ReaderState, reader_slots),
    SPEC("WriterState", WriterState, writer_slots),
    SPEC("ReactorState", ReactorState, reactor_slots),
    SPEC("StreamState", StreamState, stream_slots),
};

/* asgi_setup(CoroutineType, MethodType, asyncio.tasks, Task, HttpRequest, versions, event): called
 * once, by `asgi`. */
static PyObject *asgi_setup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject **const places[] = {&coroutine_type, &method_type, &tasks_module, &task_type,
        &request_class, &asgi_versions, &request_event};
    PyObject *given[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO:asgi_setup", &given[0], &given[1], &given[2], &given[3],
            &given[4], &given[5], &given[6])) {
        return NULL;
    }
    for (int n = 0; n < 7; n++) {
        Py_IncRef(given[n]);
        Py_DecRef(*places[n]);
        *places[n] = given[n];
    }
    return none();
}

static PyMethodDef setup_definition = {"asgi_setup", asgi_setup, METH_VARARGS, NULL};

int add_asgi(PyObject *module)
{
    for (int n = 0; n < NAME_COUNT; n++) {
        names[n] = PyUnicode_InternFromString(name_texts[n]);
        if (names[n] == NULL) {
            return -1;
        }
    }
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        PyObject *type = PyType_FromSpec(&specs[n]);
        const char *name = strrchr(specs[n].name, '.') + 1;
        if (type == NULL || PyModule_AddObjectRef(module, name, type) < 0) {
            return -1;
        }
    }
    PyObject *setup = PyCFunction_NewEx(&setup_definition, NULL, NULL);
    if (setup == NULL || PyModule_AddObjectRef(module, "asgi_setup", setup) < 0) {
        return -1;
    }
    return add_call_type(module) == NULL || add_method_type(module) == NULL ? -1 : 0;
}
