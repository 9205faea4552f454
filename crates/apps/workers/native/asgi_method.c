/* What the application gets as `receive` and `send`: an object that is called, and in all else is
 * the bound method of the scripts, a coroutine function. asgiref and others ask for that.
 */

#include "asgi.h"

typedef struct {
    PyObject head;
    PyObject *stream;
    PyObject *weak_references;
    VectorCall vector_call;
    char kind;
} MethodState;

static PyTypeObject *call_method_type;

/* The bound method of the scripts. */
static PyObject *script_method(MethodState *method)
{
    int name = method->kind == CALL_RECEIVE ? NAME_RECEIVE : NAME_SEND;
    return PyObject_GetAttr(method->stream, names[name]);
}

/* ---- calls ---- */

static PyObject *call_fast(
    PyObject *self, PyObject *const *args, size_t count_and_offset, PyObject *named)
{
    MethodState *method = (MethodState *)self;
    size_t count = count_and_offset & ~VECTOR_CALL_OFFSET;
    size_t expected = method->kind == CALL_SEND;
    if (count == expected && named == NULL) {
        return new_call(
            method->kind, (StreamState *)method->stream, expected ? args[0] : NULL);
    }
    /* A call with other arguments fails as that of the scripts does. */
    PyObject *script = script_method(method);
    PyObject *result =
        script == NULL ? NULL : call_with(script, args, (Py_ssize_t)count, named);
    Py_DecRef(script);
    return result;
}

static PyObject *call_slowly(PyObject *self, PyObject *args, PyObject *named)
{
    PyObject *script = script_method((MethodState *)self);
    PyObject *result = script == NULL ? NULL : PyObject_Call(script, args, named);
    Py_DecRef(script);
    return result;
}

/* ---- what can be seen of it ---- */

static PyObject *get_class(PyObject *self, void *unused)
{
    (void)self;
    (void)unused;
    return held_or_none(method_type);
}

static PyObject *get_self(PyObject *self, void *unused)
{
    (void)unused;
    return held_or_none(((MethodState *)self)->stream);
}

/* An attribute of the bound method. */
static PyObject *get_attribute(PyObject *self, void *name)
{
    PyObject *script = script_method((MethodState *)self);
    PyObject *result = script == NULL ? NULL : PyObject_GetAttrString(script, name);
    Py_DecRef(script);
    return result;
}

#define ATTRIBUTE(name) {name, get_attribute, NULL, NULL, (void *)name}

static PyGetSetDef method_attributes[] = {
    {"__class__", get_class, NULL, NULL, NULL},
    {"__self__", get_self, NULL, NULL, NULL},
    ATTRIBUTE("__func__"),
    ATTRIBUTE("__annotations__"),
    ATTRIBUTE("__code__"),
    ATTRIBUTE("__defaults__"),
    ATTRIBUTE("__doc__"),
    ATTRIBUTE("__globals__"),
    ATTRIBUTE("__kwdefaults__"),
    ATTRIBUTE("__name__"),
    ATTRIBUTE("__qualname__"),
    {0},
};

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", MEMBER_SSIZE, offsetof(MethodState, vector_call), READ_ONLY, NULL},
    {"__weaklistoffset__", MEMBER_SSIZE, offsetof(MethodState, weak_references), READ_ONLY, NULL},
    {0},
};

/* ---- the type ---- */

static int method_traverse(PyObject *self, visitproc visit, void *argument)
{
    return traverse_objects(self, 1, visit, argument);
}

static void method_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    if (((MethodState *)self)->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    clear_objects(self, 1);
    free_object(self);
}

/* It has no clear: an object always has its stream, which breaks all cycles that it is in. */
static PyType_Slot method_slots[] = {
    {SLOT_CALL, (void *)call_slowly},
    {SLOT_DEALLOC, (void *)method_dealloc},
    {SLOT_GET_SET, method_attributes},
    {SLOT_MEMBERS, method_members},
    {SLOT_TRAVERSE, (void *)method_traverse},
    {0},
};

static PyType_Spec method_spec = {"penstock_worker._native.Method", sizeof(MethodState), 0,
    TYPE_DEFAULT | TYPE_GC | TYPE_INTERNAL | TYPE_VECTOR_CALL, method_slots};

PyObject *new_method(int kind, StreamState *stream)
{
    MethodState *method = (MethodState *)PyType_GenericAlloc(call_method_type, 0);
    if (method != NULL) {
        method->kind = (char)kind;
        method->vector_call = call_fast;
        method->stream = (PyObject *)stream;
        Py_IncRef(method->stream);
    }
    return (PyObject *)method;
}

PyObject *add_method_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&method_spec);
    call_method_type = (PyTypeObject *)type;
    return type != NULL && PyModule_AddObjectRef(module, "Method", type) == 0 ? type : NULL;
}
