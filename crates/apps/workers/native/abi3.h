/* The part of CPython's stable ABI (3.10 and later) that the native part of the Python worker uses,
 * declared here so that no headers of Python are needed to compile it. Signatures are those of the
 * C API's reference; the numbers of slots and member kinds are fixed by PEP 384. */

#ifndef PENSTOCK_ABI3_H
#define PENSTOCK_ABI3_H

#include <stddef.h>
#include <sys/types.h>

typedef ssize_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;

typedef struct _object {
    Py_ssize_t refcnt;
    PyTypeObject *type;
} PyObject;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef int (*visitproc)(PyObject *, void *);
typedef void (*freefunc)(void *);
typedef PyObject *(*PyCFunctionFast)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
typedef PyObject *(*VectorCall)(PyObject *, PyObject *const *, size_t, PyObject *);

typedef struct {
    const char *name;
    PyCFunction function;
    int flags;
    const char *doc;
} PyMethodDef;

typedef struct {
    const char *name;
    int kind;
    Py_ssize_t offset;
    int flags;
    const char *doc;
} PyMemberDef;

typedef struct {
    const char *name;
    PyObject *(*get)(PyObject *, void *);
    int (*set)(PyObject *, PyObject *, void *);
    const char *doc;
    void *closure;
} PyGetSetDef;

typedef struct {
    int slot;
    void *function;
} PyType_Slot;

typedef struct {
    const char *name;
    int size;
    int item_size;
    unsigned int flags;
    PyType_Slot *slots;
} PyType_Spec;

typedef struct {
    PyObject head;
    PyObject *(*init)(void);
    Py_ssize_t index;
    PyObject *copy;
} PyModuleDef_Base;

typedef struct {
    PyModuleDef_Base base;
    const char *name;
    const char *doc;
    Py_ssize_t size;
    PyMethodDef *methods;
    void *slots, *traverse, *clear, *free;
} PyModuleDef;

enum { METH_VARARGS = 1, METH_KEYWORDS = 2, METH_NOARGS = 4, METH_O = 8, METH_FASTCALL = 128 };
enum {
    MEMBER_INT = 1,
    MEMBER_OBJECT = 6,
    MEMBER_BOOL = 14,
    MEMBER_LONG_LONG = 17,
    MEMBER_SSIZE = 19,
};
/* A flag of members. */
enum { READ_ONLY = 1 };
enum {
    SLOT_CALL = 50,
    SLOT_CLEAR = 51,
    SLOT_DEALLOC = 52,
    SLOT_ITER = 62,
    SLOT_ITER_NEXT = 63,
    SLOT_METHODS = 64,
    SLOT_TRAVERSE = 71,
    SLOT_MEMBERS = 72,
    SLOT_GET_SET = 73,
    SLOT_FREE = 74,
    SLOT_AM_AWAIT = 77,
    SLOT_FINALIZE = 80,
    SLOT_AM_SEND = 81,
};
enum {
    /* Only native code makes objects of it. */
    TYPE_INTERNAL = 1 << 7,
    TYPE_BASE = 1 << 10,
    TYPE_VECTOR_CALL = 1 << 11,
    TYPE_GC = 1 << 14,
    TYPE_DEFAULT = 1 << 18,
    TYPE_EXCEPTION = 1 << 30,
};
/* The bit beside the count of arguments of a `VectorCall`. */
#define VECTOR_CALL_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))

/* What `PyIter_Send` returns. */
typedef enum { SEND_RETURN = 0, SEND_ERROR = -1, SEND_NEXT = 1 } SendResult;

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern PyTypeObject PyBytes_Type, PyDict_Type, PyList_Type, PyLong_Type, PyTuple_Type;
extern PyTypeObject PyUnicode_Type;
extern PyObject *PyExc_RuntimeError, *PyExc_StopIteration, *PyExc_TypeError, *PyExc_ValueError;
extern PyObject *PyExc_GeneratorExit;

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
PyObject *PyModule_Create2(PyModuleDef *, int);
int PyModule_AddObjectRef(PyObject *, const char *, PyObject *);
PyObject *PyType_FromSpec(PyType_Spec *);
unsigned long PyType_GetFlags(PyTypeObject *);
void *PyType_GetSlot(PyTypeObject *, int);
PyObject *PyType_GenericAlloc(PyTypeObject *, Py_ssize_t);
void PyObject_GC_UnTrack(void *);
void PyObject_ClearWeakRefs(PyObject *);
PyObject *PyObject_SelfIter(PyObject *);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_GetAttrString(PyObject *, const char *);
SendResult PyIter_Send(PyObject *, PyObject *, PyObject **);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyBool_FromLong(long);
PyObject *PyLong_FromLong(long);
long PyLong_AsLong(PyObject *);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
PyObject *PyDict_New(void);
PyObject *PyDict_Copy(PyObject *);
Py_ssize_t PyDict_Size(PyObject *);
int PyDict_DelItem(PyObject *, PyObject *);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
int PyDict_SetItem(PyObject *, PyObject *, PyObject *);
PyObject *PyList_New(Py_ssize_t);
int PyList_Append(PyObject *, PyObject *);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
int PyList_SetSlice(PyObject *, Py_ssize_t, Py_ssize_t, PyObject *);
Py_ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
char *PyBytes_AsString(PyObject *);
Py_ssize_t PyBytes_Size(PyObject *);
char *PyByteArray_AsString(PyObject *);
Py_ssize_t PyByteArray_Size(PyObject *);
PyObject *PyUnicode_FromStringAndSize(const char *, Py_ssize_t);
PyObject *PyUnicode_InternFromString(const char *);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
int PyUnicode_CompareWithASCIIString(PyObject *, const char *);
void PyErr_Clear(void);
int PyErr_CheckSignals(void);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
int PyErr_ExceptionMatches(PyObject *);
PyObject *PyErr_Occurred(void);
void PyErr_SetNone(PyObject *);
void PyErr_SetObject(PyObject *, PyObject *);
void PyErr_SetString(PyObject *, const char *);
void PyErr_WriteUnraisable(PyObject *);
int PyException_SetTraceback(PyObject *, PyObject *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);

static inline int is_exactly(PyObject *object, PyTypeObject *type) { return object->type == type; }

#endif
