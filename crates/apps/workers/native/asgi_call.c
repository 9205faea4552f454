/* What asyncio and the application await: a request's whole run, one `receive`, one `send`.
 *
 * A `Call` is used as a coroutine (PEP 492): it begins when it is awaited, or when a task takes it.
 * Most end at once, without a coroutine. One that cannot gets one of the scripts, `inner`, and from
 * then on passes everything to that. The `inner` of a run is the application's.
 */

#include "asgi.h"

typedef struct {
    PyObject head;
    PyObject *stream, *event, *inner;
    PyObject *weak_references;
    char kind, state, is_finalized;
} CallState;

enum { CREATED, SUSPENDED, RUNNING, CLOSED };

static PyTypeObject *call_type;

PyObject *new_call(int kind, StreamState *stream, PyObject *event)
{
    CallState *call = (CallState *)PyType_GenericAlloc(call_type, 0);
    if (call != NULL) {
        call->kind = (char)kind;
        call->stream = (PyObject *)stream;
        call->event = event;
        Py_IncRef((PyObject *)stream);
        Py_IncRef(event);
    }
    return (PyObject *)call;
}

/* ---- the run of a request ---- */

/* The application's coroutine; any other awaitable is awaited by the scripts. */
static PyObject *call_app(StreamState *stream)
{
    PyObject *receive = new_method(CALL_RECEIVE, stream);
    PyObject *send = new_method(CALL_SEND, stream), *result = NULL;
    if (receive != NULL && send != NULL) {
        PyObject *app = ((ReactorState *)stream->reactor)->app;
        result = PyObject_CallFunctionObjArgs(app, stream->scope, receive, send, NULL);
    }
    Py_DecRef(receive);
    Py_DecRef(send);
    if (result == NULL || (PyObject *)result->type == coroutine_type) {
        return result;
    }
    PyObject *coroutine =
        PyObject_CallMethodObjArgs((PyObject *)stream, names[NAME_AWAIT], result, NULL);
    Py_DecRef(result);
    return coroutine;
}

/* The application has returned. False with an exception. */
static int end_returned(StreamState *stream)
{
    ReactorState *reactor = (ReactorState *)stream->reactor;
    int is_usual = forks == 0 && stream->is_ended && is_absent(stream->file);
    if (is_usual && PyDict_GetItemWithError(reactor->streams, stream->id) == (PyObject *)stream) {
        return PyDict_DelItem(reactor->streams, stream->id) == 0;
    }
    PyErr_Clear();
    PyObject *result =
        PyObject_CallMethodObjArgs((PyObject *)stream, names[NAME_END_RETURNED], NULL);
    Py_DecRef(result);
    return result != NULL;
}

/* The application has raised the exception that is set. False with an exception of ours. */
static int end_raised(StreamState *stream)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyObject *result =
        PyObject_CallMethodObjArgs((PyObject *)stream, names[NAME_END_RAISED], value, NULL);
    Py_DecRef(type);
    Py_DecRef(value);
    Py_DecRef(traceback);
    Py_DecRef(result);
    return result != NULL;
}

/* ---- one step ---- */

/* The coroutine of the scripts that does the same. */
static PyObject *script_coroutine(CallState *call)
{
    int name = call->kind == CALL_RECEIVE ? NAME_RECEIVE : NAME_SEND;
    return PyObject_CallMethodObjArgs(call->stream, names[name], call->event, NULL);
}

/* The first step. */
static SendResult begin(CallState *call, PyObject **result)
{
    StreamState *stream = (StreamState *)call->stream;
    if (call->kind == CALL_RUN) {
        stream->started = now_nanos();
        call->inner = call_app(stream);
    } else {
        int done = 0;
        if (call->kind == CALL_RECEIVE) {
            *result = receive_quickly(stream);
        } else {
            done = send_quickly(stream, call->event);
            *result = done > 0 ? none() : NULL;
        }
        if (*result != NULL) {
            return SEND_RETURN;
        }
        call->inner = done == 0 ? script_coroutine(call) : NULL;
    }
    return call->inner == NULL ? SEND_ERROR : PyIter_Send(call->inner, &_Py_NoneStruct, result);
}

static void drop(PyObject **held)
{
    PyObject *object = *held;
    *held = NULL;
    Py_DecRef(object);
}

