/* The part of Python's stable ABI that module.c uses. With it, the module can be compiled without
   Python's own headers, and for other systems. The stable ABI does not change (PEP 384, PEP 652):
   these declarations are valid for every Python from 3.11 on. Free-threaded interpreters have a
   different ABI; the module is then compiled with their own Python.h.

   tests/images/test_csrc.py includes this file after the interpreter's Python.h. Only the
   prototypes are used then, and the compiler compares them. The test also compares the sizes and
   offsets of the types. */
#ifndef WDS_TOOLS_ABI3_PYTHON_H
#define WDS_TOOLS_ABI3_PYTHON_H

#ifndef Py_PYTHON_H
#define Py_PYTHON_H

#if !defined(Py_LIMITED_API) || defined(Py_GIL_DISABLED)
#error "this header is only for the stable ABI: define Py_LIMITED_API"
#endif

#include <stddef.h>
#include <stdint.h>

typedef ptrdiff_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;

typedef struct _object {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
} PyObject;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char *format;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    Py_ssize_t *suboffsets;
    void *internal;
} Py_buffer;

#define PyBUF_SIMPLE 0
#define PyBUF_WRITABLE 1
#define PyBUF_STRIDES 24

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef int (*visitproc)(PyObject *, void *);
typedef int (*traverseproc)(PyObject *, visitproc, void *);
typedef int (*inquiry)(PyObject *);
typedef void (*freefunc)(void *);

typedef struct PyMethodDef {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

#define METH_VARARGS 0x0001
#define METH_NOARGS 0x0004
#define METH_O 0x0008

typedef struct PyModuleDef_Base {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
} PyModuleDef_Base;

typedef struct PyModuleDef_Slot {
    int slot;
    void *value;
} PyModuleDef_Slot;

#define Py_mod_exec 2

typedef struct PyModuleDef {
    PyModuleDef_Base m_base;
    const char *m_name;
    const char *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    PyModuleDef_Slot *m_slots;
    traverseproc m_traverse;
    inquiry m_clear;
    freefunc m_free;
} PyModuleDef;

#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *

typedef struct _ts PyThreadState;
#define Py_BEGIN_ALLOW_THREADS { PyThreadState *_save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(_save); }

extern PyObject _Py_NoneStruct;
#define Py_None (&_Py_NoneStruct)
extern PyTypeObject PyList_Type;

/* The names of the functions with PY_SSIZE_T_CLEAN: "#" in a format stands for a Py_ssize_t. */
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define Py_DECREF(object) Py_DecRef(object)
#define Py_XDECREF(object) Py_DecRef(object)
#define Py_INCREF(object) Py_IncRef(object)

#endif

/* Everything below is also declared by the interpreter's Python.h, as a prototype or a variable. */
#undef Py_NewRef

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
PyObject *Py_NewRef(PyObject *object);

extern PyObject *PyExc_MemoryError;
extern PyObject *PyExc_OverflowError;
extern PyObject *PyExc_RuntimeError;
extern PyObject *PyExc_TypeError;
extern PyObject *PyExc_ValueError;
void PyErr_Clear(void);
PyObject *PyErr_Format(PyObject *exception, const char *format, ...);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *exception, const char *message);

int _PyArg_ParseTuple_SizeT(PyObject *arguments, const char *format, ...);
PyObject *_Py_BuildValue_SizeT(const char *format, ...);

int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);

PyObject *PyBool_FromLong(long value);
PyObject *PyBytes_FromStringAndSize(const char *bytes, Py_ssize_t size);
char *PyBytes_AsString(PyObject *bytes);
Py_ssize_t PyBytes_Size(PyObject *bytes);
double PyFloat_AsDouble(PyObject *number);
PyObject *PyFloat_FromDouble(double value);
long PyLong_AsLong(PyObject *number);
Py_ssize_t PyLong_AsSsize_t(PyObject *number);
PyObject *PyLong_FromLong(long value);
PyObject *PyLong_FromSize_t(size_t value);
PyObject *PyLong_FromSsize_t(Py_ssize_t value);
PyObject *PyUnicode_FromString(const char *text);

int PyList_Append(PyObject *list, PyObject *item);
PyObject *PyList_GetItem(PyObject *list, Py_ssize_t index);
PyObject *PyList_New(Py_ssize_t size);
int PyList_SetItem(PyObject *list, Py_ssize_t index, PyObject *item);
Py_ssize_t PyList_Size(PyObject *list);
PyObject *PySequence_GetItem(PyObject *sequence, Py_ssize_t index);
PyObject *PyTuple_New(Py_ssize_t size);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t index, PyObject *item);

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

PyObject *PyModuleDef_Init(PyModuleDef *definition);
int PyModule_AddIntConstant(PyObject *module, const char *name, long value);
int PyModule_AddStringConstant(PyObject *module, const char *name, const char *value);

#endif
