/* The hot path of an ASGI worker, in six files that share these declarations:
 *
 * - `asgi_channel.c` reads plain OPENs off the channel, starts a task for each and sends what they
 *   have answered;
 * - `asgi_scope.c` makes the connection scope of one;
 * - `asgi_call.c` is what the application and asyncio await: an object that is used as a coroutine;
 * - `asgi_http.c` is `receive`, and `send` of a response in one piece;
 * - `asgi_method.c` is what the application gets as these two;
 * - `asgi_types.c` has the types whose state the scripts share.
 *
 * Everything else is left to `asgi.py`, `asgi_http.py` and `channel.py`, which do all of it without
 * this.
 *
 * Invariants:
 * - Frames and events that are not plain are not touched: the scripts take them, in the same state.
 * - What the server can see is what the scripts would have sent (one table of tests runs on both).
 * - Nothing here waits.
 * - Code of the application runs in any call that may run Python: objects used behind it are held.
 */

#ifndef PENSTOCK_ASGI_H
#define PENSTOCK_ASGI_H

#include "shared.h"

/* The state of `channel.FrameReader`. In each of these structures the objects come first. */
typedef struct {
    PyObject head;
    PyObject *buffer;
    Py_ssize_t start, end;
} ReaderState;

/* The state of `channel.FrameWriter`. */
typedef struct {
    PyObject head;
    PyObject *frames;
    Py_ssize_t size;
} WriterState;

/* The state of `asgi.AsgiReactor`. */
typedef struct {
    PyObject head;
    PyObject *reader, *writer, *streams, *opened, *loop, *app, *state, *request_type, *task_options;
    /* `call_soon` of the loop, where tasks cannot start at once by themselves (before CPython
     * 3.12); a step that it was called with, and its context. */
    PyObject *call_soon, *step, *context;
    long long gathering_since;
    int fd;
    char is_full, will_flush, is_blocked, is_stopped, is_catching;
} ReactorState;

/* The state of `asgi_stream.AsgiStream` and of `asgi_http.HttpRequest`. */
typedef struct {
    PyObject head;
    PyObject *reactor, *id, *scope, *task, *receivers, *senders, *body, *file, *head_bytes;
    long long started;
    Py_ssize_t window, file_bytes_left;
    int string_count;
    char is_ended, is_disconnected, is_head_sent, has_more, is_pull_pending;
} StreamState;

/* Whether an attribute is not set: the scripts set None. */
static inline int is_absent(PyObject *object)
{
    return object == NULL || object == &_Py_NoneStruct;
}

/* Names and texts that are used all the time, made once by `asgi_types.c`. */
enum {
    NAME_ASGI,
    NAME_BODY,
    NAME_EXTENSIONS,
    NAME_HEADERS,
    NAME_MORE_BODY,
    NAME_STATE,
    NAME_STATUS,
    NAME_TYPE,
    NAME_AWAIT,
    NAME_CALL_SOON,
    NAME_CLOSE,
    NAME_CODE,
    NAME_CONTEXT,
    NAME_DROP_SENT,
    NAME_END_RAISED,
    NAME_END_RETURNED,
    NAME_GET_DEBUG,
    NAME_GET_TASK_FACTORY,
    NAME_ON_READABLE,
    NAME_QUEUE_FRAME,
    NAME_RECEIVE,
    NAME_RUN,
    NAME_SELF,
    NAME_SEND,
    NAME_SEND_QUEUED,
    NAME_START_REST,
    NAME_TAKE_BUFFERED,
    NAME_TASK,
    NAME_THROW,
    NAME_COUNT,
};
extern PyObject *names[NAME_COUNT];

/* `types.CoroutineType` and `types.MethodType`, the module `asyncio.tasks` and its own `Task`. */
extern PyObject *coroutine_type, *method_type, *tasks_module, *task_type;
/* `asgi_http.HttpRequest`. */
extern PyObject *request_class;
/* Copied for each request: its entry `asgi`, and what its `receive` returns. */
extern PyObject *asgi_versions, *request_event;

enum { CALL_RUN, CALL_RECEIVE, CALL_SEND };

/* A call of one of these kinds, which begins when it is awaited. `event` may be NULL. */
PyObject *new_call(int kind, StreamState *stream, PyObject *event);
PyObject *add_call_type(PyObject *module);

/* The scope that these bytes hold, from `at` to `stop`. NULL, perhaps with an exception, if the
 * scripts must read it: they come to the same end, and say more. */
PyObject *read_scope(const unsigned char *at, const unsigned char *stop);

/* `send(event)`: 1 when it is done, 0 when the scripts must do it, -1 with an exception. */
int send_quickly(StreamState *stream, PyObject *event);
/* `receive()`: the event; NULL without an exception when the scripts must do it. */
PyObject *receive_quickly(StreamState *stream);
/* What the application gets as `receive` and `send`: of kind CALL_RECEIVE and CALL_SEND. */
PyObject *new_method(int kind, StreamState *stream);
PyObject *add_method_type(PyObject *module);

/* Methods of a reactor, in `asgi_channel.c`. */
PyObject *read_channel(PyObject *self, PyObject *unused);
PyObject *start_opened(PyObject *self, PyObject *unused);
PyObject *catch_call_soon(
    PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *named);

/* Calls with arguments as a fast function gets them: `named` are the names of those behind
 * `count`. */
PyObject *call_with(
    PyObject *callable, PyObject *const *args, Py_ssize_t count, PyObject *named);

/* Sends the queued frames at once, where they are few; the scripts send the rest. False with an
 * exception. */
int flush(ReactorState *reactor);

/* A new reference to it, or to None instead of NULL. */
PyObject *held_or_none(PyObject *object);

/* For objects that begin with `count` pointers to others. */
int traverse_objects(PyObject *self, int count, visitproc visit, void *argument);
int clear_objects(PyObject *self, int count);

#endif