/* What a step has come to: the end of a run is that of its request. */
static SendResult settle(CallState *call, SendResult status, PyObject **result)
{
    if (status == SEND_NEXT) {
        call->state = SUSPENDED;
        return status;
    }
    if (call->kind == CALL_RUN) {
        StreamState *stream = (StreamState *)call->stream;
        drop(result);
        int done = status == SEND_RETURN ? end_returned(stream) : end_raised(stream);
        status = done ? SEND_RETURN : SEND_ERROR;
        *result = done ? none() : NULL;
    }
    call->state = CLOSED;
    drop(&call->inner);
    drop(&call->event);
    drop(&call->stream);
    return status;
}

/* Whether a step can begin; false with an exception. */
static int is_ready(CallState *call)
{
    if (call->state == RUNNING) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return 0;
    }
    /* One that the collector has cleared holds nothing any more. */
    if (call->state == CLOSED || call->stream == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return 0;
    }
    return 1;
}

static SendResult step(PyObject *self, PyObject *value, PyObject **result)
{
    CallState *call = (CallState *)self;
    *result = NULL;
    if (!is_ready(call)) {
        return SEND_ERROR;
    }
    int is_first = call->state == CREATED;
    if (is_first && value != &_Py_NoneStruct) {
        PyErr_SetString(
            PyExc_TypeError, "can't send non-None value to a just-started coroutine");
        return SEND_ERROR;
    }
    call->state = RUNNING;
    Py_IncRef(self);
    SendResult status = settle(
        call, is_first ? begin(call, result) : PyIter_Send(call->inner, value, result), result);
    Py_DecRef(self);
    return status;
}

/* A result as methods give it: the end is an exception. */
static PyObject *as_method_result(SendResult status, PyObject *result)
{
    if (status == SEND_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, result);
        Py_DecRef(result);
        return NULL;
    }
    return result;
}

/* ---- methods of coroutines ---- */

static PyObject *call_next(PyObject *self)
{
    PyObject *result;
    SendResult status = step(self, &_Py_NoneStruct, &result);
    if (status == SEND_RETURN && result == &_Py_NoneStruct) {
        /* Cheaper than the exception, and allowed of iterators. */
        Py_DecRef(result);
        return NULL;
    }
    return as_method_result(status, result);
}

static PyObject *call_send(PyObject *self, PyObject *value)
{
    PyObject *result;
    SendResult status = step(self, value, &result);
    return as_method_result(status, result);
}

/* The value of the StopIteration that is set, which is cleared; NULL with another exception. */
static PyObject *stop_value(void)
{
    if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return NULL;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *result = PyObject_GetAttrString(value, "value");
    Py_DecRef(type);
    Py_DecRef(value);
    Py_DecRef(traceback);
    return result;
}

/* Raises what `throw` was called with. */
static void raise_thrown(PyObject *args)
{
    PyObject *thrown = PyTuple_GetItem(args, 0);
    if (PyTuple_Size(args) > 1) {
        PyErr_SetObject(thrown, PyTuple_GetItem(args, 1));
    } else if (PyType_GetFlags(thrown->type) & TYPE_EXCEPTION) {
        PyErr_SetObject((PyObject *)thrown->type, thrown);
    } else {
        PyErr_SetNone(thrown);
    }
}

/* `throw` as a step: `args` are those of the method. */
static SendResult throw_step(CallState *call, PyObject *args, PyObject **result)
{
    *result = NULL;
    if (!is_ready(call)) {
        return SEND_ERROR;
    }
    if (call->state == CREATED && call->kind == CALL_RUN) {
        call->state = CLOSED;
        drop(&call->stream);
        raise_thrown(args);
        return SEND_ERROR;
    }
    if (call->state == CREATED) {
        call->inner = script_coroutine(call);
    }
    call->state = RUNNING;
    Py_IncRef((PyObject *)call);
    PyObject *method =
        call->inner == NULL ? NULL : PyObject_GetAttr(call->inner, names[NAME_THROW]);
    *result = method == NULL ? NULL : PyObject_Call(method, args, NULL);
    Py_DecRef(method);
    SendResult status = SEND_NEXT;
    if (*result == NULL) {
        *result = stop_value();
        status = *result == NULL ? SEND_ERROR : SEND_RETURN;
    }
    status = settle(call, status, result);
    Py_DecRef((PyObject *)call);
    return status;
}

static PyObject *call_throw(PyObject *self, PyObject *args)
{
    PyObject *type, *value, *traceback, *result;
    value = traceback = NULL;
    if (!PyArg_ParseTuple(args, "O|OO:throw", &type, &value, &traceback)) {
        return NULL;
    }
    SendResult status = throw_step((CallState *)self, args, &result);
    return as_method_result(status, result);
}

/* Ends the call as the interpreter closes a coroutine; false with an exception. */
static int close_call(CallState *call)
{
    if (call->state == CREATED || call->stream == NULL) {
        call->state = CLOSED;
        drop(&call->event);
        drop(&call->stream);
    }
    if (call->state == CLOSED) {
        return 1;
    }
    PyObject *args = PyTuple_New(1), *result;
    if (args == NULL) {
        return 0;
    }
    Py_IncRef(PyExc_GeneratorExit);
    PyTuple_SetItem(args, 0, PyExc_GeneratorExit);
    SendResult status = throw_step(call, args, &result);
    Py_DecRef(args);
    Py_DecRef(result);
    if (status == SEND_NEXT) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine ignored GeneratorExit");
        return 0;
    }
    if (status == SEND_ERROR) {
        if (!PyErr_ExceptionMatches(PyExc_GeneratorExit)
            && !PyErr_ExceptionMatches(PyExc_StopIteration)) {
            return 0;
        }
        PyErr_Clear();
    }
    return 1;
}

static PyObject *call_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    return close_call((CallState *)self) ? none() : NULL;
}

/* ---- the end of an object ---- */

/* Warns of a call that was never awaited; closes one that is given up. Runs once, as that of a
 * coroutine: what ignores its end is given up all the same. */
static void call_finalize(PyObject *self)
{
    CallState *call = (CallState *)self;
    PyObject *type, *value, *traceback;
    if (call->is_finalized || call->state == CLOSED || call->state == RUNNING
        || call->stream == NULL) {
        return;
    }
    call->is_finalized = 1;
    PyErr_Fetch(&type, &value, &traceback);
    if (call->state == CREATED) {
        PyObject *warnings = PyImport_ImportModule("warnings");
        PyObject *warn =
            warnings == NULL ? NULL : PyObject_GetAttrString(warnings, "_warn_unawaited_coroutine");
        PyObject *result = warn == NULL ? NULL : PyObject_CallFunctionObjArgs(warn, self, NULL);
        if (result == NULL) {
            PyErr_WriteUnraisable(self);
        }
        Py_DecRef(warnings);
        Py_DecRef(warn);
        Py_DecRef(result);
    } else if (!close_call(call)) {
        PyErr_WriteUnraisable(self);
    }
    PyErr_Restore(type, value, traceback);
}

static int call_traverse(PyObject *self, visitproc visit, void *argument)
{
    return traverse_objects(self, 3, visit, argument);
}

static int call_clear(PyObject *self) { return clear_objects(self, 3); }

static void call_dealloc(PyObject *self)
{
    CallState *call = (CallState *)self;
    PyObject_GC_UnTrack(self);
    if (call->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    if (call->state != CLOSED && call->stream != NULL && !call->is_finalized) {
        /* Code that runs now must find an object that is alive: another one. */
        CallState *heir = (CallState *)PyType_GenericAlloc(call_type, 0);
        if (heir == NULL) {
            PyErr_WriteUnraisable(NULL);
        } else {
            heir->kind = call->kind;
            heir->state = call->state;
            heir->stream = call->stream;
            heir->event = call->event;
            heir->inner = call->inner;
            call->stream = call->event = call->inner = NULL;
            call_finalize((PyObject *)heir);
            Py_DecRef((PyObject *)heir);
        }
    }
    call_clear(self);
    free_object(self);
}

/* ---- what can be seen of it ---- */

/* Everything that tells a coroutine from another object tells the same of a call. */
static PyObject *get_class(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return held_or_none(coroutine_type);
}

static PyObject *get_name(PyObject *self, void *is_qualified)
{
    static const char *const kinds[2][3] = {
        {"run", "receive", "send"}, {"AsgiStream.run", "HttpRequest.receive", "HttpRequest.send"}};
    const char *name = kinds[is_qualified != NULL][(int)((CallState *)self)->kind];
    return PyUnicode_FromStringAndSize(name, (Py_ssize_t)strlen(name));
}

static PyObject *get_stream(PyObject *self, void *unused)
{
    (void)unused;
    return held_or_none(((CallState *)self)->stream);
}

static PyObject *get_awaited(PyObject *self, void *unused)
{
    (void)unused;
    return held_or_none(((CallState *)self)->inner);
}

/* That of `inner`, which has no caller of Python's own. A call that has not begun has that of a
 * coroutine which never will: with none it would pass for one that has ended. */
static PyObject *get_frame(PyObject *self, void *unused)
{
    (void)unused;
    CallState *call = (CallState *)self;
    if (call->inner != NULL) {
        return PyObject_GetAttrString(call->inner, "cr_frame");
    }
    if (call->state != CREATED || call->stream == NULL || call->kind == CALL_RUN) {
        return none();
    }
    PyObject *coroutine = script_coroutine(call);
    if (coroutine == NULL) {
        return NULL;
    }
    PyObject *frame = PyObject_GetAttrString(coroutine, "cr_frame");
    PyObject *result = PyObject_CallMethodObjArgs(coroutine, names[NAME_CLOSE], NULL);
    if (result == NULL) {
        drop(&frame);
    }
    Py_DecRef(result);
    Py_DecRef(coroutine);
    return frame;
}

/* That of the frame. */
static PyObject *get_code(PyObject *self, void *unused)
{
    static const int kinds[] = {NAME_RUN, NAME_RECEIVE, NAME_SEND};
    (void)unused;
    CallState *call = (CallState *)self;
    if (call->inner != NULL) {
        return PyObject_GetAttrString(call->inner, "cr_code");
    }
    PyObject *function = PyObject_GetAttr(request_class, names[kinds[(int)call->kind]]);
    PyObject *code = function == NULL ? NULL : PyObject_GetAttr(function, names[NAME_CODE]);
    Py_DecRef(function);
    return code;
}

static PyObject *get_origin(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return none();
}

static PyObject *is_in_state(PyObject *self, void *state)
{
    return PyBool_FromLong(((CallState *)self)->state == (char)(intptr_t)state);
}

static PyGetSetDef call_attributes[] = {
    {"__class__", get_class, NULL, NULL, NULL},
    {"__name__", get_name, NULL, NULL, NULL},
    {"__qualname__", get_name, NULL, NULL, (void *)1},
    {"cr_await", get_awaited, NULL, NULL, NULL},
    {"cr_code", get_code, NULL, NULL, NULL},
    {"cr_frame", get_frame, NULL, NULL, NULL},
    {"cr_origin", get_origin, NULL, NULL, NULL},
    {"cr_running", is_in_state, NULL, NULL, (void *)RUNNING},
    {"cr_suspended", is_in_state, NULL, NULL, (void *)SUSPENDED},
    {"stream", get_stream, NULL, NULL, NULL},
    {0},
};

/* `await` of it, or of one that is awaited: an error, as of a coroutine. */
static PyObject *call_await(PyObject *self)
{
    if (((CallState *)self)->state == SUSPENDED) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        return NULL;
    }
    Py_IncRef(self);
    return self;
}

static PyMemberDef call_members[] = {
    {"__weaklistoffset__", MEMBER_SSIZE, offsetof(CallState, weak_references), READ_ONLY, NULL},
    {0},
};

static PyMethodDef call_methods[] = {
    {"close", call_close, METH_NOARGS, NULL},
    {"send", call_send, METH_O, NULL},
    {"throw", call_throw, METH_VARARGS, NULL},
    {0},
};

static PyType_Slot call_slots[] = {
    {SLOT_AM_AWAIT, (void *)call_await},
    {SLOT_AM_SEND, (void *)step},
    {SLOT_CLEAR, (void *)call_clear},
    {SLOT_DEALLOC, (void *)call_dealloc},
    {SLOT_FINALIZE, (void *)call_finalize},
    {SLOT_GET_SET, call_attributes},
    /* For `yield from` in a coroutine of generators. */
    {SLOT_ITER, (void *)PyObject_SelfIter},
    {SLOT_ITER_NEXT, (void *)call_next},
    {SLOT_MEMBERS, call_members},
    {SLOT_METHODS, call_methods},
    {SLOT_TRAVERSE, (void *)call_traverse},
    {0},
};

static PyType_Spec call_spec = {"penstock_worker._native.Call", sizeof(CallState), 0,
    TYPE_DEFAULT | TYPE_GC | TYPE_INTERNAL, call_slots};

PyObject *add_call_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&call_spec);
    call_type = (PyTypeObject *)type;
    return type != NULL && PyModule_AddObjectRef(module, "Call", type) == 0 ? type : NULL;
}
